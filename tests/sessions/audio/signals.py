"""Signals that tests are made of, and cuts through them."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
from hypothesis import strategies as st

from sessions.audio.pcm import Pcm

MAX_HARMONICS = 60


@cache
def speech_like(num_samples: int, sample_rate: int, seed: int) -> Pcm:
    """Voiced harmonics under three moving formants, fricative noise, and pauses, at syllable speed; peak 0.3."""
    random = np.random.default_rng(seed)
    time_s = np.arange(num_samples) / sample_rate

    def wander(low: float, high: float, changes_per_s: float) -> np.ndarray:
        knots_s = np.arange(0, time_s[-1] + 2 / changes_per_s, 1 / changes_per_s)
        return np.interp(time_s, knots_s, random.uniform(low, high, knots_s.size))

    pitch_hz = wander(100, 220, 3)
    phase = 2 * np.pi * np.cumsum(pitch_hz) / sample_rate
    formants = [(wander(300, 800, 6), 80, 1.0), (wander(900, 2200, 6), 110, 0.5), (wander(2300, 3200, 6), 160, 0.25)]
    voiced = np.zeros(num_samples)
    for harmonic in range(1, min(int(0.45 * sample_rate / 100), MAX_HARMONICS)):
        frequency = harmonic * pitch_hz
        level = sum(gain / (1 + ((frequency - center) / width) ** 2) for center, width, gain in formants) + 0.003
        voiced += np.where(frequency < 0.45 * sample_rate, level, 0) * np.sin(harmonic * phase + 0.7 * harmonic**2)
    spectrum = np.fft.rfft(random.standard_normal(num_samples))
    spectrum *= np.exp(-(((np.fft.rfftfreq(num_samples, 1 / sample_rate) - 5000) / 2500) ** 2))
    hiss = np.fft.irfft(spectrum, num_samples)
    syllables = 2 * np.pi * 3.7 * time_s
    vowel = np.clip(2 * np.sin(syllables + random.uniform(0, 6)) + 0.8, 0, 1)
    fricative = np.clip(2 * np.sin(syllables + random.uniform(0, 6)) - 1.2, 0, 1)
    speech = 0.3 * vowel * voiced / np.abs(voiced).max() + 0.05 * fricative * hiss / hiss.std()
    signal = (speech + 1e-4 * random.standard_normal(num_samples)).astype(np.float32)
    signal.flags.writeable = False
    return signal


@st.composite
def pieces(draw: st.DrawFn, signal: Pcm, max_cuts: int = 8) -> list[Pcm]:
    """The signal, cut anywhere; pieces may be empty."""
    cuts = sorted(draw(st.lists(st.integers(0, signal.size), max_size=max_cuts)))
    return [signal[a:b] for a, b in itertools.pairwise([0, *cuts, signal.size])]


def noise(num_samples: int, seed: int = 0) -> Pcm:
    return np.random.default_rng(seed).uniform(-1, 1, num_samples).astype(np.float32)
