"""The caller's side of a line: encoded sound in, and the moment that somebody begins to speak.

Each moment is looked at twice, by windows that begin half a window apart: a voice that begins late in one of them
begins early in another. What is quieter than the line's noise, or than our own voice can come back, is not speech.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sessions.audio.pcm import Pcm
from sessions.audio.resampler import Resampler
from sessions.hearing.echo import EchoLimit
from sessions.hearing.levels import DECODERS, SILENCE_DB
from sessions.hearing.onset import Onset
from sessions.hearing.silero import CONTEXT_MS, RATES, WINDOW_MS, Track, Windows, likelihoods

NUM_TRACKS = 2
HOP_MS = WINDOW_MS // NUM_TRACKS
MAX_BEHIND_MS = 2_000
"""So much sound may wait to be looked at; what comes beyond it is passed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarSettings:
    threshold: float = 0.55
    """How likely a window has to be speech."""
    min_speech_ms: int = 32
    """For so long, without a break."""
    min_silence_ms: int = 320
    """Then speech has ended, and may begin again."""
    min_level_db: float = -50.0
    """Of full scale; what is quieter is silence."""
    echo_loss_db: float = 20.0
    """Our own voice comes back quieter by at least so much."""


@dataclass(frozen=True, slots=True)
class Look:
    """A window that waits to be looked at."""

    track: Track
    window: Pcm
    """With its context."""
    own_db: float
    """Our own voice, or what of it may still come back."""


class CallerEar:
    """``hear`` takes sound in; its ``waiting`` looks, whose tracks alternate, are then judged in their order."""

    def __init__(self, encoding: str, sample_rate: int, settings: EarSettings) -> None:
        self.rate = sample_rate if sample_rate in RATES else max(RATES)
        self.waiting: deque[Look] = deque()
        self._decode = DECODERS[encoding]
        self._echo = EchoLimit(settings.echo_loss_db)
        self._settings = settings
        self._from_rate = sample_rate
        self.rest()

    def rest(self) -> None:
        """Forget all that was heard, but for how much of our own voice comes back."""
        settings = self._settings
        self.waiting.clear()
        self._resampler = Resampler(self._from_rate, self.rate)
        self._windows = Windows(*(duration * self.rate // 1000 for duration in (WINDOW_MS, HOP_MS, CONTEXT_MS)))
        self._tracks = itertools.cycle([Track() for _ in range(NUM_TRACKS)])
        self._onset = Onset(settings.threshold, settings.min_speech_ms, settings.min_silence_ms, WINDOW_MS, HOP_MS)

    def hear(self, data: bytes, own_db: float = SILENCE_DB) -> None:
        """``own_db`` is how loud our own voice is, or was so shortly that it may still come back."""
        for window in self._windows.push(self._resampler.push(self._decode(data))):
            if len(self.waiting) < MAX_BEHIND_MS // HOP_MS:
                self.waiting.append(Look(next(self._tracks), window, own_db))

    def judge(self, look: Look, likely: float, level_db: float) -> bool:
        """How likely the next window is speech, and how loud it is. Whether somebody has begun to speak in it."""
        heard = level_db >= max(self._settings.min_level_db, self._echo.db(look.own_db))
        if not heard or likely < self._settings.threshold:
            self._echo.learn(level_db, look.own_db)
        began = self._onset.push(likely if heard else 0.0)
        if began:
            self._echo.was_somebody()
        return began

    def began_to_speak(self, data: bytes, own_db: float = SILENCE_DB) -> bool:
        """Whether somebody has begun to speak in what is heard now, one look after the other."""
        self.hear(data, own_db)
        began = []
        while self.waiting:
            look = self.waiting.popleft()
            [(likely, level)] = looked_at([look], self.rate)
            began.append(self.judge(look, likely, level))
        return any(began)


def looked_at(looks: Sequence[Look], rate: int) -> list[tuple[float, float]]:
    """How likely each is speech, and how loud, by one run of the network; no track may be there twice."""
    windows = np.stack([look.window for look in looks])
    likely = likelihoods([look.track for look in looks], windows, rate)
    power = np.mean(np.square(windows[:, CONTEXT_MS * rate // 1000 :], dtype=np.float64), axis=1)
    levels = 10 * np.log10(np.maximum(power, 10 ** (SILENCE_DB / 10)))
    return list(zip(likely.tolist(), levels.tolist(), strict=True))
