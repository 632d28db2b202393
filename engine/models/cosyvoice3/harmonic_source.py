"""What excites the vocoder: nine harmonics of the pitch and noise (specs/cosyvoice3.md 5.2).

Pitch, phase and with them the harmonics hold still within a frame; only the noise changes from sample to sample. The
noise is one fixed buffer for every utterance, and enters through fixed weights: what is kept is its weighted sum.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor, nn

from engine.models.cosyvoice3.config import HiftConfig

# After so long the noise begins again.
NOISE_SECONDS = 300
NOISE_SEED = 0
NUM_FLOW_NOISE = 80 * 15_000
CHUNK_SAMPLES = 1 << 16


def official_generator() -> torch.Generator:
    """Where the official code stands when it draws the noise: behind the flow's noise and the weights of what it builds
    meanwhile (spec 5.2)."""
    generator = torch.Generator().manual_seed(NOISE_SEED)
    torch.randn(NUM_FLOW_NOISE, generator=generator)
    torch.randn(6561 * 80, generator=generator)
    pitch = [512 * 80 * 4, 512, *(4 * [512 * 512 * 3, 512]), 512, 1]
    num_uniform = 80 * 192 + 80 + sum(pitch)
    torch.rand(num_uniform, generator=generator)
    torch.rand(9, generator=generator)
    return generator


@lru_cache(maxsize=1)
def weighted_noise(weights: tuple[float, ...], num_samples: int) -> Tensor:
    """The noise of all harmonics, summed by weight [num_samples]: 29 MB in place of 259."""
    generator, weight = official_generator(), torch.tensor(weights)
    noise = torch.empty(num_samples)
    for part in noise.split(CHUNK_SAMPLES):
        torch.mv(torch.rand(len(part), len(weights), generator=generator), weight, out=part)
    return noise


class HarmonicSource(nn.Module):
    """``m_source`` of hift.pt."""

    def __init__(self, config: HiftConfig, noise_seconds: int = NOISE_SECONDS) -> None:
        super().__init__()
        self.l_linear = nn.Linear(config.num_harmonics + 1, 1)
        self.amplitude, self.noise_voiced = config.nsf_alpha, config.nsf_sigma
        self.noise_unvoiced = config.nsf_alpha / 3
        self.voiced_above_hz = config.voiced_threshold_hz
        self.sample_rate, self.frame_samples = config.sample_rate, config.frame_samples
        self.num_noise = noise_seconds * config.sample_rate
        self.register_buffer("noise", None, persistent=False)

    @property
    def num_harmonics(self) -> int:
        return self.l_linear.in_features

    def fuse(self) -> None:
        """Draw the noise, once the weights are there."""
        weight = self.l_linear.weight[0]
        self.noise = weighted_noise(tuple(weight.tolist()), self.num_noise).to(weight.device)

    def forward(self, f0: Tensor, phase: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """f0 [B, n] in Hz of the frames from number ``first`` [B] on, phase [B, harmonics] fp64 before them.

        Returns the excitation [B, n, frame_samples] and the phase behind each frame [B, n, harmonics]. Phase is counted
        in turns; its unit is one sample's turn times the samples of a frame.
        """
        harmonic = torch.arange(1, self.num_harmonics + 1, device=f0.device)
        turns = f0.double()[..., None] * harmonic * (self.frame_samples / self.sample_rate)
        behind = (phase[:, None] + turns.cumsum(1)) % 1.0
        voiced = f0 > self.voiced_above_hz
        weight, bias = self.l_linear.weight[0], self.l_linear.bias
        tones = (self.amplitude * torch.sin(2 * math.pi * behind)).float() @ weight
        loudness = torch.where(voiced, self.noise_voiced, self.noise_unvoiced)
        held = torch.where(voiced, tones, 0.0) + bias
        noise = self.noise_of(first, f0.shape[1])
        return torch.tanh(held[..., None] + loudness[..., None] * noise), behind

    def noise_of(self, first: Tensor, num_frames: int) -> Tensor:
        """[B, n, frame_samples]."""
        steps = torch.arange(num_frames * self.frame_samples, device=first.device)
        index = (first[:, None] * self.frame_samples + steps) % self.num_noise
        return self.noise[index].unflatten(1, (num_frames, self.frame_samples))
