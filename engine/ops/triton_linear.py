"""Products of few rows with what stands before and after them in one launch: RMSNorm, SwiGLU, residual.

One or two rows only stream their weights, so the norm's sum of squares, taken along the way, is free. Up to some dozens
of rows a product that is to be added to the residual stream is shared out along its depth, and its parts are summed up
by the next norm of the stream.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.ops.triton_early import start_next, wait_for_inputs

# Bytes that one prefetch brings.
PIECE = tl.constexpr(64)


def num_pieces(row_bytes: int, most: int) -> int:
    """Return how many pieces of each row are fetched ahead: ``most``, or none of short rows."""
    return most if most * PIECE.value <= row_bytes else 0


@triton.jit
def prefetch_rows(rows, PREFETCH: tl.constexpr) -> None:
    """Fetch the first PREFETCH pieces of what ``rows`` point at into the L2 cache; nothing waits for it."""
    at = rows[:, None] + (tl.arange(0, PREFETCH) * (PIECE // (rows.dtype.element_ty.primitive_bitwidth // 8)))[None]
    fetch: tl.constexpr = "prefetch.global.L2 [$1]; mov.u32 $0, 0;"
    tl.inline_asm_elementwise(fetch, "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def gemv_kernel(
    x_ptr, weight_ptr, scale_ptr, norm_ptr, out_ptr, eps, N, K,
    ROWS: tl.constexpr, NORM: tl.constexpr, SWIGLU: tl.constexpr, ADD: tl.constexpr, SCALE: tl.constexpr,
    EVEN: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    EARLY: tl.constexpr = 0, PREFETCH: tl.constexpr = 0,
):  # fmt: skip
    """out [ROWS, N] = f(norm(x [ROWS, K]) weight^T); with SWIGLU weight is [2 N, K]; with ADD out is added to.

    With EVEN BLOCK_K divides K. With SCALE each output of ``weight`` has one. One row a program, the rows' programs
    side by side: all but one find the weights in the cache. Weights go from memory to registers as they lie, without
    matrix units, and are summed up over threads once, at the end.
    """
    row = tl.program_id(0) % ROWS
    columns = tl.program_id(0) // ROWS * BLOCK_N + tl.arange(0, BLOCK_N)
    steps = tl.arange(0, BLOCK_K)[None]
    weight_rows = weight_ptr + columns.to(tl.int64) * K
    weight_at = weight_rows[:, None] + steps
    if PREFETCH > 0:
        prefetch_rows(weight_rows, PREFETCH)
        if SWIGLU:
            prefetch_rows(weight_rows + N * K, PREFETCH)
    wait_for_inputs(EARLY)
    x_at = x_ptr + row * K + steps
    totals = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    totals_up = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    squares = tl.zeros([1, BLOCK_K], tl.float32)
    for k in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        inside = None if EVEN else steps < K - k
        other = None if EVEN else 0.0
        weight = tl.load(weight_at + k, mask=inside, other=other)
        if SWIGLU:
            up = tl.load(weight_at + N * K + k, mask=inside, other=other)
        x = tl.load(x_at + k, mask=inside, other=other).to(tl.float32)
        if NORM:
            squares += x * x
            x = x * tl.load(norm_ptr + k + steps, mask=inside, other=other).to(tl.float32)
        totals += x * weight.to(tl.float32)
        if SWIGLU:
            totals_up += x * up.to(tl.float32)
    total = tl.sum(totals, 1)
    total_up = tl.sum(totals_up, 1)
    if SCALE:
        total *= tl.load(scale_ptr + columns)
        if SWIGLU:
            total_up *= tl.load(scale_ptr + N + columns)
    inverse = 1.0
    if NORM:
        inverse = tl.rsqrt(tl.sum(tl.sum(squares, 1), 0) / K + eps)
        total = total * inverse
    if SWIGLU:
        total = total * tl.sigmoid(total) * (total_up * inverse)
    at = out_ptr + row.to(tl.int64) * N + columns
    if ADD:
        total += tl.load(at).to(tl.float32)
    tl.store(at, total.to(out_ptr.dtype.element_ty))


@triton.jit(do_not_specialize=["rows"])
def gemm_kernel(
    x_ptr, weight_ptr, x_scale_ptr, scale_ptr, out_ptr, rows, N, K,
    SWIGLU: tl.constexpr, PARTS: tl.constexpr, EXACT: tl.constexpr, SCALED: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr = 0, PREFETCH: tl.constexpr = 0,
):  # fmt: skip
    """out[part] = x weight^T [rows, N] over that part of K; with SWIGLU weight is [2 N, K], and there is one part.

    With SCALED each row of x and each output of ``weight`` has a scale: both are fp8.
    """
    precision: tl.constexpr = "ieee" if EXACT else "tf32"
    part = tl.program_id(0) % PARTS
    columns = tl.program_id(0) // PARTS * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    in_rows = (row < rows)[:, None]
    depth = K // PARTS
    steps = tl.multiple_of(part * depth, BLOCK_K) + tl.arange(0, BLOCK_K)[None]
    x_at = x_ptr + row[:, None] * K + steps
    weight_at = weight_ptr + columns[:, None] * K + steps
    if PREFETCH > 0:
        weight_rows = weight_ptr + columns * K + part * depth
        prefetch_rows(weight_rows, PREFETCH)
        if SWIGLU:
            prefetch_rows(weight_rows + N * K, PREFETCH)
    wait_for_inputs(EARLY)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    total_up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in range(0, depth, BLOCK_K):
        x = tl.load(x_at + k, mask=in_rows, other=0.0)
        total = tl.dot(x, tl.trans(tl.load(weight_at + k)), total, input_precision=precision)
        if SWIGLU:
            up = tl.load(weight_at + N * K + k)
            total_up = tl.dot(x, tl.trans(up), total_up, input_precision=precision)
    if SCALED:
        x_scale = tl.load(x_scale_ptr + row, mask=row < rows, other=0.0)[:, None]
        total *= x_scale * tl.load(scale_ptr + columns)[None]
        if SWIGLU:
            total_up *= x_scale * tl.load(scale_ptr + N + columns)[None]
    if SWIGLU:
        total = total * tl.sigmoid(total) * total_up
    start_next(EARLY)
    at = (part * rows + row)[:, None] * N + columns[None]
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=in_rows)


@triton.jit(do_not_specialize=["rows"])
def sum_norm_kernel(
    x_ptr, parts_ptr, weight_ptr, out_ptr, rows, eps, H: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
    EARLY: tl.constexpr = 0,
):  # fmt: skip
    """x [rows, H] += parts [PARTS, rows, H], summed up in their order; out = norm(x)."""
    wait_for_inputs(EARLY)
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < H
    x = tl.load(x_ptr + row * H + at, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(PARTS):
        x += tl.load(parts_ptr + (part * rows + row) * H + at, mask=inside, other=0.0)
    rounded = x.to(x_ptr.dtype.element_ty)
    start_next(EARLY)
    tl.store(x_ptr + row * H + at, rounded, mask=inside)
    x = rounded.to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / H + eps)
    y = y.to(out_ptr.dtype.element_ty).to(tl.float32) * weight
    tl.store(out_ptr + row * H + at, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def norm_kernel(
    x_ptr, weight_ptr, out_ptr, eps, H: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr = 0
):  # fmt: skip
    wait_for_inputs(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * H + at, mask=at < H, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + at, mask=at < H, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / H + eps)
    y = y.to(out_ptr.dtype.element_ty).to(tl.float32) * weight
    start_next(EARLY)
    tl.store(out_ptr + row * H + at, y.to(out_ptr.dtype.element_ty), mask=at < H)


@triton.jit
def swiglu_kernel(x_ptr, out_ptr, width, BLOCK: tl.constexpr):
    """x [rows, 2 * width] -> out [rows, width]."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate_at = x_ptr + row * 2 * width + at
    gate = tl.load(gate_at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_at + width, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + at, (gate * tl.sigmoid(gate) * up).to(out_ptr.dtype.element_ty), mask=inside)
