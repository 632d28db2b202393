"""Products over int4 weights, with one scale for each group of inputs, converted in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from engine.ops.triton_early import wait_for_inputs

# Inputs of an int4 weight that share a scale, and bytes that hold them.
GROUP: tl.constexpr = tl.constexpr(64)
HALF: tl.constexpr = tl.constexpr(32)
# As bits of an fp32: 2^23, whose last bits are whole numbers. Four bits put there take no slow conversion.
EXPONENT: tl.constexpr = tl.constexpr(0x4B000000)
EXPONENT_AND_OFFSET: tl.constexpr = tl.constexpr(8388608.0 + 8.0)


@triton.jit
def to_float(nibble):
    """Four bits, 8 more than their value, -> the value in fp32."""
    return (nibble.to(tl.int32) | EXPONENT).to(tl.float32, bitcast=True) - EXPONENT_AND_OFFSET


@triton.jit
def int4_gemv_kernel(
    x_ptr, weight_ptr, scale_ptr, norm_ptr, out_ptr, eps, N, K,
    ROWS: tl.constexpr, NORM: tl.constexpr, SWIGLU: tl.constexpr, ADD: tl.constexpr, BLOCK_N: tl.constexpr,
    GROUPS: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr = 0,
):  # fmt: skip
    """As ``gemv_kernel`` over an ``Int4Weight``, ``GROUPS`` groups of inputs at a time."""
    wait_for_inputs(EARLY)
    row = tl.program_id(0) % ROWS
    columns = tl.program_id(0) // ROWS * BLOCK_N + tl.arange(0, BLOCK_N)[:, None, None]
    group = tl.arange(0, GROUPS)[None, :, None]
    half = tl.arange(0, HALF)[None, None, :]
    weight_at = weight_ptr + columns.to(tl.int64) * (K // 2) + group * HALF + half
    scale_at = scale_ptr + columns * (K // GROUP) + group
    low_at = row * K + group * GROUP + half
    norm_at = norm_ptr + group * GROUP + half
    totals = tl.zeros([BLOCK_N, GROUPS, HALF], tl.float32)
    totals_up = tl.zeros([BLOCK_N, GROUPS, HALF], tl.float32)
    squares = tl.zeros([1, GROUPS, HALF], tl.float32)
    for first in tl.range(0, K // GROUP, GROUPS, num_stages=STAGES):
        pairs = tl.load(weight_at + first * HALF)
        scale = tl.load(scale_at + first).to(tl.float32)
        if SWIGLU:
            up = tl.load(weight_at + N * (K // 2) + first * HALF)
            up_scale = tl.load(scale_at + N * (K // GROUP) + first).to(tl.float32)
        low = tl.load(x_ptr + low_at + first * GROUP).to(tl.float32)
        high = tl.load(x_ptr + low_at + first * GROUP + HALF).to(tl.float32)
        if NORM:
            squares += low * low + high * high
            low *= tl.load(norm_at + first * GROUP).to(tl.float32)
            high *= tl.load(norm_at + first * GROUP + HALF).to(tl.float32)
        totals += scale * (low * to_float(pairs & 15) + high * to_float(pairs >> 4))
        if SWIGLU:
            totals_up += up_scale * (low * to_float(up & 15) + high * to_float(up >> 4))
    total = tl.sum(tl.sum(totals, 2), 1)
    total_up = tl.sum(tl.sum(totals_up, 2), 1)
    inverse = 1.0
    if NORM:
        inverse = tl.rsqrt(tl.sum(tl.sum(tl.sum(squares, 2), 1), 0) / K + eps)
        total = total * inverse
    if SWIGLU:
        total = total * tl.sigmoid(total) * (total_up * inverse)
    at = out_ptr + row.to(tl.int64) * N + tl.program_id(0) // ROWS * BLOCK_N + tl.arange(0, BLOCK_N)
    if ADD:
        total += tl.load(at).to(tl.float32)
    tl.store(at, total.to(out_ptr.dtype.element_ty))


@triton.jit(do_not_specialize=["rows"])
def int4_gemm_kernel(
    x_ptr, weight_ptr, scale_ptr, out_ptr, rows, N, K,
    PARTS: tl.constexpr, EXACT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """As ``gemm_kernel`` over an ``Int4Weight``, a group of inputs at a time.

    A group is converted in registers to what ``dequantize`` gives. Outputs are rows of the tile: what is converted is
    the operand of a product that may stay in registers.
    """
    precision: tl.constexpr = "ieee" if EXACT else "tf32"
    part = tl.program_id(0) % PARTS
    columns = tl.program_id(0) // PARTS * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)[None]
    in_rows = row < rows
    half = tl.arange(0, HALF)
    num_groups = K // GROUP
    depth = num_groups // PARTS
    x_at = x_ptr + row * K + half[:, None]
    weight_at = weight_ptr + columns * (K // 2) + half[None]
    scale_at = scale_ptr + columns * num_groups
    total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for group in range(part * depth, part * depth + depth):
        low = tl.load(x_at + group * GROUP, mask=in_rows, other=0.0)
        high = tl.load(x_at + group * GROUP + HALF, mask=in_rows, other=0.0)
        pairs = tl.load(weight_at + group * HALF)
        scale = tl.load(scale_at + group).to(tl.float32)
        total = tl.dot((to_float(pairs & 15) * scale).to(low.dtype), low, total, input_precision=precision)
        total = tl.dot((to_float(pairs >> 4) * scale).to(low.dtype), high, total, input_precision=precision)
    at = out_ptr + (part * rows + row) * N + columns
    tl.store(at, total.to(out_ptr.dtype.element_ty), mask=in_rows)


@triton.jit
def int4_dequantize_kernel(weight_ptr, scale_ptr, out_ptr, num_groups, BLOCK: tl.constexpr):
    """All groups of an ``Int4Weight``, one after the other, to the dtype of ``out``."""
    group = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[:, None]
    inside = group < num_groups
    half = tl.arange(0, HALF)[None]
    pairs = tl.load(weight_ptr + group * HALF + half, mask=inside, other=0)
    scale = tl.load(scale_ptr + group, mask=inside, other=0.0).to(tl.float32)
    at = out_ptr + group * GROUP + half
    tl.store(at, (to_float(pairs & 15) * scale).to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(at + HALF, (to_float(pairs >> 4) * scale).to(out_ptr.dtype.element_ty), mask=inside)
