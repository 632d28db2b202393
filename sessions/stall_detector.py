"""How long a response waits without any progress, and for whom. Pure: time is passed in."""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum, auto

from sessions.config import SessionLimits
from sessions.errors import EngineTimeout, SessionError, SlowReader, TextTimeout


class StallSource(Enum):
    # Audio is due and is not read.
    READER = auto()
    # What is ready may leave when more has been played.
    LISTENER = auto()
    WRITER = auto()
    ENGINE = auto()


class StallDetector:
    def __init__(self, limits: SessionLimits) -> None:
        self._limits = limits
        self._seen: tuple[StallSource, Hashable] | None = None
        self._since_s = 0.0

    def check(self, waits_for: StallSource, progress: Hashable, now_s: float) -> SessionError | None:
        """Look in now and then. ``progress`` is anything that differs once they have done something."""
        if self._seen != (waits_for, progress):
            self._seen, self._since_s = (waits_for, progress), now_s
        name, fault = self._limit_of(waits_for)
        limit_s = getattr(self._limits, name)
        return fault(f"{name} is {limit_s:g}") if now_s - self._since_s > limit_s else None

    def _limit_of(self, waits_for: StallSource) -> tuple[str, type[SessionError]]:
        match waits_for:
            case StallSource.READER:
                return "reader_timeout_s", SlowReader
            case StallSource.LISTENER:
                return "playback_timeout_s", SlowReader
            case StallSource.WRITER:
                return "text_timeout_s", TextTimeout
            case StallSource.ENGINE:
                return "engine_timeout_s", EngineTimeout
