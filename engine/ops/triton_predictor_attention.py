"""Attention of the code predictor's launch: one query head of one row, which attends within its frame."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from engine.ops.triton_exchange import PIECE, PIECES, high, low, poll_head, poll_head_and_earlier

# Columns of the table of addresses.
NORM, Q_NORM, K_NORM, AFTER, COLUMNS = (gl.constexpr(i) for i in range(5))
# Attention: [position, pair of channels]; two positions a warp.
ATTENTION = gl.constexpr(gl.BlockedLayout([2, 2], [1, 32], [8, 1], [1, 0]))
# [warp, channel]: all warps' parts are in a thread, and four threads have the same.
MERGE = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [1, 0], [2, 0], [4, 0]],
        [[0, 0], [0, 0], [0, 2], [0, 4], [0, 8]],
        [[0, 16], [0, 32], [0, 64]],
        [],
        [8, 128],
    )
)
# [channel, copy]
ATTENDED = gl.constexpr(
    gl.DistributedLinearLayout(
        [[1, 0]], [[0, 1], [0, 2], [2, 0], [4, 0], [8, 0]], [[16, 0], [32, 0], [64, 0]], [], [128, 4]
    )
)
STORE_PAIR = gl.constexpr("st.relaxed.gpu.global.b32 [$2], $4; mov.b32 $0, 0; mov.b32 $1, 0;")


@gluon.jit
def address(table_ptr, layer, column, dtype: gl.constexpr):
    return gl.multiple_of(gl.load(table_ptr + layer * COLUMNS + column).to(gl.pointer_type(dtype)), 16)


@gluon.jit
def norm_and_rotate(words, norm, angles, eps, D: gl.constexpr):
    """The two halves of a head from its words [D / 2]."""
    norm_low, norm_high = norm
    cos, sin = angles
    a, b = low(words), high(words)
    inverse = gl.rsqrt(gl.sum(a * a + b * b, 0) / D + eps)
    a, b = a * inverse * norm_low.to(gl.float32), b * inverse * norm_high.to(gl.float32)
    return a * cos - b * sin, b * cos + a * sin


@gluon.jit
def load_past(past, to_values, is_past, HALF: gl.constexpr):
    """Load the keys and values of earlier launches, [position, channel] of two halves; others are zeros."""
    keys_low = gl.load(past, mask=is_past, other=0.0)
    keys_high = gl.load(past + HALF, mask=is_past, other=0.0)
    values_low = gl.load(past + to_values, mask=is_past, other=0.0)
    return keys_low, keys_high, values_low, gl.load(past + to_values + HALF, mask=is_past, other=0.0)


@gluon.jit
def insert(cached, k, v, norm, angles, is_new, eps, D: gl.constexpr):
    """Replace the key and the value of one position by those of its words."""
    keys_low, keys_high, values_low, values_high = cached
    key_low, key_high = norm_and_rotate(k, norm, angles, eps, D)
    key_low, key_high = gl.expand_dims(key_low.to(gl.bfloat16), 0), gl.expand_dims(key_high.to(gl.bfloat16), 0)
    value_low, value_high = gl.expand_dims(low(v).to(gl.bfloat16), 0), gl.expand_dims(high(v).to(gl.bfloat16), 0)
    keys_low, keys_high = gl.where(is_new, key_low, keys_low), gl.where(is_new, key_high, keys_high)
    return keys_low, keys_high, gl.where(is_new, value_low, values_low), gl.where(is_new, value_high, values_high)


@gluon.jit
def store_new(past, to_values, cached, is_new, HALF: gl.constexpr):
    """Store the key and the value of one position."""
    gl.store(past, cached[0], mask=is_new)
    gl.store(past + HALF, cached[1], mask=is_new)
    gl.store(past + to_values, cached[2], mask=is_new)
    gl.store(past + to_values + HALF, cached[3], mask=is_new)


@gluon.jit
def score(q, cached, is_seen):
    """Multiply a query with all keys: scores [warp, position of the warp]."""
    q_low, q_high = q
    keys_low, keys_high, _, _ = cached
    scores = gl.sum(
        keys_low.to(gl.float32) * gl.expand_dims(q_low, 0) + keys_high.to(gl.float32) * gl.expand_dims(q_high, 0), 1
    )
    return gl.reshape(gl.where(is_seen, scores, -1e30), [8, 2])


@gluon.jit
def store_sums(scores, cached, softmax, HALF: gl.constexpr):
    """Store each warp's part of the softmax: its largest score, its sums of exponentials and of values."""
    max_scores, exp_sums, values = softmax
    _, _, values_low, values_high = cached
    max_score = gl.max(scores, 1)
    exp_scores = gl.exp(scores - gl.expand_dims(max_score, 1))
    spread_scores = gl.convert_layout(gl.reshape(exp_scores, [scores.numel]), gl.SliceLayout(1, ATTENTION))
    spread_scores = gl.expand_dims(spread_scores, 1)
    max_scores.store(max_score)
    exp_sums.store(gl.sum(exp_scores, 1))
    values.slice(0, HALF, 1).store(gl.sum(gl.reshape(values_low.to(gl.float32) * spread_scores, [8, 2, HALF]), 1))
    values.slice(HALF, HALF, 1).store(gl.sum(gl.reshape(values_high.to(gl.float32) * spread_scores, [8, 2, HALF]), 1))


