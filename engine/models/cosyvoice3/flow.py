"""Speech tokens to mel: the flow and its diffusion transformer by the released names (docs/design/cosyvoice3.md).

Modules hold the weights; ``flow_program`` runs them block by block. Positions count from the first prompt token.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.cosyvoice3.config import DitConfig, FlowConfig

NUM_TIME_FEATURES = 256


class Modulation(NamedTuple):
    """Modulation of each block at one time of the ODE: (shift, scale, gate) before attention and before the MLP,
    [depth, 6, dim]; and to the output: (scale, shift), [2, dim]. fp32."""

    blocks: Tensor
    output: Tensor


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
    """Positional encoding of a frame from earlier frames: two causal grouped convolutions."""

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        dim, kernel, groups = config.dim, config.conv_pos_kernel, config.conv_pos_groups
        self.conv1 = nn.Sequential(nn.Conv1d(dim, dim, kernel, groups=groups), nn.Mish())
        self.conv2 = nn.Sequential(nn.Conv1d(dim, dim, kernel, groups=groups), nn.Mish())


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
        inner = config.heads * config.head_dim
        self.to_q = nn.Linear(config.dim, inner)
        self.to_k = nn.Linear(config.dim, inner)
        self.to_v = nn.Linear(config.dim, inner)
        self.to_out = nn.ModuleList([nn.Linear(inner, config.dim)])
        # Weight and bias of q, k and v as one product, built on first use.
        self.joint: tuple[Tensor, Tensor] | None = None


class FeedForward(nn.Module):
    def __init__(self, dim: int, mult: int) -> None:
        super().__init__()
        inside = nn.Sequential(nn.Linear(dim, mult * dim), nn.GELU(approximate="tanh"))
        self.ff = nn.Sequential(inside, nn.Identity(), nn.Linear(mult * dim, dim))


class DitBlock(nn.Module):
    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.attn_norm = AdaptiveNorm(config.dim, 6)
        self.attn = DitAttention(config)
        self.ff = FeedForward(config.dim, config.ff_mult)


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


NOISE_FRAMES = 15_000
NOISE_SEED = 0
# Vectors of the first convolution that the second one reads besides its own.
LOOK_BACK_TOKENS = 2
LEAKY_SLOPE = 0.01


class GuidanceWeights(NamedTuple):
    """Weights that combine two velocities, conditioned and not (classifier-free guidance)."""

    conditioned: float
    free: float


@cache
def positional_noise(mel_bins: int) -> Tensor:
    """[15000, mel_bins]: frame f of every request begins as row f (modulo their number), the prompt's frames too."""
    generator = torch.Generator().manual_seed(NOISE_SEED)
    return torch.randn(1, mel_bins, NOISE_FRAMES, generator=generator)[0].t().contiguous()


def ode_timesteps(num_steps: int) -> Tensor:
    """t_0 .. t_n of the cosine schedule, fp32."""
    steps = torch.arange(num_steps + 1, dtype=torch.float64)
    return (1 - torch.cos(steps * (torch.pi / (2 * num_steps)))).float()


class PreLookahead(nn.Module):
    """Adds the next three tokens and the last two to a token's embedding."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(config.input_size, config.pre_lookahead_hidden, config.pre_lookahead_tokens + 1)
        self.conv2 = nn.Conv1d(config.pre_lookahead_hidden, config.input_size, LOOK_BACK_TOKENS + 1)


class Estimator(nn.Module):
    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.estimator = Dit(config.dit)


class Flow(nn.Module):
    """Everything in the released flow.pt. ``fuse`` after loading, then ``to_compute``."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        self.input_embedding = nn.Embedding(config.vocab_size, config.input_size)
        self.spk_embed_affine_layer = nn.Linear(config.spk_embed_size, config.input_size)
        self.pre_lookahead_layer = PreLookahead(config)
        self.decoder = Estimator(config)
        self.table: Modulation | None = None

    @property
    def dit(self) -> Dit:
        return self.decoder.estimator

    @property
    def device(self) -> torch.device:
        return self.input_embedding.weight.device

    @property
    def compute_dtype(self) -> torch.dtype:
        """Data type of the blocks' products, keys and values."""
        return self.dit.transformer_blocks[0].ff.ff[2].weight.dtype

    @property
    def guidance(self) -> GuidanceWeights:
        return GuidanceWeights(1 + self.config.cfg_rate, self.config.cfg_rate)

    @torch.no_grad()
    def fuse(self) -> None:
        """Modulations depend on the ten moments alone: keep these, and let 42 % of the parameters go."""
        self.table = self.modulations()
        for block in self.dit.transformer_blocks:
            del block.attn_norm
        del self.dit.norm_out, self.dit.time_embed

    def to_compute(self, dtype: torch.dtype) -> None:
        """The products of the blocks in ``dtype``; norms, softmax, the ends and the ODE stay in fp32 (spec 4.10)."""
        for block in self.dit.transformer_blocks:
            block.attn.to(dtype)
            block.ff.to(dtype)
        self.dit.input_embed.conv_pos_embed.to(dtype)

    def modulations(self) -> Modulation:
        if self.table is not None:
            return self.table
        return self.dit.modulations(ode_timesteps(self.config.ode_steps)[:-1].to(self.device))

    # -- the conditions of the estimator --------------------------------------------------------------------------

    def speaker(self, embedding: Tensor) -> Tensor:
        """embedding [192] -> [80]."""
        return self.spk_embed_affine_layer(F.normalize(embedding, dim=-1))

    def token_path(self, tokens: Tensor, is_token: Tensor, is_past: Tensor) -> Tensor:
        """mu of n tokens out of n + 5: two before, themselves, three after; [B, n + 5] -> [B, n, 80].

        ``is_token`` is false past the end, ``is_past`` [B, n + 2] false before the beginning.
        """
        vectors = self.input_embedding(tokens) * is_token[..., None]
        heard = F.leaky_relu(self.pre_lookahead_layer.conv1(vectors.transpose(1, 2)), LEAKY_SLOPE)
        added = self.pre_lookahead_layer.conv2(heard * is_past[:, None]).transpose(1, 2)
        return vectors[:, LOOK_BACK_TOKENS : LOOK_BACK_TOKENS + added.shape[1]] + added
