"""Products of few rows with what stands before and after them in one launch: RMSNorm, SwiGLU, residual.

For few rows a product only streams its weights, so the norm's sum of squares, taken along the way, is free.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.triton_overlap import begin, prefetch


@triton.jit(do_not_specialize=["num_rows"])
def linear_kernel(
    x_ptr, weight_ptr, norm_ptr, out_ptr, num_rows, eps, N, K,
    NORM: tl.constexpr, SWIGLU: tl.constexpr, ADD: tl.constexpr,
    EXACT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """out [rows, N] = f(norm(x [rows, K]) weight^T); with SWIGLU weight is [2 N, K]; with ADD out is added to."""
    precision: tl.constexpr = "ieee" if EXACT else "tf32"
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    steps = tl.arange(0, BLOCK_K)
    in_rows = rows[:, None] < num_rows
    x_at = x_ptr + rows[:, None].to(tl.int64) * K + steps[None]
    weight_at = weight_ptr + columns[None].to(tl.int64) * K + steps[:, None]
    if EARLY:
        lines = weight_ptr + columns[:, None].to(tl.int64) * K + tl.arange(0, 8)[None] * 64
        for k in range(0, K, 512):
            prefetch(lines + k, EARLY)
            if SWIGLU:
                prefetch(lines + N * K + k, EARLY)
    begin(EARLY)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    total_up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    squares = tl.zeros([BLOCK_M], tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_at + k, mask=in_rows, other=0.0)
        weight = tl.load(weight_at + k)
        if NORM:
            wide = x.to(tl.float32)
            squares += tl.sum(wide * wide, 1)
            scale = tl.load(norm_ptr + k + steps).to(tl.float32)
            x = (wide * scale[None]).to(x.dtype)
        total = tl.dot(x, weight, total, input_precision=precision)
        if SWIGLU:
            up = tl.load(weight_at + N * K + k)
            total_up = tl.dot(x, up, total_up, input_precision=precision)
    if NORM:
        inverse = tl.rsqrt(squares / K + eps)[:, None]
        total = total * inverse
        total_up = total_up * inverse
    if SWIGLU:
        total = total * tl.sigmoid(total) * total_up
    at = out_ptr + rows[:, None].to(tl.int64) * N + columns[None]
    if ADD:
        total += tl.load(at, mask=in_rows, other=0.0).to(tl.float32)
    tl.store(at, total.to(out_ptr.dtype.element_ty), mask=in_rows)


@triton.jit
def gemv_kernel(
    x_ptr, weight_ptr, norm_ptr, out_ptr, eps, N, K,
    ROWS: tl.constexpr, NORM: tl.constexpr, SWIGLU: tl.constexpr, ADD: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """As ``linear_kernel`` for ROWS (a power of two) rows: weights go from memory to registers, without matrix units."""
    rows = tl.arange(0, ROWS)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    steps = tl.arange(0, BLOCK_K)
    if EARLY:
        lines = weight_ptr + columns[:, None].to(tl.int64) * K + tl.arange(0, 8)[None] * 64
        for k in range(0, K, 512):
            prefetch(lines + k, EARLY)
            if SWIGLU:
                prefetch(lines + N * K + k, EARLY)
    begin(EARLY)
    weight_at = weight_ptr + columns[:, None].to(tl.int64) * K + steps[None]
    total = tl.zeros([ROWS, BLOCK_N], tl.float32)
    total_up = tl.zeros([ROWS, BLOCK_N], tl.float32)
    squares = tl.zeros([ROWS], tl.float32)
    for k in range(0, K, BLOCK_K):
        weight = tl.load(weight_at + k).to(tl.float32)
        x = tl.load(x_ptr + rows[:, None] * K + k + steps[None]).to(tl.float32)
        if NORM:
            squares += tl.sum(x * x, 1)
            x = x * tl.load(norm_ptr + k + steps).to(tl.float32)[None]
        total += tl.sum(x[:, None, :] * weight[None], 2)
        if SWIGLU:
            up = tl.load(weight_at + N * K + k).to(tl.float32)
            total_up += tl.sum(x[:, None, :] * up[None], 2)
    if NORM:
        inverse = tl.rsqrt(squares / K + eps)[:, None]
        total = total * inverse
        total_up = total_up * inverse
    if SWIGLU:
        total = total * tl.sigmoid(total) * total_up
    at = out_ptr + rows[:, None].to(tl.int64) * N + columns[None]
    if ADD:
        total += tl.load(at).to(tl.float32)
    tl.store(at, total.to(out_ptr.dtype.element_ty))


@triton.jit
def norm_kernel(x_ptr, weight_ptr, out_ptr, eps, H: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * H + at, mask=at < H, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + at, mask=at < H, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / H + eps)
    y = y.to(out_ptr.dtype.element_ty).to(tl.float32) * weight
    tl.store(out_ptr + row * H + at, y.to(out_ptr.dtype.element_ty), mask=at < H)


@triton.jit
def swiglu_kernel(x_ptr, out_ptr, width, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """x [rows, 2 * width] -> out [rows, width]."""
    begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate_at = x_ptr + row * 2 * width + at
    gate = tl.load(gate_at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_at + width, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + at, (gate * tl.sigmoid(gate) * up).to(out_ptr.dtype.element_ty), mask=inside)
