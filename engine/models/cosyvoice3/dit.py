"""The flow's estimator, a diffusion transformer by the released names (specs/cosyvoice3.md 4.4).

This is the slow, obvious form: whole sequences under a mask. ``flow_program`` runs the same weights block by block.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.cosyvoice3.config import DitConfig

NUM_TIME_FEATURES = 256
NORM_EPS = 1e-6


class Modulation(NamedTuple):
    """What one moment of the ODE does to every block: (shift, scale, gate) before attention and before the MLP,
    [depth, 6, dim]; and to the output: (scale, shift), [2, dim]. fp32."""

    blocks: Tensor
    output: Tensor


def linear_fp32(layer: nn.Linear, x: Tensor) -> Tensor:
    """In the weights' own precision; fp32 out."""
    return F.linear(x.to(layer.weight.dtype), layer.weight, layer.bias).float()


def layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=NORM_EPS)


def apply_rope_pairs(x: Tensor, angles: Tensor) -> Tensor:
    """x [..., D] with channels (2j, 2j + 1) turned by angles [..., D / 2]."""
    even, odd = x[..., ::2], x[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)


def chunk_mask(num_frames: int, block_frames: int, context_blocks: int | None = None, first_block: int = 0) -> Tensor:
    """[T, T], true where a frame (row) sees another: its own block and those before.

    With ``context_blocks`` only that many before, and always those before ``first_block``.
    """
    block = torch.arange(num_frames) // block_frames
    sees = block[None] <= block[:, None]
    if context_blocks is not None:
        sees &= (block[None] >= block[:, None] - context_blocks) | (block[None] < first_block)
    return sees


class TimeEmbedding(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.time_mlp = nn.Sequential(nn.Linear(NUM_TIME_FEATURES, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, t: Tensor) -> Tensor:
        """t [n] in 0..1 -> [n, dim]."""
        half = NUM_TIME_FEATURES // 2
        rates = torch.exp(torch.arange(half, device=t.device) * (-math.log(10_000.0) / (half - 1)))
        angles = 1000.0 * t[:, None] * rates
        return self.time_mlp(torch.cat((angles.sin(), angles.cos()), -1))


class PositionConv(nn.Module):
    """Where a frame stands, from its neighbours before it: two causal grouped convolutions."""

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        dim, kernel, groups = config.dim, config.conv_pos_kernel, config.conv_pos_groups
        self.context = kernel - 1
        self.conv1 = nn.Sequential(nn.Conv1d(dim, dim, kernel, groups=groups), nn.Mish())
        self.conv2 = nn.Sequential(nn.Conv1d(dim, dim, kernel, groups=groups), nn.Mish())

    def forward(self, h: Tensor) -> Tensor:
        """h [B, T, dim] -> the same shape."""
        y = h.transpose(1, 2)
        for conv, mish in (self.conv1, self.conv2):
            y = mish(conv(F.pad(y.to(conv.weight.dtype), (self.context, 0))).float())
        return y.transpose(1, 2)


class InputEmbedding(nn.Module):
    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.proj = nn.Linear(4 * config.mel_bins, config.dim)
        self.conv_pos_embed = PositionConv(config)


class RotaryEmbedding(nn.Module):
    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 10_000.0 ** -(torch.arange(0, head_dim, 2) / head_dim))


class AdaptiveNorm(nn.Module):
    """The moment's shifts, scales and gates; the norm itself has no weights."""

    def __init__(self, dim: int, num_parts: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, num_parts * dim)

    def parts(self, tau: Tensor) -> Tensor:
        """tau [n, dim] -> [n, parts, dim]."""
        return self.linear(F.silu(tau)).unflatten(-1, (-1, tau.shape[-1]))


class DitAttention(nn.Module):
    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.heads, self.head_dim = config.heads, config.head_dim
        inner = config.heads * config.head_dim
        self.to_q = nn.Linear(config.dim, inner)
        self.to_k = nn.Linear(config.dim, inner)
        self.to_v = nn.Linear(config.dim, inner)
        self.to_out = nn.ModuleList([nn.Linear(inner, config.dim)])
        # Weight and bias of q, k and v as one product, built on first use.
        self.joint: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor, angles: Tensor, mask: Tensor) -> Tensor:
        """x [B, T, dim], angles [T, head_dim / 2], mask [T, T]. Only the first head knows positions."""
        q, k, v = (linear_fp32(layer, x).unflatten(-1, (self.heads, -1)) for layer in (self.to_q, self.to_k, self.to_v))
        for turned in (q, k):
            turned[:, :, 0] = apply_rope_pairs(turned[:, :, 0], angles)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(self.head_dim)
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        return linear_fp32(self.to_out[0], torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(-2))


class FeedForward(nn.Module):
    def __init__(self, dim: int, mult: int) -> None:
        super().__init__()
        inside = nn.Sequential(nn.Linear(dim, mult * dim), nn.GELU(approximate="tanh"))
        self.ff = nn.Sequential(inside, nn.Identity(), nn.Linear(mult * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        inner, gelu = self.ff[0]
        return linear_fp32(self.ff[2], gelu(linear_fp32(inner, x)))


class DitBlock(nn.Module):
    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.attn_norm = AdaptiveNorm(config.dim, 6)
        self.attn = DitAttention(config)
        self.ff = FeedForward(config.dim, config.ff_mult)

    def forward(self, h: Tensor, parts: Tensor, angles: Tensor, mask: Tensor) -> Tensor:
        shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = parts
        h = h + gate * self.attn(layer_norm(h) * (1 + scale) + shift, angles, mask)
        return h + gate_mlp * self.ff(layer_norm(h) * (1 + scale_mlp) + shift_mlp)


class Dit(nn.Module):
    """Everything under ``decoder.estimator.`` in the released flow.pt."""

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.config = config
        self.time_embed = TimeEmbedding(config.dim)
        self.input_embed = InputEmbedding(config)
        self.rotary_embed = RotaryEmbedding(config.head_dim)
        self.transformer_blocks = nn.ModuleList(DitBlock(config) for _ in range(config.depth))
        self.norm_out = AdaptiveNorm(config.dim, 2)
        self.proj_out = nn.Linear(config.dim, config.mel_bins)

    def modulations(self, t: Tensor) -> Modulation:
        """For moments t [n]: [n, depth, 6, dim] and [n, 2, dim]."""
        tau = self.time_embed(t)
        parts = [block.attn_norm.parts(tau) for block in self.transformer_blocks]
        return Modulation(torch.stack(parts, 1), self.norm_out.parts(tau))

    def forward(self, x: Tensor, inputs: Tensor, moment: Modulation, mask: Tensor) -> Tensor:
        """x [B, T, mel], inputs [B, T, cond + mu + spk], one moment, mask [T, T] -> velocity [B, T, mel]."""
        h = linear_fp32(self.input_embed.proj, torch.cat((x, inputs), -1))
        h = h + self.input_embed.conv_pos_embed(h)
        angles = torch.arange(x.shape[1], device=x.device)[:, None] * self.rotary_embed.inv_freq
        for block, parts in zip(self.transformer_blocks, moment.blocks, strict=True):
            h = block(h, parts, angles, mask)
        scale, shift = moment.output
        return linear_fp32(self.proj_out, layer_norm(h) * (1 + scale) + shift)
