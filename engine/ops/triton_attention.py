"""Attention of one step: norm and rotation of q and k, the write to the cache and the read of it in one launch."""

from __future__ import annotations

import triton
import triton.language as tl

from engine.ops.triton_early import start_next, wait_for_inputs

# Query rows of a tile: the least a matrix product takes; those beyond the real ones are masked.
NUM_Q = tl.constexpr(16)


@triton.jit
def _norm_and_rope(at, d, norm_ptr, cos, sin, eps, NORM: tl.constexpr, D: tl.constexpr):
    """Heads [n, D] read from pointers ``at`` [n, 1], normed and turned; ``sin`` carries the sign of its half."""
    partner = (d + D // 2) % D
    x = tl.load(at + d).to(tl.float32)
    other = tl.load(at + partner).to(tl.float32)
    if NORM:
        inverse = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
        x = x * inverse * tl.load(norm_ptr + d).to(tl.float32)
        other = other * inverse * tl.load(norm_ptr + partner).to(tl.float32)
    return x * cos + other * sin


@triton.jit
def _angles(cos_ptr, sin_ptr, position, d, D: tl.constexpr):
    at = position * (D // 2) + d % (D // 2)
    sin = tl.load(sin_ptr + at)
    return tl.load(cos_ptr + at), tl.where(d < D // 2, -sin, sin)


@triton.jit
def _keep_nan(bits):
    """Shifted e4m3 without its sign: the NaN, of all ones, becomes that of fp16."""
    # A selection takes more registers than there are.
    return bits | ((bits + 0x80) & 0x4000)


@triton.jit
def _fp8_halves(pairs):
    """Two e4m3 in every 16 bits -> those of the low and those of the high bytes in fp16, over 256.

    Pairs of 16 bits reach the matrix units as bf16 does, which takes less time than single bytes.
    """
    low = ((pairs & 0x80) << 8) | _keep_nan((pairs & 0x7F) << 7)
    high = (pairs & -0x8000) | _keep_nan((pairs >> 1) & 0x3F80)
    return low.to(tl.float16, bitcast=True), high.to(tl.float16, bitcast=True)


@triton.jit
def kv_write_kernel(
    qkv_ptr, k_norm_ptr, cos_ptr, sin_ptr, cache_ptr, table_ptr, position_ptr, eps, value_offset, table_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, NORM: tl.constexpr,
    EARLY: tl.constexpr = 0,
):  # fmt: skip
    """Keys and values of positions that others of this very call will read."""
    wait_for_inputs(EARLY)
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(position_ptr + row)
    d = tl.arange(0, D)[None]
    cos, sin = _angles(cos_ptr, sin_ptr, position, d, D)
    heads = qkv_ptr + row * (HEADS * (GROUP + 2) * D) + HEADS * GROUP * D + head * D + tl.zeros([1, 1], tl.int32)
    key = _norm_and_rope(heads, d, k_norm_ptr, cos, sin, eps, NORM, D)
    value = tl.load(heads + HEADS * D + d)
    block = tl.load(table_ptr + row * table_stride + position // PAGE).to(tl.int64)
    at = cache_ptr + ((block * PAGE + position % PAGE) * HEADS + head) * D + d
    start_next(EARLY)
    tl.store(at, key.to(cache_ptr.dtype.element_ty))
    tl.store(at + value_offset, value.to(cache_ptr.dtype.element_ty))


@triton.jit
def paged_attention_kernel(
    qkv_ptr, q_norm_ptr, k_norm_ptr, cos_ptr, sin_ptr, cache_ptr, table_ptr, position_ptr, out_ptr,
    eps, scale, value_offset, table_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, NORM: tl.constexpr,
    BLOCK: tl.constexpr, WRITE: tl.constexpr, EXACT: tl.constexpr, FP8: tl.constexpr, EARLY: tl.constexpr = 0,
):  # fmt: skip
    """One key head of one row a program, a row's heads side by side as its lines of the cache are.

    With WRITE its own key and value are made here, else they are there. With FP8 the cache is read in pairs and
    multiplied in fp16, even channels apart from odd ones.
    """
    wait_for_inputs(EARLY)
    precision: tl.constexpr = "ieee" if EXACT else "tf32"
    head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    position = tl.load(position_ptr + row)
    d = tl.arange(0, D)[None]
    group = tl.arange(0, NUM_Q)[:, None]
    cos, sin = _angles(cos_ptr, sin_ptr, position, d, D)
    heads = qkv_ptr + row * (HEADS * (GROUP + 2) * D)
    q_at = heads + (head * GROUP + group % GROUP) * D
    q = _norm_and_rope(q_at, d, q_norm_ptr, cos, sin, eps, NORM, D)
    if WRITE:
        k_at = heads + HEADS * GROUP * D + head * D + tl.zeros([1, 1], tl.int32)
        key = _norm_and_rope(k_at, d, k_norm_ptr, cos, sin, eps, NORM, D).to(cache_ptr.dtype.element_ty)
        value = tl.load(k_at + HEADS * D + d).to(cache_ptr.dtype.element_ty)
        block = tl.load(table_ptr + row * table_stride + position // PAGE).to(tl.int64)
        at = cache_ptr + ((block * PAGE + position % PAGE) * HEADS + head) * D + d
        tl.store(at, key)
        tl.store(at + value_offset, value)
        best = tl.sum(q * key.to(tl.float32), 1) * scale
        weight = tl.full([NUM_Q], 1.0, tl.float32)
        total = tl.zeros([NUM_Q, D], tl.float32) + value.to(tl.float32)
        length = position
    else:
        best = tl.full([NUM_Q], float("-inf"), tl.float32)
        weight = tl.zeros([NUM_Q], tl.float32)
        total = tl.zeros([NUM_Q, D], tl.float32)
        length = position + 1
    if FP8:
        q_even, q_odd = tl.split(tl.reshape(q.to(tl.float16), [NUM_Q, D // 2, 2]))
        total_even, total_odd = tl.split(tl.reshape(total, [NUM_Q, D // 2, 2]))
        pair = tl.arange(0, D // 2)[None]
        pair_ptr = cache_ptr.to(tl.pointer_type(tl.int16))
    else:
        q = q.to(cache_ptr.dtype.element_ty)
    steps = tl.arange(0, BLOCK)
    for start in range(0, length, BLOCK):
        place = start + steps
        inside = place < length
        blocks = tl.load(table_ptr + row * table_stride + place // PAGE, mask=inside, other=0).to(tl.int64)
        line = ((blocks * PAGE + place % PAGE) * HEADS + head)[:, None]
        if FP8:
            pairs = pair_ptr + line * (D // 2) + pair
            keys_even, keys_odd = _fp8_halves(tl.load(pairs, mask=inside[:, None], other=0))
            scores = tl.dot(q_odd, tl.trans(keys_odd), tl.dot(q_even, tl.trans(keys_even))) * (scale * 256.0)
        else:
            lines = cache_ptr + line * D + d
            keys = tl.load(lines, mask=inside[:, None], other=0.0)
            scores = tl.dot(q, tl.trans(keys), input_precision=precision) * scale
        scores = tl.where(inside[None], scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        shares = tl.exp(scores - higher[:, None])
        fade = tl.exp(best - higher)
        weight = weight * fade + tl.sum(shares, 1)
        if FP8:
            halves = _fp8_halves(tl.load(pairs + value_offset // 2, mask=inside[:, None], other=0))
            shares_256 = (shares * 256.0).to(tl.float16)
            total_even = total_even * fade[:, None] + tl.dot(shares_256, halves[0])
            total_odd = total_odd * fade[:, None] + tl.dot(shares_256, halves[1])
        else:
            values = tl.load(lines + value_offset, mask=inside[:, None], other=0.0)
            total = total * fade[:, None] + tl.dot(shares.to(values.dtype), values, input_precision=precision)
        best = higher
    if FP8:
        total = tl.reshape(tl.join(total_even, total_odd), [NUM_Q, D])
    out = total / weight[:, None]
    start_next(EARLY)
    out_at = out_ptr + row * (HEADS * GROUP * D) + (head * GROUP + group) * D + d
    tl.store(out_at, out.to(out_ptr.dtype.element_ty), mask=group < GROUP)


@triton.jit(do_not_specialize=["start"])
def predictor_attention_kernel(
    qkv_ptr, q_norm_ptr, k_norm_ptr, cos_ptr, sin_ptr, cache_ptr, out_ptr, eps, scale, value_offset, start,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, LENGTH: tl.constexpr, TOKENS: tl.constexpr,
    PAST: tl.constexpr, EARLY: tl.constexpr = 0,
):  # fmt: skip
    """The predictor's: TOKENS new positions of one row behind ``start`` in the cache, PAST with the padding.

    New keys and values never leave the registers they come in. What is written is written last: a load does not pass a
    store that comes before it.
    """
    wait_for_inputs(EARLY)
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    d = tl.arange(0, D)[None]
    line = cache_ptr + (row * LENGTH * HEADS + head) * D + d
    if PAST > 0:
        place = tl.arange(0, PAST)
        is_past = place < start
        past = line + place[:, None] * HEADS * D
        past_keys = tl.load(past, mask=is_past[:, None], other=0.0)
        past_values = tl.load(past + value_offset, mask=is_past[:, None], other=0.0)
    queries, keys, values = (), (), ()
    for token in tl.static_range(TOKENS):
        cos, sin = _angles(cos_ptr, sin_ptr, start + token, d, D)
        heads = qkv_ptr + (row * TOKENS + token) * (HEADS * (GROUP + 2) * D) + tl.zeros([1, 1], tl.int32)
        for group in tl.static_range(GROUP):
            q_at = heads + (head * GROUP + group) * D
            query = _norm_and_rope(q_at, d, q_norm_ptr, cos, sin, eps, True, D) * scale
            queries = queries + (query,)  # type: ignore[assignment]  # noqa: RUF005
        k_at = heads + (HEADS * GROUP + head) * D
        key = _norm_and_rope(k_at, d, k_norm_ptr, cos, sin, eps, True, D).to(cache_ptr.dtype.element_ty)
        keys = keys + (key,)  # type: ignore[assignment]  # noqa: RUF005
        values = values + (tl.load(k_at + HEADS * D + d),)  # type: ignore[assignment]  # noqa: RUF005
    for token in tl.static_range(TOKENS):
        for group in tl.static_range(GROUP):
            query = queries[token * GROUP + group]
            best, weight = tl.full([1], float("-inf"), tl.float32), tl.zeros([1], tl.float32)
            total = tl.zeros([1, D], tl.float32)
            if PAST > 0:
                scores = tl.sum(past_keys.to(tl.float32) * query, 1)
                scores = tl.where(is_past, scores, float("-inf"))
                best = tl.max(scores, 0, keep_dims=True)
                shares = tl.exp(scores - best)
                weight = tl.sum(shares, 0, keep_dims=True)
                total = tl.sum(past_values.to(tl.float32) * shares[:, None], 0, keep_dims=True)
            for new in tl.static_range(token + 1):
                score = tl.sum(keys[new].to(tl.float32) * query, 1)
                higher = tl.maximum(best, score)
                fade, share = tl.exp(best - higher), tl.exp(score - higher)
                weight = weight * fade + share
                total = total * fade[:, None] + values[new].to(tl.float32) * share[:, None]
                best = higher
            at = (row * TOKENS + token) * (HEADS * GROUP * D) + (head * GROUP + group) * D
            tl.store(out_ptr + at + d, (total / weight[:, None]).to(out_ptr.dtype.element_ty))
    start_next(EARLY)
    for token in tl.static_range(TOKENS):
        new_at = line + (start + token) * HEADS * D
        tl.store(new_at, keys[token])
        tl.store(new_at + value_offset, values[token])


@triton.jit
def ring_attention_kernel(
    qkv_ptr, cos_ptr, sin_ptr, ring_ptr, slot_ptr, first_ptr, out_ptr, scale, slot_stride, window, num_angles,
    HEADS: tl.constexpr, D: tl.constexpr, RING: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr,
    EXACT: tl.constexpr, EARLY: tl.constexpr = 0,
):  # fmt: skip
    """The codec's: TOKENS new positions of a slot over its last ``window``, kept in a ring of RING positions."""
    wait_for_inputs(EARLY)
    precision: tl.constexpr = "ieee" if EXACT else "tf32"
    head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    slot = tl.load(slot_ptr + row).to(tl.int64)
    first = tl.load(first_ptr + row)
    d = tl.arange(0, D)[None]
    place = tl.arange(0, BLOCK)
    last = first + TOKENS - 1
    held = last - ((last % RING) - place + RING) % RING
    past = (place < RING) & (held >= 0) & (held < first)
    ring = ring_ptr + slot * slot_stride
    value_offset = RING * HEADS * D
    at = ring + (place * HEADS + head)[:, None] * D + d
    keys = tl.load(at, mask=past[:, None], other=0.0)
    values = tl.load(at + value_offset, mask=past[:, None], other=0.0)
    row_size = HEADS * 3 * D
    for token in tl.static_range(TOKENS):
        cos, sin = _angles(cos_ptr, sin_ptr, (first + token) % num_angles, d, D)
        k_at = qkv_ptr + (row * TOKENS + token) * row_size + (HEADS + head) * D + tl.zeros([1, 1], tl.int32)
        key = _norm_and_rope(k_at, d, qkv_ptr, cos, sin, 0.0, False, D).to(keys.dtype)
        value = tl.load(k_at + HEADS * D + d)
        new = ((place < RING) & (held == first + token))[:, None]
        keys = tl.where(new, key, keys)
        values = tl.where(new, value, values)
        new_at = ring + (((first + token) % RING) * HEADS + head) * D + d
        tl.store(new_at, key)
        tl.store(new_at + value_offset, value)
    token = tl.arange(0, NUM_Q)[:, None]
    real = tl.minimum(token, TOKENS - 1)
    cos, sin = _angles(cos_ptr, sin_ptr, (first + real) % num_angles, d, D)
    q_at = qkv_ptr + (row * TOKENS + real) * row_size + head * D
    q = _norm_and_rope(q_at, d, qkv_ptr, cos, sin, 0.0, False, D).to(keys.dtype)
    scores = tl.dot(q, tl.trans(keys), input_precision=precision) * scale
    seen = (held[None] <= first + real) & (held[None] > first + real - window) & (held[None] >= 0)
    scores = tl.where(seen & (place < RING)[None], scores, float("-inf"))
    shares = tl.exp(scores - tl.max(scores, 1)[:, None])
    weight = tl.sum(shares, 1)[:, None]
    out = tl.dot(shares.to(values.dtype), values, input_precision=precision) / weight
    out_at = out_ptr + (row * TOKENS + token) * (HEADS * D) + head * D + d
    tl.store(out_at, out.to(out_ptr.dtype.element_ty), mask=token < TOKENS)
