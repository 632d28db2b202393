"""Activations to fp8, with one scale a row."""

from __future__ import annotations

import triton
import triton.language as tl

from engine.ops.triton_early import start_next, wait_for_inputs

# The largest magnitude of e4m3, and the least scale.
LARGEST: tl.constexpr = tl.constexpr(448.0)
MIN_SCALE: tl.constexpr = tl.constexpr(1e-12)


@triton.jit
def quantize_rows_kernel(
    x_ptr, out_ptr, scale_ptr, K: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr = 0
):  # fmt: skip
    """x [rows, K] -> fp8 and the scale of each row."""
    wait_for_inputs(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * K + at, mask=at < K, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), 0) / LARGEST, MIN_SCALE)
    start_next(EARLY)
    tl.store(out_ptr + row * K + at, (x / scale).to(out_ptr.dtype.element_ty), mask=at < K)
    tl.store(scale_ptr + row, scale)


@triton.jit(do_not_specialize=["rows"])
def norm_quantize_kernel(
    x_ptr, parts_ptr, weight_ptr, out_ptr, scale_ptr, rows, eps, H: tl.constexpr, PARTS: tl.constexpr,
    BLOCK: tl.constexpr, EARLY: tl.constexpr = 0,
):  # fmt: skip
    """As ``sum_norm_kernel``: x [rows, H] += parts [PARTS, rows, H]; norm(x) -> fp8 and the scale of each row."""
    wait_for_inputs(EARLY)
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < H
    x = tl.load(x_ptr + row * H + at, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(PARTS):
        x += tl.load(parts_ptr + (part * rows + row) * H + at, mask=inside, other=0.0)
    rounded = x.to(x_ptr.dtype.element_ty)
    if PARTS > 0:
        tl.store(x_ptr + row * H + at, rounded, mask=inside)
    x = rounded.to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / H + eps)
    y = y.to(x_ptr.dtype.element_ty).to(tl.float32) * weight
    scale = tl.maximum(tl.max(tl.abs(y), 0) / LARGEST, MIN_SCALE)
    start_next(EARLY)
    tl.store(out_ptr + row * H + at, (y / scale).to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(scale_ptr + row, scale)
