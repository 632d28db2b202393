"""Speech tokens to mel: the flow by the released names, and its slow one-pass form (specs/cosyvoice3.md 4).

Positions count from the first prompt token. ``flow_program`` makes the same frames block by block.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.cosyvoice3.config import FlowConfig
from engine.models.cosyvoice3.dit import Dit, Modulation, chunk_mask

NOISE_FRAMES = 15_000
NOISE_SEED = 0
# Vectors of the first convolution that the second one reads besides its own.
LOOK_BACK_TOKENS = 2
LEAKY_SLOPE = 0.01


class GuidanceWeights(NamedTuple):
    """How two branches become one velocity: conditioned and not (classifier-free guidance)."""

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
    """What the next three tokens and the last two add to a token's embedding."""

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
        """Of the blocks' products, and of their keys and values."""
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

    # -- what the estimator is told ------------------------------------------------------------------------------

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

    def inputs(self, mu: Tensor, prompt_mel: Tensor, speaker: Tensor) -> Tensor:
        """mu [n, 80] of tokens from the first on -> [2n, cond + mu + spk]."""
        mu = mu.repeat_interleave(self.config.token_mel_ratio, 0)
        cond = F.pad(prompt_mel, (0, 0, 0, max(0, len(mu) - len(prompt_mel))))[: len(mu)]
        return torch.cat((cond, mu, speaker.expand(len(mu), -1)), -1)

    # -- the slow form -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def forward_offline(
        self,
        tokens: Tensor,
        prompt_tokens: Tensor,
        prompt_mel: Tensor,
        embedding: Tensor,
        final: bool,
        mask: Literal["chunk", "full"] | Tensor = "chunk",
    ) -> Tensor:
        """tokens [n], prompt_tokens [P], prompt_mel [2P, 80], embedding [192] -> mel [2m, 80] of the m tokens.

        m = n when ``final``, else n - 3: the last three are heard ahead only.
        """
        joined = torch.cat((prompt_tokens, tokens)).to(self.device)
        inputs = self.inputs(self.offline_token_path(joined, final), prompt_mel, self.speaker(embedding))
        x = self.integrate(inputs, self.resolve(mask, len(inputs)))
        return x[self.config.token_mel_ratio * len(prompt_tokens) :]

    def offline_token_path(self, tokens: Tensor, final: bool) -> Tensor:
        ahead = self.config.pre_lookahead_tokens
        count = len(tokens) if final else max(0, len(tokens) - ahead)
        if count == 0:
            return self.input_embedding.weight.new_zeros(0, self.config.input_size)
        places = torch.arange(-LOOK_BACK_TOKENS, count + ahead, device=self.device)
        known = tokens[places.clamp(0, len(tokens) - 1)]
        inside = (places >= 0) & (places < len(tokens))
        mu: Tensor = self.token_path(known[None], inside[None], inside[None, : count + LOOK_BACK_TOKENS])
        return mu[0]

    def resolve(self, mask: Literal["chunk", "full"] | Tensor, length: int) -> Tensor:
        if mask == "full":
            return torch.ones(length, length, dtype=torch.bool, device=self.device)
        if isinstance(mask, str):
            return chunk_mask(length, self.config.dit.block_frames).to(self.device)
        return mask.to(self.device)

    def integrate(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Ten Euler steps from noise to mel; inputs [T, cond + mu + spk]."""
        noise = positional_noise(self.config.dit.mel_bins).to(self.device)
        if len(inputs) == 0:
            return noise[:0]
        x = noise[torch.arange(len(inputs), device=self.device) % NOISE_FRAMES]
        both = torch.stack((inputs, torch.zeros_like(inputs)))
        blocks, outputs = self.modulations()
        for k, dt in enumerate(ode_timesteps(self.config.ode_steps).diff().tolist()):
            told, free = self.dit(x.expand(2, -1, -1), both, Modulation(blocks[k], outputs[k]), mask)
            x = x + dt * (self.guidance.conditioned * told - self.guidance.free * free)
        return x