@gluon.jit
def merge_warps(softmax):
    """Merge what all warps have stored to the head's values [D]."""
    max_scores, exp_sums, values = softmax
    max_scores, exp_sums = max_scores.load(gl.SliceLayout(1, MERGE)), exp_sums.load(gl.SliceLayout(1, MERGE))
    rescale = gl.exp(max_scores - gl.max(max_scores, 0))
    return gl.sum(values.load(MERGE) * gl.expand_dims(rescale, 1), 0) / gl.sum(exp_sums * rescale, 0)


@gluon.jit
def attend(
    words, other, failed_ptr, norms, angles, cache_ptr, head, eps, scale, start, place, rows, softmax,
    HEADS: gl.constexpr, KV: gl.constexpr, D: gl.constexpr, LENGTH: gl.constexpr,
):  # fmt: skip
    """Attend with one query head of one row at position ``place``; store its copies, its key and its value.

    Keys of positions before ``start`` lie at ``cache_ptr`` [LENGTH, KV, D]. In a launch for two positions those of
    ``start`` come from ``earlier_words``, which are ``qkv_words`` where ``place`` is ``start``.
    """
    half: gl.constexpr = D // 2
    qkv_words, earlier_words, out_words = words
    q_norm_ptr, k_norm_ptr = norms
    cos_ptr, sin_ptr = angles
    to_values = rows * LENGTH * KV * D
    lane = gl.arange(0, half, gl.SliceLayout(0, ATTENTION))
    position = gl.arange(0, LENGTH, gl.SliceLayout(1, ATTENTION))
    kv = head // (HEADS // KV)
    past = cache_ptr + kv * D + gl.expand_dims(position, 1) * (KV * D) + gl.expand_dims(lane, 0)
    is_channel = gl.expand_dims(lane >= 0, 0)
    cached = load_past(past, to_values, gl.expand_dims(position < start, 1) & is_channel, half)
    new_angles = gl.load(cos_ptr + place * half + lane), gl.load(sin_ptr + place * half + lane)
    if earlier_words is not None:
        earlier_angles = gl.load(cos_ptr + start * half + lane), gl.load(sin_ptr + start * half + lane)
    q_norm = gl.load(q_norm_ptr + lane), gl.load(q_norm_ptr + half + lane)
    k_norm = gl.load(k_norm_ptr + lane), gl.load(k_norm_ptr + half + lane)
    q_at, k_at = qkv_words + head * half + lane, qkv_words + (HEADS + kv) * half + lane
    if earlier_words is None:
        q, k, v = poll_head(q_at, k_at, k_at + KV * half, failed_ptr)
    else:
        at = earlier_words + (HEADS + kv) * half + lane
        q, k, v, earlier_k, earlier_v = poll_head_and_earlier(
            q_at, k_at, k_at + KV * half, at, at + KV * half, failed_ptr
        )
    q_low, q_high = norm_and_rotate(q, q_norm, new_angles, eps, D)
    q = q_low * scale, q_high * scale
    if earlier_words is not None:
        is_earlier = gl.expand_dims(position == start, 1)
        cached = insert(cached, earlier_k, earlier_v, k_norm, earlier_angles, is_earlier, eps, D)
    is_new = gl.expand_dims(position == place, 1)
    cached = insert(cached, k, v, k_norm, new_angles, is_new, eps, D)
    store_sums(score(q, cached, position <= place), cached, softmax, half)
    store_attended(merge_warps(softmax), out_words, other, D)
    if head % (HEADS // KV) == 0:
        store_new(past, to_values, cached, is_new & is_channel, half)


@gluon.jit
def store_attended(total, out_words, other, D: gl.constexpr):
    """Publish a head's values [D] in all copies, and empty their places in the other set."""
    out = gl.convert_layout(total.to(gl.bfloat16), gl.SliceLayout(1, ATTENDED), assert_trivial=True)
    channel = gl.expand_dims(gl.arange(0, D, gl.SliceLayout(1, ATTENDED)), 1)
    copy = gl.expand_dims(gl.arange(0, 4, gl.SliceLayout(0, ATTENDED)), 0)
    at = out_words.to(gl.pointer_type(gl.bfloat16)) + channel + copy * (2 * PIECES * PIECE)
    out = gl.expand_dims(out, 1).to(gl.int16, bitcast=True) + gl.full([D, 4], 0, gl.int16, ATTENDED)
    empty = gl.full([D, 4], -1, gl.int16, ATTENDED)
    gl.inline_asm_elementwise(STORE_PAIR, "=r,=r,l,l,r", [at.to(gl.int64), out], dtype=gl.int32, is_pure=False, pack=2)
    gl.inline_asm_elementwise(
        STORE_PAIR, "=r,=r,l,l,r", [(at + 2 * other).to(gl.int64), empty], dtype=gl.int32, is_pure=False, pack=2
    )
