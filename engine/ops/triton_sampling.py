"""Sampling in one launch: penalty and bans (code 0), temperature, top-k, top-p, Philox, argmax.

Limits are found by their bits, the highest first: the largest key that still has enough candidates, or enough mass, at
or above it. Logits that are bf16 have 16 bits to find, others 32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.ops.triton_early import wait_for_inputs


@triton.jit
def _exponential(word):
    """-log of (word + 1/2) / 2^32, precise at both ends."""
    near_zero = word.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    left = (word ^ 0xFFFFFFFF).to(tl.uint32).to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    rounded = 1.0 - left
    gap = 1.0 - rounded
    close = tl.where(gap == 0.0, left, -tl.log(rounded) * left / tl.where(gap == 0.0, 1.0, gap))
    return tl.where(near_zero < 0.5, -tl.log(near_zero), close)


@triton.jit
def _philox(c0, c1, c2, c3, k0, k1):
    """The first word of Philox4x32-10, all uint32."""
    for _ in tl.static_range(10):
        high = tl.umulhi(c2, tl.full([1], 0xCD9E8D57, tl.uint32)) ^ c1 ^ k0
        low = c2 * tl.full([1], 0xCD9E8D57, tl.uint32)
        c2, c3 = (
            tl.umulhi(c0, tl.full([1], 0xD2511F53, tl.uint32)) ^ c3 ^ k1,
            c0 * tl.full([1], 0xD2511F53, tl.uint32),
        )
        c0, c1 = high, low
        k0 = k0 + tl.full([1], 0x9E3779B9, tl.uint32)
        k1 = k1 + tl.full([1], 0xBB67AE85, tl.uint32)
    return c0


@triton.jit
def _top_k_threshold(inside, keys, wanted, BITS: tl.constexpr):
    """The largest key with ``wanted`` of ``inside`` at it or above it, or 0.

    Two bits at a time: the three counts that this takes are summed as one number, 20 bits for each.
    """
    found = tl.zeros([1], tl.uint32)
    bit = tl.full([1], 1 << (BITS - 2), tl.uint32)
    for _ in range(BITS // 2):
        low, middle, high = found + bit, found + 2 * bit, found + 3 * bit
        counts = (keys >= low).to(tl.int64)
        counts += ((keys >= middle).to(tl.int64) << 20) + ((keys >= high).to(tl.int64) << 40)
        total = tl.sum(tl.where(inside, counts, 0), 0)
        found += tl.where((total & 0xFFFFF) >= wanted, bit, 0)
        found += tl.where(((total >> 20) & 0xFFFFF) >= wanted, bit, 0)
        found += tl.where((total >> 40) >= wanted, bit, 0)
        bit = bit >> 2
    return found


@triton.jit
def _top_p_threshold(shares, keys, wanted, BITS: tl.constexpr):
    """The largest key with so much mass above it, or 0."""
    found = tl.zeros([1], tl.uint32)
    bit = tl.full([1], 1 << (BITS - 1), tl.uint32)
    for _ in range(BITS):
        higher = found | bit
        found = tl.where(tl.sum(tl.where(keys > higher, shares, 0.0), 0) >= wanted, higher, found)
        bit = bit >> 1
    return found


@triton.jit
def _row_noise(ids, seed, place, frame):
    """-log of variates for ``ids`` [BLOCK] of one row, those of ``philox_exponential``."""
    zeros = ids * 0
    word = _philox(
        ids.to(tl.uint32), (zeros + place).to(tl.uint32), (zeros + frame).to(tl.uint32),
        (zeros + (place >> 32)).to(tl.uint32), (zeros + seed).to(tl.uint32), (zeros + (seed >> 32)).to(tl.uint32),
    )  # fmt: skip
    return -tl.log(_exponential(word))


@triton.jit
def sort_keys(values, BITS: tl.constexpr):
    """Unsigned integers in the order of fp32 values."""
    bits = values.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ -1, bits ^ -2147483648).to(tl.uint32, bitcast=True) >> (32 - BITS)


@triton.jit
def sample_kernel(
    logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, seed_ptr, place_ptr, frame_ptr, codebook, out_ptr,
    seen_ptr, slot_ptr, penalty_ptr, forget_ptr, banned_ptr, finite_ptr, num_codes, eos,
    table_ptr, next_ptr, WIDTH: tl.constexpr,
    V: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr, FIRST: tl.constexpr, NEXT: tl.constexpr,
    WIDTH_BLOCK: tl.constexpr, EARLY: tl.constexpr = 0,
):  # fmt: skip
    """One row a program. With NEXT the row of ``table`` [V, WIDTH] that was drawn is copied to ``next``."""
    wait_for_inputs(EARLY)
    row = tl.program_id(0).to(tl.int64)
    ids = tl.arange(0, BLOCK)
    inside = ids < V
    logits = tl.load(logits_ptr + row * V + ids, mask=inside, other=float("-inf")).to(tl.float32)
    frame, seed, place = tl.load(frame_ptr + row), tl.load(seed_ptr + row), tl.load(place_ptr + row) | codebook
    temperature, top_k, top_p = tl.load(temperature_ptr + row), tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    if FIRST:
        bad = inside & ~(tl.abs(logits) < float("inf"))
        tl.store(finite_ptr + row, tl.sum(bad.to(tl.int32), 0) == 0)
        past_at = seen_ptr + tl.load(slot_ptr + row) * V + ids
        past = (tl.load(past_at, mask=inside, other=0) != 0) & (frame > 0) & (ids != tl.load(forget_ptr + row))
        penalty = tl.load(penalty_ptr + row)
        logits = tl.where(past, tl.where(logits > 0, logits / penalty, logits * penalty), logits)
        may = (ids < num_codes) | ((ids == eos) & (tl.load(banned_ptr + row) == 0))
        inside = inside & may
        logits = tl.where(inside, logits, float("-inf"))
    keys = sort_keys(logits, BITS)
    limit = tl.zeros([1], tl.uint32)
    if top_k > 0:
        limit = _top_k_threshold(inside, keys, top_k, BITS)
    kept = inside & (keys >= limit)
    scaled = tl.where(kept, logits / tl.where(temperature == 0.0, 1.0, temperature), float("-inf"))
    if top_p < 1.0:
        shares = tl.exp(scaled - tl.max(scaled, 0))
        wanted = top_p * tl.sum(shares, 0)
        any_beyond = tl.sum(tl.where(keys > 0, shares, 0.0), 0) >= wanted
        beyond = _top_p_threshold(shares, keys, wanted, BITS)
        cut = tl.where(keys <= beyond, float("-inf"), scaled)
        scaled = tl.where(any_beyond, cut, scaled)
    noisy = scaled + _row_noise(ids, seed, place, frame)
    code = tl.argmax(tl.where(temperature == 0.0, logits, noisy), 0)
    code = tl.minimum(tl.maximum(code, 0), V - 1)
    tl.store(out_ptr + row, code.to(tl.int64))
    if FIRST:
        tl.store(past_at, (past | (ids == code)).to(tl.int8), mask=ids < V)
    if NEXT:
        wide = tl.arange(0, WIDTH_BLOCK)
        found = tl.load(table_ptr + code.to(tl.int64) * WIDTH + wide, mask=wide < WIDTH)
        tl.store(next_ptr + row * WIDTH + wide, found, mask=wide < WIDTH)


@triton.jit
def speech_sample_kernel(
    logits_ptr, in_block_ptr, in_rest_ptr, too_soon_ptr, temperature_ptr, top_p_ptr, top_k_ptr, min_repeats_ptr,
    history_ptr, seed_ptr, place_ptr, frame_ptr, out_ptr, num_codes, stop, fill,
    V: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr, MERGE: tl.constexpr,
    NUCLEUS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """One row a program: ``limit_control``, then ``sample_rows``; ``out`` takes the id and whether all is finite."""
    row = tl.program_id(0).to(tl.int64)
    ids = tl.arange(0, BLOCK)
    inside = ids < V
    lowest = float("-inf")
    logits = tl.load(logits_ptr + row * V + ids, mask=inside, other=lowest)
    finite = tl.sum((inside & ~(tl.abs(logits) < float("inf"))).to(tl.int32), 0) == 0
    ending = tl.where((ids == fill) & (tl.load(in_rest_ptr + row) != 0), lowest, logits)
    control = inside & (ids >= num_codes)
    if MERGE:
        parts = tl.where(control, ending, lowest)
        largest = tl.max(parts, 0)
        ending = tl.where(ids == stop, largest + tl.log(tl.sum(tl.exp(parts - largest), 0)), lowest)
    ending = tl.where(tl.load(too_soon_ptr + row) != 0, lowest, ending)
    fill_only = tl.where(ids == fill, logits, lowest)
    logits = tl.where(control, tl.where(tl.load(in_block_ptr + row) != 0, fill_only, ending), logits)
    logits = tl.where(inside & (finite == 0), 0.0, logits)
    temperature, frame = tl.load(temperature_ptr + row), tl.load(frame_ptr + row)
    seed, place = tl.load(seed_ptr + row), tl.load(place_ptr + row)
    scaled = logits / tl.where(temperature == 0.0, 1.0, temperature)
    keys = sort_keys(scaled, 32)
    limit = _top_k_threshold(inside, keys, tl.load(top_k_ptr + row), 32)
    shares = tl.exp(scaled - tl.max(scaled, 0))
    beyond = _top_p_threshold(shares, keys, tl.load(top_p_ptr + row) * tl.sum(shares, 0), 32)
    kept = inside & (keys >= limit) & (keys > beyond)
    code = tl.argmax(tl.where(kept, scaled + _row_noise(ids, seed, place | NUCLEUS, frame), lowest), 0)
    history = tl.load(history_ptr + row * WINDOW + tl.arange(0, WINDOW))
    others = tl.where(ids == code, lowest, scaled)
    is_recent = tl.sum((history == code).to(tl.float32), 0) >= tl.load(min_repeats_ptr + row)
    if is_recent & (tl.max(others, 0) > lowest):
        code = tl.argmax(others + _row_noise(ids, seed, place | WHOLE, frame), 0)
    code = tl.where(temperature == 0.0, tl.argmax(logits, 0), code)
    tl.store(out_ptr + 2 * row, code.to(tl.int32))
    tl.store(out_ptr + 2 * row + 1, finite.to(tl.int32))
