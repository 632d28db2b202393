"""Measure the level of a call's audio, its noise floor, and the onset of speech."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import numpy as np

from sessions.audio.g711 import alaw_to_pcm, mulaw_to_pcm
from sessions.audio.pcm import Pcm, s16le_to_pcm

SILENCE_DB = -120.0


def f32le_to_pcm(data: bytes) -> Pcm:
    return np.frombuffer(data, "<f4").astype(np.float32, copy=False)


DECODERS: dict[str, Callable[[bytes], Pcm]] = {
    "mulaw": mulaw_to_pcm,
    "alaw": alaw_to_pcm,
    "pcm_s16le": s16le_to_pcm,
    "pcm_f32le": f32le_to_pcm,
}
# A sample of it.
SILENCE = {"mulaw": b"\xff", "alaw": b"\xd5", "pcm_s16le": bytes(2), "pcm_f32le": bytes(4)}


def level_db(pcm: Pcm) -> float:
    """Return the level relative to full scale; ``SILENCE_DB`` for digital silence."""
    power = float(np.mean(np.square(pcm, dtype=np.float64))) if pcm.size else 0.0
    return max(10.0 * float(np.log10(power)), SILENCE_DB) if power > 0 else SILENCE_DB


def encoded_level_db(encoding: str, data: bytes) -> float:
    return level_db(DECODERS[encoding](data))


# A window that is less likely to be speech holds the line's noise, and nothing else.
MAX_NOISE_PROBABILITY = 0.2
# Windows whose quietest is the noise floor; bursts of noise still go to inference.
NUM_WINDOWS = 8


class NoiseFloor:
    """``margin_db`` above it begins what may be a voice. Where the line falls by as much at once, that noise has ended:
    what is there now may be a quieter voice as well, and is looked at until its noise is known."""

    def __init__(self, margin_db: float) -> None:
        self._margin_db = margin_db
        self._levels_db: deque[float] = deque(maxlen=NUM_WINDOWS)
        self._quietest_db = math.inf

    def masks(self, level_db: float) -> bool:
        """Return True if a window at this level is only noise of the line."""
        return len(self._levels_db) == NUM_WINDOWS and level_db < self._quietest_db + self._margin_db

    def update(self, level_db: float, likely: float | None) -> None:
        """Record a window's speech probability. ``None``: no inference ran; it can only lower the floor."""
        if level_db < self._quietest_db - self._margin_db:
            self._levels_db.clear()
        if level_db < self._quietest_db or (likely is not None and likely < MAX_NOISE_PROBABILITY):
            self._levels_db.append(level_db)
            self._quietest_db = min(self._levels_db)


# Speech goes on while it is at most so much less likely than it had to be to begin.
HYSTERESIS = 0.15


class OnsetDetector:
    """Windows of ``window_ms`` begin every ``hop_ms``."""

    def __init__(self, threshold: float, min_speech_ms: int, min_silence_ms: int, window_ms: int, hop_ms: int) -> None:
        self._threshold = threshold
        self._num_speech, self._num_silence = (
            1 + max(-(-(duration_ms - window_ms) // hop_ms), 0) for duration_ms in (min_speech_ms, min_silence_ms)
        )
        # Windows in a row that say the other thing than ``speaking`` does.
        self._run = 0
        self.speaking = False

    def push(self, likely: float) -> bool:
        """Return True if speech has just begun: it has been likely for ``min_speech_ms``."""
        if self.speaking:
            self._run = self._run + 1 if likely < self._threshold - HYSTERESIS else 0
            if self._run >= self._num_silence:
                self.speaking, self._run = False, 0
            return False
        self._run = self._run + 1 if likely >= self._threshold else 0
        if self._run >= self._num_speech:
            self.speaking, self._run = True, 0
        return self.speaking
