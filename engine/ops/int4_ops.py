"""The graphs' operations with products over int4 weights, which are there to save memory.

Up to ``MAX_GEMM_ROWS`` rows they are converted in registers, above that for cuBLAS.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
import triton
from torch import Tensor

from engine.ops.parallel_compile import launch
from engine.ops.params import ResidualStream
from engine.ops.triton_int4 import int4_dequantize_kernel, int4_gemm_kernel, int4_gemv_kernel
from engine.ops.triton_ops import TritonOps
from engine.weights.quantize import GROUP, Int4Weight, Weight, dense

# Of one row: outputs of a program, fewer without SwiGLU, and groups of inputs at a time.
INT4_GEMV_COLUMNS, INT4_GEMV_GROUPS, INT4_GEMV_STAGES = (4, 8), 16, 2
MAX_INT4_GEMV_ROWS = 1
INT4_COLUMNS = 64
# Rows of a tile.
INT4_ROWS = (16, 64)
# A product that is shared out has programs enough; a small tile of any other loads farther ahead.
INT4_STAGES, INT4_STAGES_AHEAD = 3, 5
MAX_INT4_PARTS = 8
DEQUANTIZED_GROUPS = 64


class Int4TritonOps(TritonOps):
    """The kernel name ``quantized`` covers the products; off dequantizes, then multiplies."""

    def __init__(self, disabled: Collection[str] = ()) -> None:
        super().__init__(disabled)
        self.max_gemv_rows = MAX_INT4_GEMV_ROWS

    def operand(self, weight: Weight, rows: int, dtype: torch.dtype) -> Weight:
        is_fused = isinstance(weight, Int4Weight) and "quantized" in self.on and rows <= self.max_gemm_rows
        return weight if is_fused and weight.shape[0] % INT4_COLUMNS == 0 else self.dense(weight, dtype)

    def dense(self, weight: Weight, dtype: torch.dtype) -> Tensor:
        if not isinstance(weight, Int4Weight) or "quantized" not in self.on:
            return dense(weight, dtype)
        out = torch.empty(weight.shape, dtype=dtype, device=weight.data.device)
        num_groups = weight.scale.numel()
        launch(int4_dequantize_kernel, triton.cdiv(num_groups, DEQUANTIZED_GROUPS))(
            weight.data, weight.scale, out, num_groups, BLOCK=DEQUANTIZED_GROUPS, num_warps=4
        )
        return out

    def norm_linear(
        self, residual: ResidualStream, norm_weight: Tensor, eps: float, weight: Weight, bias: Tensor | None = None
    ) -> Tensor:
        (rows, size), num_out = residual.x.shape, weight.shape[0]
        fused = self.operand(weight, rows, residual.x.dtype)
        if isinstance(fused, Tensor) or self.fits_gemv(rows, size, num_out):
            return super().norm_linear(residual, norm_weight, eps, fused, bias)
        out = residual.x.new_empty(rows, num_out)
        self.launch_gemm(self.add_rms_norm(residual, norm_weight, eps), fused, out, 1, swiglu=False)
        return out if bias is None else out + bias

    def norm_swiglu(self, residual: ResidualStream, norm_weight: Tensor, eps: float, weight: Weight) -> Tensor:
        (rows, size), num_out = residual.x.shape, weight.shape[0] // 2
        fused = self.operand(weight, rows, residual.x.dtype)
        if isinstance(fused, Tensor) or self.fits_gemv(rows, size, num_out):
            return super().norm_swiglu(residual, norm_weight, eps, fused)
        return self.swiglu(self.norm_linear(residual, norm_weight, eps, fused))

    def num_parts(self, size: int, num_out: int, weight: Weight) -> int:
        if isinstance(weight, Int4Weight):
            return math.gcd(size // GROUP, MAX_INT4_PARTS)
        return super().num_parts(size, num_out, weight)

    def launch_gemv(
        self, x: Tensor, weight: Weight, out: Tensor, norm: Tensor | None, eps: float, swiglu: bool, add: bool,
        scale: Tensor | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(weight, Int4Weight):
            super().launch_gemv(x, weight, out, norm, eps, swiglu, add, scale)
            return
        (rows, size), num_out = x.shape, out.shape[-1]
        columns = INT4_GEMV_COLUMNS[swiglu]
        launch(int4_gemv_kernel, num_out // columns * rows)(
            x, *weight, x if norm is None else norm, out, eps, num_out, size, ROWS=rows, NORM=norm is not None,
            SWIGLU=swiglu, ADD=add, BLOCK_N=columns, GROUPS=math.gcd(size // GROUP, INT4_GEMV_GROUPS),
            STAGES=INT4_GEMV_STAGES, num_warps=4, **self.early(rows),
        )  # fmt: skip

    def launch_gemm(self, x: Tensor, weight: Weight, out: Tensor, num_parts: int, swiglu: bool) -> None:
        if not isinstance(weight, Int4Weight):
            super().launch_gemm(x, weight, out, num_parts, swiglu)
            return
        assert not swiglu, "an int4 product is not fused with SwiGLU"
        (rows, size), num_out = x.shape, out.shape[-1]
        tile_rows = next(tile for tile in INT4_ROWS if rows <= tile)
        is_ahead = num_parts == 1 and tile_rows == INT4_ROWS[0]
        launch(int4_gemm_kernel, num_out // INT4_COLUMNS * num_parts, triton.cdiv(rows, tile_rows))(
            x, *weight, out, rows, num_out, size, PARTS=num_parts, EXACT=x.dtype == torch.float32,
            BLOCK_M=tile_rows, BLOCK_N=INT4_COLUMNS, num_warps=4,
            num_stages=INT4_STAGES_AHEAD if is_ahead else INT4_STAGES,
        )  # fmt: skip
