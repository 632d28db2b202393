"""Resampling, mel spectra and the spectral loss, all on the device."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from training.settings import SAMPLE_RATE

# Flite's speech ends here; a mel loss above it would mostly compare silence.
MAX_HZ = 8_000.0
_HALF_WIDTH = 24


@lru_cache
def _upsampling_kernels(device: str) -> Tensor:
    taps = torch.arange(-_HALF_WIDTH, _HALF_WIDTH + 1, dtype=torch.float64)
    shifted = taps[None] - torch.arange(3, dtype=torch.float64)[:, None] * 2 / 3
    window = torch.cos(shifted / (_HALF_WIDTH + 1) * math.pi / 2).clamp_min(0) ** 2
    kernels = torch.sinc(shifted) * window
    return (kernels / kernels.sum(1, keepdim=True))[:, None].float().to(device)


def to_24_khz(audio: Tensor) -> Tensor:
    """16 kHz [batch, n] (n even) to 24 kHz [batch, 3n/2]: three phases of a windowed sinc, two samples apart."""
    kernels = _upsampling_kernels(str(audio.device))
    phases = F.conv1d(audio[:, None], kernels, stride=2, padding=_HALF_WIDTH)
    return phases.transpose(1, 2).reshape(len(audio), -1)


@lru_cache
def mel_filters(num_fft: int, num_bands: int, device: str, min_hz: float = 30.0, max_hz: float = MAX_HZ) -> Tensor:
    """Triangles on the mel scale, [num_bands, num_fft // 2 + 1], from min_hz to max_hz, each of unit sum."""

    def mel(hz: float) -> float:
        return 2595 * math.log10(1 + hz / 700)

    points = torch.linspace(mel(min_hz), mel(max_hz), num_bands + 2, dtype=torch.float64)
    edges = 700 * (10 ** (points / 2595) - 1)
    bins = torch.linspace(0, SAMPLE_RATE / 2, num_fft // 2 + 1, dtype=torch.float64)
    rise = (bins[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - bins[None]) / (edges[2:] - edges[1:-1])[:, None]
    filters = torch.minimum(rise, fall).clamp_min(0)
    return (filters / filters.sum(1, keepdim=True).clamp_min(0.2)).float().to(device)


def magnitudes(audio: Tensor, num_fft: int, hop: int) -> Tensor:
    """[batch, n] -> [batch, bins, n // hop]; frame m is centred on the middle of hop m."""
    margin = (num_fft - hop) // 2
    window = torch.hann_window(num_fft, device=audio.device)
    padded = F.pad(audio, (margin, num_fft - hop - margin))
    return torch.stft(padded, num_fft, hop, window=window, center=False, return_complex=True).abs()


def log_mel(audio: Tensor, num_fft: int = 960, hop: int = 240, num_bands: int = 100, max_hz: float = MAX_HZ) -> Tensor:
    """24 kHz [batch, n] -> [batch, num_bands, n // hop], natural log, floored at 1e-4."""
    spectrum = magnitudes(audio.float(), num_fft, hop)
    return (mel_filters(num_fft, num_bands, str(audio.device), max_hz=max_hz) @ spectrum).clamp_min(1e-4).log()


_SCALES = ((128, 20), (256, 30), (512, 50), (1024, 80), (2048, 100))


def spectral_loss(speech: Tensor, target: Tensor, max_hz: float = MAX_HZ) -> Tensor:
    """Mean over five window lengths of L1 on log-mel and on the linear spectrum (over all frequencies)."""
    total = speech.new_zeros(())
    for num_fft, num_bands in _SCALES:
        filters = mel_filters(num_fft, num_bands, str(speech.device), max_hz=max_hz)
        ours, theirs = magnitudes(speech, num_fft, num_fft // 4), magnitudes(target, num_fft, num_fft // 4)
        floor = 1e-3 * math.sqrt(num_fft / 128)
        total = total + F.l1_loss((filters @ ours + floor).log(), (filters @ theirs + floor).log())
        total = total + F.l1_loss(ours, theirs) / math.sqrt(num_fft / 16)
    return total / len(_SCALES)


def envelope_loss(speech: Tensor, target: Tensor, max_hz: float) -> Tensor:
    """L1 of log-mel and half that of log spectra, mean over the longer four windows: pulses need not coincide."""
    total = speech.new_zeros(())
    for num_fft, num_bands in _SCALES[1:]:
        filters = mel_filters(num_fft, num_bands, str(speech.device), max_hz=max_hz)
        ours, theirs = magnitudes(speech, num_fft, num_fft // 4), magnitudes(target, num_fft, num_fft // 4)
        floor = 1e-4 * math.sqrt(num_fft / 128)
        total = total + F.l1_loss((filters @ ours + floor).log(), (filters @ theirs + floor).log())
        total = total + F.l1_loss((ours + floor).log(), (theirs + floor).log()) / 2
    return total / (len(_SCALES) - 1)
