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
def norm_and_rotate(words, norm_low, norm_high, cos, sin, eps, D: gl.constexpr):
    """The two halves of a head from its words [D / 2]."""
    a, b = low(words), high(words)
    inverse = gl.rsqrt(gl.sum(a * a + b * b, 0) / D + eps)
    a, b = a * inverse * norm_low.to(gl.float32), b * inverse * norm_high.to(gl.float32)
    return a * cos - b * sin, b * cos + a * sin


@gluon.jit
def insert(cached, k, v, norm_low, norm_high, cos, sin, is_new, eps, D: gl.constexpr):
    """Keys and values [position, channel] of two halves with those of one position, from its words."""
    keys_low, keys_high, values_low, values_high = cached
    key_low, key_high = norm_and_rotate(k, norm_low, norm_high, cos, sin, eps, D)
    key_low, key_high = gl.expand_dims(key_low.to(gl.bfloat16), 0), gl.expand_dims(key_high.to(gl.bfloat16), 0)
    value_low, value_high = gl.expand_dims(low(v).to(gl.bfloat16), 0), gl.expand_dims(high(v).to(gl.bfloat16), 0)
    keys_low, keys_high = gl.where(is_new, key_low, keys_low), gl.where(is_new, key_high, keys_high)
    return keys_low, keys_high, gl.where(is_new, value_low, values_low), gl.where(is_new, value_high, values_high)


@gluon.jit
def attend(
    qkv_words, earlier_words, out_words, other, failed_ptr, q_norm_ptr, k_norm_ptr, cos_ptr, sin_ptr, cache_ptr, head,
    eps, scale, start, place, rows, softmax,
    HEADS: gl.constexpr, KV: gl.constexpr, D: gl.constexpr, LENGTH: gl.constexpr,
):  # fmt: skip
    """Attend with one query head of one row at position ``place``; store its copies, its key and its value.

    Keys of positions before ``start`` lie at ``cache_ptr`` [LENGTH, KV, D]. In a launch for two positions those of
    ``start`` come from ``earlier_words``, which are ``qkv_words`` where ``place`` is ``start``.
    """
    group: gl.constexpr = HEADS // KV
    half: gl.constexpr = D // 2
    max_scores, exp_sums, values = softmax
    to_values = rows * LENGTH * KV * D
    lane = gl.arange(0, half, gl.SliceLayout(0, ATTENTION))
    position = gl.arange(0, LENGTH, gl.SliceLayout(1, ATTENTION))
    kv = head // group
    past = cache_ptr + kv * D + gl.expand_dims(position, 1) * (KV * D) + gl.expand_dims(lane, 0)
    is_past = gl.expand_dims(position < start, 1) & gl.expand_dims(lane >= 0, 0)
    keys_low = gl.load(past, mask=is_past, other=0.0)
    keys_high = gl.load(past + half, mask=is_past, other=0.0)
    values_low = gl.load(past + to_values, mask=is_past, other=0.0)
    values_high = gl.load(past + to_values + half, mask=is_past, other=0.0)
    cos, sin = gl.load(cos_ptr + place * half + lane), gl.load(sin_ptr + place * half + lane)
    if earlier_words is not None:
        earlier_cos, earlier_sin = gl.load(cos_ptr + start * half + lane), gl.load(sin_ptr + start * half + lane)
    q_norm_low, q_norm_high = gl.load(q_norm_ptr + lane), gl.load(q_norm_ptr + half + lane)
    k_norm_low, k_norm_high = gl.load(k_norm_ptr + lane), gl.load(k_norm_ptr + half + lane)
    q_at = qkv_words + head * half + lane
    k_at = qkv_words + (HEADS + kv) * half + lane
    if earlier_words is None:
        q, k, v = poll_head(q_at, k_at, k_at + KV * half, failed_ptr)
    else:
        at = earlier_words + (HEADS + kv) * half + lane
        q, k, v, earlier_k, earlier_v = poll_head_and_earlier(
            q_at, k_at, k_at + KV * half, at, at + KV * half, failed_ptr
        )
    q_low, q_high = norm_and_rotate(q, q_norm_low, q_norm_high, cos, sin, eps, D)
    q_low, q_high = q_low * scale, q_high * scale
    cached = keys_low, keys_high, values_low, values_high
    if earlier_words is not None:
        is_earlier = gl.expand_dims(position == start, 1)
        cached = insert(
            cached, earlier_k, earlier_v, k_norm_low, k_norm_high, earlier_cos, earlier_sin, is_earlier, eps, D
        )
    is_new = gl.expand_dims(position == place, 1)
    cached = insert(cached, k, v, k_norm_low, k_norm_high, cos, sin, is_new, eps, D)
    keys_low, keys_high, values_low, values_high = cached
    scores = gl.sum(
        keys_low.to(gl.float32) * gl.expand_dims(q_low, 0) + keys_high.to(gl.float32) * gl.expand_dims(q_high, 0), 1
    )
    scores = gl.reshape(gl.where(position <= place, scores, -1e30), [8, 2])
    max_score = gl.max(scores, 1)
    exp_scores = gl.exp(scores - gl.expand_dims(max_score, 1))
    spread_scores = gl.expand_dims(gl.convert_layout(gl.reshape(exp_scores, [LENGTH]), gl.SliceLayout(1, ATTENTION)), 1)
    max_scores.store(max_score)
    exp_sums.store(gl.sum(exp_scores, 1))
    values.slice(0, half, 1).store(gl.sum(gl.reshape(values_low.to(gl.float32) * spread_scores, [8, 2, half]), 1))
    values.slice(half, half, 1).store(gl.sum(gl.reshape(values_high.to(gl.float32) * spread_scores, [8, 2, half]), 1))
    all_max_scores, all_exp_sums = max_scores.load(gl.SliceLayout(1, MERGE)), exp_sums.load(gl.SliceLayout(1, MERGE))
    rescale = gl.exp(all_max_scores - gl.max(all_max_scores, 0))
    total = gl.sum(values.load(MERGE) * gl.expand_dims(rescale, 1), 0) / gl.sum(all_exp_sums * rescale, 0)
    store_attended(total, out_words, other, D)
    if head % group == 0:
        here = is_new & gl.expand_dims(lane >= 0, 0)
        gl.store(past, keys_low, mask=here)
        gl.store(past + half, keys_high, mask=here)
        gl.store(past + to_values, values_low, mask=here)
        gl.store(past + to_values + half, values_high, mask=here)


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
