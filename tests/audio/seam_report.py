"""Are the seams of a signal made of pieces audible? Measured at the seams against everywhere else in it.

Two scores per place, each blind to what the other sees. *Jump*: the third difference of the samples, which a click
raises and voiced speech hardly moves, against its level within 4 ms. *Spectral*: by how many dB an 8 ms frame across
the place stands above both of its neighbours, over 16 bands; a click or a shift of phase splatters there. A ratio is
the mean score at the seams over the mean score elsewhere; 1 means that seams are like any other place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from sessions.audio.pcm import Pcm

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]

JUMP_ORDER = 3
JUMP_LEVEL_MS = 4
FRAME_MS = 8
CLEAR_OF_SEAM_MS = 12
GRID_MS = 4
NUM_BANDS = 16
NOISE_FLOOR_DB = -70
JUMP_FLOOR = 2e-5
SCORE_FLOOR = 1e-3
MAX_RATIO = 1.1
MAX_STANDARD_ERRORS = 4.0


@dataclass(frozen=True, slots=True)
class SeamReport:
    jump_ratio: float
    spectral_ratio: float
    # Both ratios are below 1.1 plus four standard errors: as many places chosen at random would stay below, but for one
    # try in ten thousand.
    passes: bool


def seam_report(pcm: Pcm, seams: Sequence[int], sample_rate: int) -> SeamReport:
    """Compare places ``seams`` (indices of the first sample after each seam; of a crossfade, its middle) to the rest.

    Seams within two frames (16 ms) of either end are left out. Raises ``ValueError`` when no seam or nothing else is
    left to measure. Ten seams or more make a sharp judge.
    """
    signal = pcm.astype(np.float64)
    at_seams = _inner_places(np.unique(np.asarray(seams, np.intp)), signal.size, sample_rate)
    elsewhere = _places_elsewhere(at_seams, np.unique(seams), signal.size, sample_rate)
    jump_ratio, jump_limit = _compare(_jump_scores(signal, sample_rate), at_seams, elsewhere)
    frames = _spectral_scores(signal, np.concatenate([at_seams, elsewhere]), sample_rate)
    spectral_ratio, spectral_limit = _compare(frames, np.arange(at_seams.size), np.arange(at_seams.size, frames.size))
    passes = jump_ratio <= jump_limit and spectral_ratio <= spectral_limit
    return SeamReport(jump_ratio, spectral_ratio, passes)


def _inner_places(places: Places, num_samples: int, sample_rate: int) -> Places:
    margin = 2 * _samples(FRAME_MS, sample_rate)
    inner = places[(places >= margin) & (places < num_samples - margin)]
    if not inner.size:
        raise ValueError(f"no seam lies at least {margin} samples inside the {num_samples} samples")
    return inner


def _places_elsewhere(at_seams: Places, seams: Places, num_samples: int, sample_rate: int) -> Places:
    grid = _inner_places(np.arange(0, num_samples, _samples(GRID_MS, sample_rate)), num_samples, sample_rate)
    nearest = np.abs(grid[:, None] - seams[None, :]).min(axis=1)
    clear: Places = grid[nearest > _samples(CLEAR_OF_SEAM_MS, sample_rate)]
    if not clear.size:
        raise ValueError(f"{at_seams.size} seams in {num_samples} samples leave nothing to compare them to")
    return clear


def _jump_scores(signal: Floats, sample_rate: int) -> Floats:
    """For every place, the largest of the differences that reach across it, against their level around it."""
    differences = np.pad(np.abs(np.diff(signal, JUMP_ORDER)), (JUMP_ORDER, JUMP_ORDER - 1))
    around = np.ones(2 * _samples(JUMP_LEVEL_MS, sample_rate) + 1)
    level = np.sqrt(np.maximum(np.convolve(differences**2, around / around.size, "same"), 0))
    across = sliding_window_view(differences, JUMP_ORDER).max(axis=1)
    return np.asarray(across / (level[: across.size] + JUMP_FLOOR))


def _spectral_scores(signal: Floats, places: Places, sample_rate: int) -> Floats:
    width = _samples(FRAME_MS, sample_rate)
    across, left, right = (_band_levels_db(signal, places + shift * width - width // 2, width) for shift in (0, -1, 1))
    return np.asarray(np.maximum(across - np.maximum(left, right), 0).mean(axis=1))


def _band_levels_db(signal: Floats, starts: Places, width: int) -> Floats:
    frames = sliding_window_view(signal, width)[starts] * np.hanning(width + 2)[1:-1]
    power = np.abs(np.fft.rfft(frames, axis=1)) ** 2
    edges = np.linspace(0, power.shape[1], NUM_BANDS, endpoint=False).astype(np.intp)
    return np.asarray(10 * np.log10(np.add.reduceat(power, edges, axis=1) + 10 ** (NOISE_FLOOR_DB / 10)))


def _compare(scores: Floats, at_seams: Places, elsewhere: Places) -> tuple[float, float]:
    """The ratio of the means, and the limit that it may reach by chance."""
    usual = scores[elsewhere].mean() + SCORE_FLOOR
    ratio = (scores[at_seams].mean() + SCORE_FLOOR) / usual
    standard_error = scores[elsewhere].std() / usual / np.sqrt(at_seams.size)
    return float(ratio), float(MAX_RATIO + MAX_STANDARD_ERRORS * standard_error)


def _samples(duration_ms: int, sample_rate: int) -> int:
    return duration_ms * sample_rate // 1000
