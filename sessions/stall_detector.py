"""Detect a response that waits too long: for its reader, its listener, its text or the engine. Time is passed in."""

from __future__ import annotations

from enum import Enum

from sessions.config import SessionLimits
from sessions.errors import EngineTimeout, SessionError, SlowReader, TextTimeout


class StallSource(Enum):
    """Causes of a wait, each with its limit and error."""

    # Due audio is not read.
    READER = ("reader_timeout_s", SlowReader)
    # Audio is ready and may leave once more has been played.
    LISTENER = ("playback_timeout_s", SlowReader)
    WRITER = ("text_timeout_s", TextTimeout)
    ENGINE = ("engine_timeout_s", EngineTimeout)


class StallDetector:
    def __init__(self, limits: SessionLimits) -> None:
        self._limits = limits
        self._seen: tuple[StallSource, int] | None = None
        self._since_s = 0.0

    def check(self, source: StallSource, progress: int, now_s: float) -> SessionError | None:
        """Return the error of a wait beyond its limit. ``progress`` counts what ``source`` has done so far."""
        if self._seen != (source, progress):
            self._seen, self._since_s = (source, progress), now_s
        name, error = source.value
        limit_s: float = getattr(self._limits, name)
        return error(f"{name} is {limit_s:g}") if now_s - self._since_s > limit_s else None
