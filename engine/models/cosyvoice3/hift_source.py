"""Parts of the vocoder beside its network: pitch, excitation, and short spectra.

Pitch is in float64, for phase adds up what an error in it makes. Pitch, phase and with them the harmonics hold still
within a frame; only the noise changes from sample to sample. Spectra are products with fixed matrices and not
convolutions, so that all of float32 is kept on devices whose convolutions round.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.cosyvoice3.config import HiftConfig

PITCH_LOOK_RIGHT_FRAMES = 3
FIRST_PITCH_KERNEL, PITCH_KERNEL = PITCH_LOOK_RIGHT_FRAMES + 1, 3
NUM_LEFT_LAYERS = 4
# Mel frames before a frame that its pitch depends on.
PITCH_PAST_FRAMES = NUM_LEFT_LAYERS * (PITCH_KERNEL - 1)


class F0Predictor(nn.Module):
    """Frame f reads mel frames f - 8 .. f + 3. Bare names are those of hift.pt."""

    def __init__(self, config: HiftConfig) -> None:
        super().__init__()
        wide = config.f0_channels
        layers: list[nn.Module] = [nn.Conv1d(config.mel_bins, wide, FIRST_PITCH_KERNEL)]
        for _ in range(NUM_LEFT_LAYERS):
            layers += [nn.ELU(), nn.Conv1d(wide, wide, PITCH_KERNEL)]
        self.condnet = nn.ModuleList([*layers, nn.ELU()])
        self.classifier = nn.Linear(wide, 1)

    @property
    def convolutions(self) -> list[nn.Module]:
        return [layer for layer in self.condnet if isinstance(layer, nn.Conv1d)]

    def window(self, mel: Tensor, first: Tensor) -> Tensor:
        """A run from anywhere: mel [B, bins, 8 + n + 3] around n frames whose first is number ``first`` [B] -> [B, n].

        Frames before the utterance's own are as good as absent, whatever they hold.
        """
        ahead, *left = self.convolutions
        x = convolve(ahead, mel.double())
        number = first[:, None] - PITCH_PAST_FRAMES + torch.arange(x.shape[-1], device=mel.device)
        exists = (number >= 0)[:, None]
        x = F.elu(x) * exists
        for layer in left:
            exists = exists[..., PITCH_KERNEL - 1 :]
            x = F.elu(convolve(layer, x)) * exists
        return self.pitch(x)

    def pitch(self, x: Tensor) -> Tensor:
        weight, bias = self.classifier.weight.double(), self.classifier.bias.double()
        return F.linear(x.transpose(1, 2), weight, bias)[..., 0].abs().float()


def convolve(layer: nn.Module, x: Tensor) -> Tensor:
    """x [B, in, T] -> [B, out, T - kernel + 1] as a product of matrices, which keeps all of float64 on every device."""
    weight, bias = layer.weight.double(), layer.bias.double()
    runs = x.unfold(-1, weight.shape[-1], 1).permute(0, 2, 1, 3).flatten(2)
    return F.linear(runs, weight.flatten(1), bias).transpose(1, 2)


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


class MatrixStft(nn.Module):
    def __init__(self, n_fft: int, hop: int) -> None:
        super().__init__()
        if n_fft % hop:
            raise ValueError(f"n_fft is {n_fft}; it must be a multiple of the hop {hop}")
        self.n_fft, self.hop = n_fft, hop
        for name in ("window", "analysis", "synthesis"):
            self.register_buffer(name, None, persistent=False)

    @property
    def reach(self) -> int:
        """Samples past its middle that a window needs."""
        return self.n_fft // 2

    def fuse(self, device: torch.device) -> None:
        """The matrices: analysis [n_fft, n_fft + 2] and synthesis [n_fft + 2, n_fft], real parts first."""
        window = torch.hann_window(self.n_fft, dtype=torch.float64)
        step = torch.outer(torch.arange(self.n_fft // 2 + 1), torch.arange(self.n_fft)) * (2 * math.pi / self.n_fft)
        share = torch.full((self.n_fft // 2 + 1, 1), 2.0 / self.n_fft, dtype=torch.float64)
        share[0] = share[-1] = 1 / self.n_fft
        waves = torch.cat((step.double().cos(), -step.double().sin())) * window
        self.window = window.float().to(device)
        self.analysis = waves.t().float().contiguous().to(device)
        self.synthesis = (waves * share.repeat(2, 1)).float().to(device)

    def forward(self, samples: Tensor) -> Tensor:
        """[B, (T - 1) * hop + n_fft] -> [B, n_fft + 2, T], real parts first."""
        return (samples.unfold(-1, self.n_fft, self.hop) @ self.analysis).transpose(1, 2)

    def inverse(self, magnitude: Tensor, angle: Tensor, exists: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        """[B, bins, T] -> the T * hop samples from hop * t - n_fft / 2 on that are complete, and the next tail.

        ``tail`` [B, 2, n_fft - hop] holds what earlier windows put into the samples to come: sound and squared window.
        """
        spectrum = torch.cat((magnitude * angle.cos(), magnitude * angle.sin()), dim=1).transpose(1, 2)
        waves = torch.where(exists[..., None], spectrum @ self.synthesis, 0.0)
        weights = exists[..., None] * self.window.square()
        both = self.overlap_add(torch.stack((waves, weights), dim=1))
        both[..., : tail.shape[-1]] += tail
        num_ready = magnitude.shape[-1] * self.hop
        ready = both[..., :num_ready]
        return ready[:, 0] / ready[:, 1].clamp(min=1e-8), both[..., num_ready:]

    def overlap_add(self, windows: Tensor) -> Tensor:
        """[B, 2, T, n_fft], each a hop after the last -> their sum [B, 2, T * hop + n_fft - hop]."""
        num_parts, num_windows = self.n_fft // self.hop, windows.shape[2]
        parts = windows.unflatten(-1, (num_parts, self.hop))
        blocks = windows.new_zeros(*windows.shape[:2], num_windows + num_parts - 1, self.hop)
        for place in range(num_parts):
            blocks[:, :, place : place + num_windows] += parts[..., place, :]
        return blocks.flatten(2)
