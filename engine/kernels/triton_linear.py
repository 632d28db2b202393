"""Products of few rows with what stands before and after them in one launch: RMSNorm, SwiGLU, residual.

For few rows a product only streams its weights, so the norm's sum of squares, taken along the way, is free.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gemv_kernel(
    x_ptr, weight_ptr, norm_ptr, out_ptr, eps, N, K,
    ROWS: tl.constexpr, NORM: tl.constexpr, SWIGLU: tl.constexpr, ADD: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """out [ROWS, N] = f(norm(x [ROWS, K]) weight^T), ROWS a power of two; with SWIGLU weight is [2 N, K]; with ADD out
    is added to. Weights go from memory to registers, without matrix units.
    """
    rows = tl.arange(0, ROWS)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    steps = tl.arange(0, BLOCK_K)
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
def norm_kernel(x_ptr, weight_ptr, out_ptr, eps, H: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * H + at, mask=at < H, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + at, mask=at < H, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / H + eps)
    y = y.to(out_ptr.dtype.element_ty).to(tl.float32) * weight
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
