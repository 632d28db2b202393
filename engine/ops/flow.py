"""Operations of a flow block between its matrix products, and the snake of the vocoder, in plain torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# A call's tables are padded to the next of these; larger limits double on.
BLOCK_BUCKETS = (2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
NORM_EPS = 1e-6


class GroupedConvWeights(NamedTuple):
    """A causal grouped convolution, one product a group: weight [groups, kernel, in, out], bias [groups, 1, out]."""

    weight: Tensor
    bias: Tensor

    @staticmethod
    def of(conv: nn.Conv1d) -> GroupedConvWeights:
        weight = conv.weight.unflatten(0, (conv.groups, -1)).permute(0, 3, 2, 1)
        return GroupedConvWeights(weight.contiguous(), conv.bias.view(conv.groups, 1, -1))

    def __call__(self, joined: Tensor) -> Tensor:
        """joined [B, kernel - 1 + T, dim] -> [B, T, dim]."""
        groups, kernel = self.weight.shape[:2]
        windows = joined.unflatten(-1, (groups, -1)).unfold(1, kernel, 1)
        batch, length = windows.shape[:2]
        flat = windows.permute(2, 0, 1, 4, 3).reshape(groups, batch * length, -1)
        out = torch.baddbmm(self.bias, flat, self.weight.flatten(1, 2))
        return out.view(-1, batch, length, out.shape[-1]).permute(1, 2, 0, 3).flatten(2)


class FlowCall(NamedTuple):
    """The cells of one call, as their lines of the pages: ``own`` and ``before`` [n * 2], ``seen`` [n * 2, blocks];
    ``num_seen`` [n * 2] frames of these; ``angles`` [n * 2, frames, head_dim / 2]."""

    own: Tensor
    before: Tensor
    visible: Tensor
    num_visible: Tensor
    angles: Tensor


def layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=NORM_EPS)


def apply_rope_pairs(x: Tensor, angles: Tensor) -> Tensor:
    """x [..., D] with channels (2j, 2j + 1) turned by angles [..., D / 2]."""
    even, odd = x[..., ::2], x[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    """x [B, C, T] + sin(alpha x)^2 / (alpha + 1e-9), alpha [C]."""
    alpha = alpha[:, None]
    return torch.addcmul(x, torch.sin(x * alpha).square(), 1 / (alpha + 1e-9))


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

    def snake_join(self, x: Tensor, alpha: Tensor, past: Tensor) -> Tensor:
        """x [B, C, T] -> [B, C, context + T]: the snake of x behind ``past`` [B, C, context], which moves on by T."""
        joined = torch.cat((past, snake(x, alpha)), dim=-1)
        past.copy_(joined[..., x.shape[-1] :])
        return joined

    def apply_rope(self, x: Tensor, angles: Tensor) -> Tensor:
        """x [rows, frames, heads, D] with its first head turned to its position."""
        first = apply_rope_pairs(x[:, :, 0].float(), angles).to(x.dtype)
        return torch.cat((first[:, :, None], x[:, :, 1:]), 2)


def select_flow_ops(device: torch.device, fused: bool) -> FlowOps:
    """Triton kernels on CUDA, where Triton is there, unless they are turned off."""
    if device.type != "cuda" or not fused:
        return FlowOps()
    try:
        from engine.ops.triton_flow import TritonFlowOps
    except ImportError:
        return FlowOps()
    return TritonFlowOps()
