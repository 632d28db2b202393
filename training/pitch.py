"""Fundamental frequency of synthetic speech by autocorrelation, batched on the device."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from training.settings import SAMPLE_RATE

# Pitch is estimated every 5 ms.
HOP = 120
MIN_HZ, MAX_HZ = 60.0, 320.0
_STRIDE = 3
_RATE_HZ = SAMPLE_RATE // _STRIDE
_WINDOW = 400
_FFT = 1024
# Half the width of the low-pass filter in samples, and its cutoff as a share of the Nyquist frequency.
_HALF_WIDTH, _CUTOFF = 36, 0.11
# Per lag: of two periods that correlate alike, the shorter one is the pitch.
_LAG_PENALTY = 0.0012
# Autocorrelation and mean energy from which on a place counts as voiced.
_VOICED, _MIN_ENERGY = 0.6, 1e-6
_UNVOICED_HZ = 140.0


@dataclass
class Pitch:
    """Each [B, n // HOP]; unvoiced places hold the last voiced pitch."""

    hz: Tensor
    voiced: Tensor


def track_pitch(audio: Tensor) -> Pitch:
    """Estimate the pitch of 24 kHz speech [B, n] in the middle of each hop."""
    device = audio.device
    window = torch.hann_window(_WINDOW, device=device)
    margin = (_WINDOW - HOP // _STRIDE) // 2
    low = F.conv1d(audio[:, None], _low_pass(device), stride=_STRIDE, padding=_HALF_WIDTH)[:, 0]
    frames = F.pad(low, (margin, margin)).unfold(1, _WINDOW, HOP // _STRIDE) * window
    energy, correlation = _autocorrelation(frames)
    _, of_window = _autocorrelation(window)
    correlation = correlation / of_window.clamp_min(0.05)
    lags = torch.arange(correlation.shape[-1], device=device)
    in_range = (lags >= _RATE_HZ / MAX_HZ) & (lags <= _RATE_HZ / MIN_HZ)
    best = (correlation - _LAG_PENALTY * lags).masked_fill(~in_range, -math.inf).argmax(-1)
    before, peak, after = (correlation.gather(-1, (best + step)[..., None])[..., 0] for step in (-1, 0, 1))
    curvature = (before - 2 * peak + after).clamp_max(-1e-6)
    hz = _RATE_HZ / (best + ((before - after) / (2 * curvature)).clamp(-0.5, 0.5))
    voiced = (peak > _VOICED) & (energy > _MIN_ENERGY)
    return Pitch(_hold(hz, voiced), voiced)


def _low_pass(device: torch.device) -> Tensor:
    taps = torch.arange(-_HALF_WIDTH, _HALF_WIDTH + 1, device=device)
    kernel = torch.sinc(taps * _CUTOFF) * torch.hann_window(2 * _HALF_WIDTH + 3, periodic=False, device=device)[1:-1]
    return (kernel / kernel.sum())[None, None]


def _autocorrelation(frames: Tensor) -> tuple[Tensor, Tensor]:
    """Mean energy, and correlation by lag relative to that at lag 0."""
    power = torch.fft.rfft(frames, _FFT).abs().square()
    correlation = torch.fft.irfft(power)[..., : _WINDOW // 2]
    return correlation[..., 0] / _WINDOW, correlation / (correlation[..., :1] + 1e-5)


def _hold(hz: Tensor, voiced: Tensor) -> Tensor:
    """Replace unvoiced places by the last voiced one before them."""
    last = (torch.arange(1, hz.shape[1] + 1, device=hz.device) * voiced).cummax(1).values
    return F.pad(hz, (1, 0), value=_UNVOICED_HZ).gather(1, last)
