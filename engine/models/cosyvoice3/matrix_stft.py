"""Short spectra and back: windows of 16 samples every 4, as products with fixed matrices.

Products and not convolutions, so that all of float32 is kept on devices whose convolutions round. Window t is that of
torch's STFT with ``center=True``: it spans n_fft samples from hop * t - n_fft / 2 on.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


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

    def stft(self, samples: Tensor) -> Tensor:
        """torch's own: [B, N] -> [B, n_fft + 2, N / hop + 1]."""
        found = torch.stft(samples, self.n_fft, self.hop, self.n_fft, self.window, return_complex=True)
        return torch.cat((found.real, found.imag), dim=1)

    def istft(self, magnitude: Tensor, angle: Tensor) -> Tensor:
        spectrum = torch.polar(magnitude, angle)
        return torch.istft(spectrum, self.n_fft, self.hop, self.n_fft, self.window)
