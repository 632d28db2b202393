"""Score sounds with keys that did not mark them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.watermark.attacks import resample
from benchmarks.watermark.clips import RATE
from sessions.audio.pcm import Pcm
from sessions.audio.watermark.detector import (
    DETECT_RATE,
    MIN_SCORE,
    align,
    cell_energies,
    cell_scores,
    fold,
)
from sessions.audio.watermark.pattern import CellPattern

# For each sound of which there are few.
NUM_KEYS = 280
NUM_PIECES_OF_MUSIC = 20


def score_keys(pcm: Pcm, patterns: Sequence[CellPattern]) -> list[float]:
    """Score a sound with each pattern. What does not depend on the pattern is computed once."""
    folded = fold(cell_scores(cell_energies(resample(pcm, RATE, DETECT_RATE))))
    return [align(folded, pattern).score for pattern in patterns]


def measure_others(others: Sequence[Pcm]) -> dict[str, dict[str, float]]:
    """Return the alarms of music and other recordings with ``NUM_KEYS`` keys each."""
    patterns = [CellPattern.from_key(f"wrong key {number}".encode()) for number in range(NUM_KEYS)]
    report = {}
    for kind, sounds in {
        "music": [make_music(n) for n in range(NUM_PIECES_OF_MUSIC)],
        "other recordings": others,
    }.items():
        seconds = NUM_KEYS * sum(pcm.size for pcm in sounds) / RATE
        report[kind] = summarize_scores(seconds, [score for pcm in sounds for score in score_keys(pcm, patterns)])
    return report


def make_music(number: int) -> Pcm:
    """Ten seconds of chords with decaying harmonics and a beat of noise."""
    draw = np.random.default_rng(number)
    time_s = np.arange(10 * RATE) / RATE
    beat_s = draw.uniform(0.25, 0.6)
    phase_s = time_s % beat_s
    roots = 110 * 2 ** (draw.integers(0, 24, 64) / 12)
    root = roots[(time_s / beat_s).astype(int)]
    tones = sum(
        np.sin(2 * np.pi * np.cumsum(root * interval * harmonic) / RATE) / harmonic
        for interval in (1, 1.26, 1.5)
        for harmonic in (1, 2, 3, 5)
    )
    drum = draw.standard_normal(time_s.size) * np.exp(-phase_s * 40)
    return np.asarray(0.05 * tones * np.exp(-phase_s * 4) + 0.1 * drum, np.float32)


def summarize_scores(seconds: float, scores: Sequence[float]) -> dict[str, float]:
    """``seconds`` are those of all sounds with all keys."""
    num_alarms = sum(score >= MIN_SCORE for score in scores)
    return {"seconds": round(seconds), "false_alarms": num_alarms, "score_max": round(max(scores, default=0.0), 2)}
