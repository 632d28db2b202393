"""``FlowOps`` as Triton kernels."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from engine.models.cosyvoice3.dit import NORM_EPS
from engine.models.cosyvoice3.flow_ops import FlowOps
from engine.models.cosyvoice3.flow_program import FlowCall, GroupedConvWeights
from engine.ops.triton_flow import (
    block_attention_kernel,
    grouped_conv_kernel,
    modulate_kernel,
    rope_and_write_kernel,
)

# Frames of one program of the attention: of few programs, and of many.
QUERY_TILES = 32, 64
MANY_PROGRAMS = 512
# Of a product on the matrix units.
MIN_TILE = 16


class TritonFlowOps(FlowOps):
    def table_sizes(self, max_blocks: int) -> list[int]:
        """One: a row reads the pages that it sees, however wide its table is."""
        return [max_blocks]

    def modulate(
        self, h: Tensor, added: Tensor | None, gate: Tensor | None, scale: Tensor, shift: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        dim, num_rows = h.shape[-1], h.numel() // h.shape[-1]
        assert scale.stride() == shift.stride()
        out = torch.empty_like(h, dtype=dtype)
        modulate_kernel[(num_rows,)](
            h, h if added is None else added, scale if gate is None else gate, scale, shift, out,
            scale.stride(0), 0 if gate is None else gate.stride(0), NORM_EPS,
            ROWS=num_rows // len(scale), DIM=dim, BLOCK=triton.next_power_of_2(dim), ADD=added is not None, num_warps=4,
        )  # fmt: skip
        return h, out

    def mish_conv(self, conv: GroupedConvWeights, joined: Tensor) -> Tensor:
        groups, kernel, size, num_out = conv.weight.shape
        if size != num_out or size < MIN_TILE or size & (size - 1):
            return super().mish_conv(conv, joined)
        rows, frames = joined.shape[0], joined.shape[1] - kernel + 1
        out = torch.empty(rows, frames, groups * size, dtype=torch.float32, device=joined.device)
        tile = min(triton.next_power_of_2(max(frames, MIN_TILE)), QUERY_TILES[-1])
        grouped_conv_kernel[(rows, groups, triton.cdiv(frames, tile))](
            joined, conv.weight, conv.bias, out, frames,
            KERNEL=kernel, SIZE=size, DIM=groups * size, BLOCK_M=tile, EXACT=joined.dtype == torch.float32,
            num_warps=4, num_stages=3,
        )  # fmt: skip
        return out

    def attend(self, qkv: Tensor, keys: Tensor, values: Tensor, call: FlowCall, heads: int) -> Tensor:
        rows, frames, inner = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        size = inner // heads
        rope_and_write_kernel[(rows * frames,)](
            qkv, call.angles, call.own, keys, values,
            FRAMES=frames, INNER=inner, D=size, BLOCK=triton.next_power_of_2(inner), num_warps=4,
        )  # fmt: skip
        out = qkv.new_empty(rows, frames, inner)
        width = triton.next_power_of_2(max(frames, MIN_TILE))
        tile = min(width, QUERY_TILES[rows * heads >= MANY_PROGRAMS])
        block_attention_kernel[(rows, heads, triton.cdiv(frames, tile))](
            qkv, keys, values, call.visible, call.num_visible, out, size**-0.5, call.visible.stride(0),
            FRAMES=frames, HEADS=heads, D=size, BLOCK_M=tile, BLOCK_N=width, EXACT=qkv.dtype == torch.float32,
            num_warps=4, num_stages=2,
        )  # fmt: skip
        return out
