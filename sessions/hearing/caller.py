"""The caller's side of a line: encoded sound in, and the moment that somebody begins to speak.

What is quieter than the line's noise, or than our own voice can come back, is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sessions.audio.g711 import alaw_to_pcm, mulaw_to_pcm
from sessions.audio.pcm import S16, Pcm, s16_to_float
from sessions.audio.resampler import Resampler
from sessions.hearing.onset import Onset
from sessions.hearing.silero import RATES, WINDOW_MS, Silero, Windows

SILENCE_DB = -120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EarSettings:
    threshold: float = 0.7
    """How likely a window has to be speech."""
    min_speech_ms: int = 32
    """For so long, without a break."""
    min_silence_ms: int = 320
    """Then speech has ended, and may begin again."""
    min_level_db: float = -50.0
    """Of full scale; what is quieter is silence."""
    echo_loss_db: float = 20.0
    """Our own voice comes back quieter by at least so much."""


def s16_bytes_to_pcm(data: bytes) -> Pcm:
    samples: S16 = np.frombuffer(data, "<i2").astype(np.int16)
    return s16_to_float(samples)


DECODERS: dict[str, Callable[[bytes], Pcm]] = {
    "mulaw": mulaw_to_pcm,
    "alaw": alaw_to_pcm,
    "pcm_s16le": s16_bytes_to_pcm,
}


class CallerEar:
    def __init__(self, encoding: str, sample_rate: int, settings: EarSettings) -> None:
        rate = sample_rate if sample_rate in RATES else max(RATES)
        self._decode = DECODERS[encoding]
        self._resampler = Resampler(sample_rate, rate)
        self._detector = Silero(rate)
        self._windows = Windows(self._detector.window_samples)
        self._onset = Onset(settings.threshold, settings.min_speech_ms, settings.min_silence_ms, WINDOW_MS)
        self._settings = settings

    def began_to_speak(self, data: bytes, own_db: float = SILENCE_DB) -> bool:
        """Whether somebody has begun to speak in what is heard now. ``own_db`` is how loud our own voice is, or was so
        shortly that it may still come back."""
        least_db = max(self._settings.min_level_db, own_db - self._settings.echo_loss_db)
        windows = self._windows.push(self._resampler.push(self._decode(data)))
        began = [self._onset.push(self._likelihood(window, least_db)) for window in windows]
        return any(began)

    def _likelihood(self, window: Pcm, least_db: float) -> float:
        if level_db(window) < least_db:
            self._detector.skip(window)
            return 0.0
        return self._detector.likelihood(window)


def level_db(pcm: Pcm) -> float:
    """Of full scale; ``SILENCE_DB`` for nothing at all."""
    power = float(np.mean(np.square(pcm, dtype=np.float64))) if pcm.size else 0.0
    return max(10.0 * float(np.log10(power)), SILENCE_DB) if power > 0 else SILENCE_DB


def encoded_level_db(encoding: str, data: bytes) -> float:
    return level_db(DECODERS[encoding](data))
