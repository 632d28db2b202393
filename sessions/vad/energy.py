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
# One silent sample per encoding.
SILENCE = {"mulaw": b"\xff", "alaw": b"\xd5", "pcm_s16le": bytes(2), "pcm_f32le": bytes(4)}


def level_db(pcm: Pcm) -> float:
    """Return the level relative to full scale; ``SILENCE_DB`` for digital silence."""
    power = float(np.mean(np.square(pcm, dtype=np.float64))) if pcm.size else 0.0
    return max(10.0 * float(np.log10(power)), SILENCE_DB) if power > 0 else SILENCE_DB


def encoded_level_db(encoding: str, data: bytes) -> float:
    return level_db(DECODERS[encoding](data))


# A window with a lower speech probability holds only noise of the line.
MAX_NOISE_PROBABILITY = 0.2
# Windows whose quietest is the noise floor; bursts of noise still go to inference.
NUM_WINDOWS = 8


class NoiseFloor:
    """Track the noise floor of a line; audio ``margin_db`` above it may be speech.

    When the level falls by the margin at once, the noise has ended. What remains may be quieter speech, so every
    window goes to inference until the new floor is known.
    """

    def __init__(self, margin_db: float) -> None:
        self._margin_db = margin_db
        self._levels_db: deque[float] = deque(maxlen=NUM_WINDOWS)
        self._quietest_db = math.inf

    def masks(self, level_db: float) -> bool:
        """Return True if a window at this level is only noise of the line."""
        return len(self._levels_db) == NUM_WINDOWS and level_db < self._quietest_db + self._margin_db

    def update(self, level_db: float, probability: float | None) -> None:
        """Record a window's speech probability. ``None``: no inference ran; it can only lower the floor."""
        if level_db < self._quietest_db - self._margin_db:
            self._levels_db.clear()
        if level_db < self._quietest_db or (probability is not None and probability < MAX_NOISE_PROBABILITY):
            self._levels_db.append(level_db)
            self._quietest_db = min(self._levels_db)


# Speech continues while its probability is at most this much below the threshold of its onset.
HYSTERESIS = 0.15


class OnsetDetector:
    """Detect the onset of speech from windows of ``window_ms`` that begin every ``hop_ms``."""

    def __init__(self, threshold: float, min_speech_ms: int, min_silence_ms: int, window_ms: int, hop_ms: int) -> None:
        self._threshold = threshold
        self._num_speech, self._num_silence = (
            1 + max(-(-(duration_ms - window_ms) // hop_ms), 0) for duration_ms in (min_speech_ms, min_silence_ms)
        )
        # Consecutive windows that contradict ``speaking``.
        self._run = 0
        self.speaking = False

    def push(self, probability: float) -> bool:
        """Return True if speech has just begun: its probability was high for ``min_speech_ms``."""
        if self.speaking:
            self._run = self._run + 1 if probability < self._threshold - HYSTERESIS else 0
            if self._run >= self._num_silence:
                self.speaking, self._run = False, 0
            return False
        self._run = self._run + 1 if probability >= self._threshold else 0
        if self._run >= self._num_speech:
            self.speaking, self._run = True, 0
        return self.speaking
