"""What a block of the flow is made of between its products, in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.cosyvoice3.dit import apply_rope_pairs, layer_norm

if TYPE_CHECKING:
    from engine.models.cosyvoice3.flow_program import FlowCall, GroupedConvWeights

# A call's tables are padded to the next of these; larger limits double on.
BLOCK_BUCKETS = (2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


class FlowOps:
    """Rows are (cell, branch); modulations [n, dim] are the same for both branches of a cell."""

    def table_sizes(self, max_blocks: int) -> list[int]:
        """To which the tables of a call are padded: every key of the table is gathered, so there are many."""
        return [*(size for size in BLOCK_BUCKETS if size < max_blocks), max_blocks]

    def modulate(
        self, h: Tensor, added: Tensor | None, gate: Tensor | None, scale: Tensor, shift: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """h [rows, frames, dim] in fp32 with ``added`` through its gate; and its norm under a moment's scale and shift,
        rounded for the product to come.
        """
        rows = h.unflatten(0, (len(scale), -1))
        if added is not None and gate is not None:
            rows = torch.addcmul(rows, added.view(rows.shape).float(), gate[:, None, None])
        out = torch.addcmul(shift[:, None, None], layer_norm(rows), 1 + scale[:, None, None])
        return rows.flatten(0, 1), out.flatten(0, 1).to(dtype)

    def mish_conv(self, conv: GroupedConvWeights, joined: Tensor) -> Tensor:
        """joined [rows, kernel - 1 + frames, dim] -> [rows, frames, dim] in fp32."""
        return F.mish(conv(joined).float())

    def gelu(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")

    def attend(self, qkv: Tensor, keys: Tensor, values: Tensor, call: FlowCall, heads: int) -> Tensor:
        """qkv [rows, frames, 3 * inner] -> [rows, frames, inner]; keys and values of the call go to their pages."""
        q, k, v = qkv.unflatten(-1, (3, heads, -1)).unbind(2)
        q, k = self.apply_rope(q, call.angles), self.apply_rope(k, call.angles)
        keys.index_copy_(0, call.own, k.flatten(2))
        values.index_copy_(0, call.own, v.flatten(2))
        rows = len(call.visible)
        past = [side.index_select(0, call.visible.flatten()).view(rows, -1, *q.shape[2:]) for side in (keys, values)]
        seen = torch.arange(past[0].shape[1], device=q.device) < call.num_visible[:, None]
        keys_first, values_first = (side.transpose(1, 2) for side in past)
        found = F.scaled_dot_product_attention(q.transpose(1, 2), keys_first, values_first, seen[:, None, None])
        return found.transpose(1, 2).flatten(2)

    def apply_rope(self, x: Tensor, angles: Tensor) -> Tensor:
        """x [rows, frames, heads, D] with its first head turned to its position."""
        first = apply_rope_pairs(x[:, :, 0].float(), angles).to(x.dtype)
        return torch.cat((first[:, :, None], x[:, :, 1:]), 2)


def select_flow_ops(device: torch.device, fused: bool) -> FlowOps:
    """Triton kernels on CUDA, where Triton is there, unless they are turned off."""
    if device.type != "cuda" or not fused:
        return FlowOps()
    try:
        from engine.models.cosyvoice3.triton_flow_ops import TritonFlowOps
    except ImportError:
        return FlowOps()
    return TritonFlowOps()
