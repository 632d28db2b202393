"""Detect a response that waits too long: for its reader, its listener, its text or the engine. Time is passed in."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from sessions.clock import is_due
from sessions.config import SessionLimits
from sessions.errors import EngineTimeout, SessionError, SlowReader, TextTimeout

if TYPE_CHECKING:
    from sessions.response_output import ResponseOutput
    from sessions.response_totals import ResponseTotals
    from sessions.speaking_queue import SpeakingQueue
    from sessions.text_track import TextTrack


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


class ResponseWatch:
    """Finds what a response waits for, and whether it has waited too long."""

    def __init__(
        self,
        limits: SessionLimits,
        text: TextTrack,
        queue: SpeakingQueue,
        output: ResponseOutput,
        totals: ResponseTotals,
    ) -> None:
        self._limits = limits
        self._text = text
        self._queue = queue
        self._output = output
        self._totals = totals
        self._detector = StallDetector(limits)

    def reset(self) -> None:
        """Begin all waits anew."""
        self._detector = StallDetector(self._limits)

    def check(self, is_draining: bool, now_s: float) -> SessionError | None:
        """Return the error of a wait beyond its limit. ``is_draining`` is true once all audio is in the ring."""
        source = self._find_source(is_draining, now_s)
        if self._output.is_suspended and source is not StallSource.ENGINE:
            return None
        return self._detector.check(source, self._progress(source), now_s)

    def _find_source(self, is_draining: bool, now_s: float) -> StallSource:
        due_s = self._output.ring.due_s(now_s)
        if due_s is not None:
            return StallSource.READER if is_due(due_s, now_s) else StallSource.LISTENER
        if is_draining:
            return StallSource.READER
        if self._text.is_starving(self._queue.segments):
            return StallSource.WRITER
        return StallSource.LISTENER if self._output.ring.left_ms(now_s) > 0 else StallSource.ENGINE

    def _progress(self, source: StallSource) -> int:
        match source:
            case StallSource.READER | StallSource.LISTENER:
                return self._output.ring.num_messages_sent
            case StallSource.WRITER:
                return self._text.num_chars
            case StallSource.ENGINE:
                return self._queue.num_segments + self._totals.num_engine_events
