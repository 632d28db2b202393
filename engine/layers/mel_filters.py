"""Mel filters on Slaney's scale: linear up to 1 kHz, then 27 mels for each factor of 6.4."""

from __future__ import annotations

import math

import torch
from torch import Tensor

HZ_PER_LINEAR_MEL = 200 / 3
BREAK_HZ = 1000.0
MELS_PER_LOG_HZ = 27 / math.log(6.4)


def mel_to_hz(mels: Tensor) -> Tensor:
    break_mel = BREAK_HZ / HZ_PER_LINEAR_MEL
    return torch.where(
        mels < break_mel, mels * HZ_PER_LINEAR_MEL, BREAK_HZ * torch.exp((mels - break_mel) / MELS_PER_LOG_HZ)
    )


def mel_filters(num_bands: int, sample_rate: int, fft_samples: int) -> Tensor:
    """Triangles of equal area over 0 to half the rate, in fp32 [num_bands, fft_samples / 2 + 1]."""
    top_hz = sample_rate / 2
    top_mel = BREAK_HZ / HZ_PER_LINEAR_MEL + MELS_PER_LOG_HZ * math.log(top_hz / BREAK_HZ)
    edges = mel_to_hz(torch.linspace(0, top_mel, num_bands + 2, dtype=torch.float64))
    bins = torch.linspace(0, top_hz, fft_samples // 2 + 1, dtype=torch.float64)
    slopes = edges[:, None] - bins
    widths = edges.diff()[:, None]
    rising, falling = -slopes[:-2] / widths[:-1], slopes[2:] / widths[1:]
    area = 2.0 / (edges[2:] - edges[:-2])
    return (torch.minimum(rising, falling).clamp(min=0) * area[:, None]).float()
