"""The graphs' operations with products over fp8 weights.

One or two rows only stream their weights, so bytes instead of pairs of bytes take less time: they are converted in
registers. For more rows that conversion would cost more than it saves; there the activations become fp8, too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from engine.ops.parallel_compile import launch
from engine.ops.params import ResidualStream
from engine.ops.tiles import NUM_MULTIPROCESSORS
from engine.ops.triton_linear import gemm_kernel
from engine.ops.triton_ops import GEMM_AHEAD, GEMV_COLUMNS, MIN_DEPTH, MIN_GEMM_PROGRAMS, TritonOps, power_of_two
from engine.ops.triton_quantized import norm_quantize_kernel, quantize_rows_kernel
from engine.weights.quantize import FP8, QuantizedWeight, Weight


class Fp8Tile(NamedTuple):
    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


TILE = Fp8Tile(64, 32, 128, 4, 6)
MAX_TILE_ROWS = 64
# Of more rows, and with SwiGLU, which reads twice as much ahead.
LARGE, LARGE_SWIGLU = Fp8Tile(128, 64, 128, 8, 4), Fp8Tile(128, 64, 128, 8, 3)
# With more large tiles than run at once ``scaled_mm`` is faster; SwiGLU saves a launch.
MAX_LARGE, MAX_LARGE_SWIGLU = NUM_MULTIPROCESSORS, 3 * NUM_MULTIPROCESSORS
# Of products whose depth is no multiple of the tile's.
MIN_TILE_DEPTH = 64


class Fp8Rows(NamedTuple):
    """Activations [rows, K] in fp8, times ``scale`` [rows, 1] in fp32."""

    data: Tensor
    scale: Tensor


class QuantizedTritonOps(TritonOps):
    """The kernel name ``quantized`` covers the products; off dequantizes, then multiplies."""

    def fused(self, rows: int, weight: Weight) -> QuantizedWeight | None:
        """The weight if its product with ``rows`` rows is fused here; ``None`` leaves it to ``TritonOps``."""
        if "quantized" not in self.on or not isinstance(weight, QuantizedWeight):
            return None
        num_out, size = weight.shape
        if rows <= self.max_gemv_rows:
            return weight if size % MIN_DEPTH == 0 and num_out % (2 * GEMV_COLUMNS) == 0 else None
        fits = size % MIN_TILE_DEPTH == 0 and num_out % (2 * TILE.columns) == 0
        return weight if fits and weight.plain is None else None

    def norm_linear(
        self, residual: ResidualStream, norm_weight: Tensor, eps: float, weight: Weight, bias: Tensor | None = None
    ) -> Tensor:
        rows, _ = residual.x.shape
        fused = self.fused(rows, weight)
        if fused is None:
            return super().norm_linear(residual, norm_weight, eps, weight, bias)
        if rows > self.max_gemv_rows:
            out = self.multiply(self.add_norm_quantize(residual, norm_weight, eps), fused, residual.x.dtype)
        else:
            x = self.flush_residual(residual)
            out = x.new_empty(rows, fused.shape[0])
            self.launch_gemv(x, fused.data, out, norm_weight, eps, swiglu=False, add=False, scale=fused.scale)
        return out if bias is None else out + bias

    def norm_swiglu(self, residual: ResidualStream, norm_weight: Tensor, eps: float, weight: Weight) -> Tensor:
        rows, _ = residual.x.shape
        fused = self.fused(rows, weight)
        if fused is None:
            return super().norm_swiglu(residual, norm_weight, eps, weight)
        out = residual.x.new_empty(rows, fused.shape[0] // 2)
        if rows <= self.max_gemv_rows:
            x = self.flush_residual(residual)
            self.launch_gemv(x, fused.data, out, norm_weight, eps, swiglu=True, add=False, scale=fused.scale)
            return out
        x8 = self.add_norm_quantize(residual, norm_weight, eps)
        tile = fp8_tile(rows, out.shape[1], swiglu=True)
        if tile is None:
            return self.swiglu(self.multiply(x8, fused, residual.x.dtype))
        self.launch_fp8_gemm(x8, fused, out, 1, tile, swiglu=True)
        return out

    def add_linear(self, residual: ResidualStream, y: Tensor, weight: Weight) -> None:
        rows, size = y.shape
        fused = self.fused(rows, weight)
        if fused is None:
            super().add_linear(residual, y, weight)
            return
        x, num_out = self.flush_residual(residual), fused.shape[0]
        if rows <= self.max_gemv_rows:
            self.launch_gemv(y, fused.data, x, None, 0.0, swiglu=False, add=True, scale=fused.scale)
        elif tile := fp8_tile(rows, num_out, swiglu=False):
            num_parts = fp8_split_k(rows, size, num_out, tile)
            residual.parts = torch.empty(num_parts, rows, num_out, dtype=torch.float32, device=x.device)
            self.launch_fp8_gemm(self.quantize_rows(y), fused, residual.parts, num_parts, tile, swiglu=False)
        else:
            residual.parts = self.multiply(self.quantize_rows(y), fused, x.dtype)[None]

    def add_norm_quantize(self, residual: ResidualStream, norm: Tensor, eps: float) -> Fp8Rows:
        """Add what is to be added to the stream; return its norm in fp8."""
        x, parts = residual.x, residual.parts
        residual.parts = None
        rows, size = x.shape
        out = new_fp8_rows(x)
        block = power_of_two(size)
        launch(norm_quantize_kernel, rows)(
            x, x if parts is None else parts, norm, *out, rows, eps, H=size, PARTS=0 if parts is None else len(parts),
            BLOCK=block, num_warps=4 if block <= 2048 else 8, **self.early_layer(rows),
        )  # fmt: skip
        return out

    def quantize_rows(self, x: Tensor) -> Fp8Rows:
        """x [rows, K] in fp8: the largest value of each row is exact."""
        out, (rows, size) = new_fp8_rows(x), x.shape
        block = power_of_two(size)
        launch(quantize_rows_kernel, rows)(
            x, *out, K=size, BLOCK=block, num_warps=4 if block <= 4096 else 8, **self.early_layer(rows)
        )  # fmt: skip
        return out

    def multiply(self, x: Fp8Rows, weight: QuantizedWeight, dtype: torch.dtype) -> Tensor:
        """x [rows, K] -> [rows, out]."""
        rows, num_out = x.data.shape[0], weight.shape[0]
        tile = fp8_tile(rows, num_out, swiglu=False)
        if tile is not None or dtype != torch.bfloat16:
            out = x.scale.new_empty(rows, num_out, dtype=dtype)
            self.launch_fp8_gemm(x, weight, out, 1, tile or TILE, swiglu=False)
            return out
        scales = x.scale, F.ScalingType.RowWise, weight.scale[None], F.ScalingType.RowWise
        return F.scaled_mm(x.data, weight.data.t(), *scales, output_dtype=dtype, use_fast_accum=True)

    def launch_fp8_gemm(
        self, x: Fp8Rows, weight: QuantizedWeight, out: Tensor, num_parts: int, tile: Fp8Tile, swiglu: bool
    ) -> None:
        rows, size = x.data.shape
        num_out = out.shape[-1]
        launch(gemm_kernel, num_out // tile.columns * num_parts, triton.cdiv(rows, tile.rows))(
            x.data, weight.data, x.scale, weight.scale, out, rows, num_out, size, SWIGLU=swiglu, PARTS=num_parts,
            EXACT=False, SCALED=True, BLOCK_M=tile.rows, BLOCK_N=tile.columns, BLOCK_K=tile_depth(size),
            num_warps=tile.warps, num_stages=tile.stages, **self.early_product(rows, size // num_parts, GEMM_AHEAD),
        )  # fmt: skip


def fp8_tile(rows: int, num_out: int, swiglu: bool) -> Fp8Tile | None:
    """The tile of a product to ``num_out`` values a row; ``None`` where ``scaled_mm`` is faster."""
    if rows <= MAX_TILE_ROWS:
        return TILE
    tile, most = (LARGE_SWIGLU, MAX_LARGE_SWIGLU) if swiglu else (LARGE, MAX_LARGE)
    return tile if num_out % tile.columns == 0 and num_tiles(rows, num_out, tile) <= most else None


def num_tiles(rows: int, num_out: int, tile: Fp8Tile) -> int:
    return triton.cdiv(rows, tile.rows) * (num_out // tile.columns)


def tile_depth(size: int) -> int:
    return TILE.depth if size % TILE.depth == 0 else MIN_TILE_DEPTH


def fp8_split_k(rows: int, size: int, num_out: int, tile: Fp8Tile) -> int:
    """In how many parts a product's depth is shared out, so that no multiprocessor is idle."""
    parts = 1
    while size % (2 * parts * tile_depth(size)) == 0 and parts * num_tiles(rows, num_out, tile) < MIN_GEMM_PROGRAMS:
        parts *= 2
    return parts


def new_fp8_rows(like: Tensor) -> Fp8Rows:
    scale = torch.empty(like.shape[0], 1, dtype=torch.float32, device=like.device)
    return Fp8Rows(torch.empty_like(like, dtype=FP8), scale)
