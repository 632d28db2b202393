"""What recognisers of speech look at: liftered cepstra of 25 mel bands every 10 ms, and how they change.

Regression on spectra alone leaves the fine shape of the envelope too smooth (the last cepstra keep 60 % of their
variance), and a recogniser hears that before people do. Liftered so, every cepstrum of one speaker spreads by about 10
within a phoneme, hence the unit.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from training.spectral import magnitudes, mel_filters

NUM_FFT = 600
HOP = 240
NUM_BANDS = 25
NUM_CEPSTRA = 13
MIN_HZ, MAX_HZ = 130.0, 6_800.0
LIFTER = 22
SPREAD = 10.0
# Of magnitude: 60 dB below the bands of speech.
FLOOR = 1e-3
LEAST_SPREAD = 0.05
# A change is measured over so many frames to either side.
DELTA_REACH = 2


@lru_cache
def _transform(device: str) -> Tensor:
    """Orthonormal cosines times the lifter, in units of SPREAD: [NUM_CEPSTRA, NUM_BANDS]."""
    order = torch.arange(NUM_CEPSTRA, dtype=torch.float64)[:, None]
    cosines = torch.cos(math.pi * order * (torch.arange(NUM_BANDS) + 0.5) / NUM_BANDS) * math.sqrt(2 / NUM_BANDS)
    cosines[0] /= math.sqrt(2)
    lifter = 1 + LIFTER / 2 * torch.sin(math.pi * order / LIFTER)
    return (cosines * lifter / SPREAD).float().to(device)


def cepstra(audio: Tensor) -> Tensor:
    """24 kHz [batch, n] -> [batch, NUM_CEPSTRA, n // 240] of log energies."""
    spectrum = magnitudes(audio.float(), NUM_FFT, HOP)
    filters = mel_filters(NUM_FFT, NUM_BANDS, str(audio.device), MIN_HZ, MAX_HZ)
    energies = 2 * (filters @ spectrum + FLOOR).log()
    return _transform(str(audio.device)) @ energies


def changes(cepstra: Tensor) -> Tensor:
    return cepstra[..., 2 * DELTA_REACH :] - cepstra[..., : -2 * DELTA_REACH]


def hearing_loss(speech: Tensor, target: Tensor) -> Tensor:
    """Of the cepstra and of their changes: smooth L1 in spreads within a phoneme, and how far their spreads differ.

    Distance alone is least for a smooth guess; keeping the spread lets the guess be as sharp as speech is.
    """
    ours, theirs = cepstra(speech), cepstra(target)
    pairs = (ours, theirs), (changes(ours), changes(theirs))
    return torch.stack([F.smooth_l1_loss(*pair) + spread_loss(*pair) for pair in pairs]).sum()


def spread_loss(ours: Tensor, theirs: Tensor) -> Tensor:
    """L1 of the logarithms of the standard deviations over time."""
    return F.l1_loss((ours.std(2) + LEAST_SPREAD).log(), (theirs.std(2) + LEAST_SPREAD).log())
