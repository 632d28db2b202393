"""Playout of a call: frames of 20 ms at real-time pace, marks, and the position that the caller has heard.

The far side holds what it has not played yet, at most ``lead_ms``, so that a clear takes little back. Where the caller
is, the clock tells, and the marks that come back correct it. A mark that comes back after a clear was not played.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from realtime.integration_config import CallSettings
from realtime.protocol.model import Message
from realtime.protocol.telephony.base import TelephonyDialect
from realtime.protocol.telephony.model import TelephonyFormat
from sessions.audio.pacer import Pacer, PacerSettings
from sessions.clock import is_due, next_tick, now_s
from sessions.vad.echo_suppression import PlayoutLevel
from sessions.vad.energy import SILENCE, SILENCE_DB

FRAME_MS = 20
MARK_PREFIX = "vw"
# A delayed clock catches up by at most this much.
MAX_CATCH_UP_S = 0.1

# Called when playout reaches a mark; ``True`` if the provider confirmed it, ``False`` by the local clock.
OnMarkReached = Callable[[bool], None]


@dataclass(frozen=True, slots=True)
class PendingMark:
    position: int
    sent_s: float
    reached: OnMarkReached | None


class CallPlayout:
    """Queues audio and marks in order, and gives them as messages when they are due.

    Positions count samples since the call began. ``wake`` is called when ``due_s`` may have become earlier.
    """

    def __init__(
        self, dialect: TelephonyDialect, line: TelephonyFormat, settings: CallSettings, wake: Callable[[], None]
    ) -> None:
        self.format = line
        self.frame_samples = line.sample_rate * FRAME_MS // 1000
        self._dialect, self._settings, self._wake = dialect, settings, wake
        self._frame_bytes = self.frame_samples * line.sample_bytes
        self._pacer = self._new_pacer()
        # Position where the pacer began.
        self._base = 0
        self._playout_level = PlayoutLevel(line.encoding, line.sample_rate)
        # Queued audio, then marks behind it.
        self._rest = b""
        self._waiting_marks: deque[OnMarkReached] = deque()
        # Message of a silent frame, for providers that play frames as they arrive.
        self._silence = dialect.send_audio(SILENCE[line.encoding] * self.frame_samples) if dialect.is_paced else None
        self._next_silence_s = now_s()
        self._numbers = itertools.count(1)
        # Marks by their names on the wire, in order.
        self._marks: dict[str, PendingMark] = {}
        self._marked = 0
        # When the queue was cleared, if nothing was sent since.
        self._cleared_s = math.inf
        self._is_paused = False

    @property
    def position(self) -> int:
        """Position of the sample that is put next."""
        return self._sent() + len(self._rest) // self.format.sample_bytes

    def played(self) -> int:
        """Return the position that the caller has heard."""
        return self._base + self._pacer.played_samples(now_s())

    def playout_level_db(self) -> float:
        """Return the level of the playout at the caller, including recent playout whose echo may still arrive."""
        if not self._playout_level.has_audio:
            return SILENCE_DB
        silent_s = max(now_s() - min(self._pacer.underrun_deadline_s(), self._cleared_s), 0.0)
        return self._playout_level.level_db(self.played() + int(silent_s * self.format.sample_rate))

    @property
    def is_playing(self) -> bool:
        """True while the provider has audio left to play."""
        return self._pacer.lead_samples(now_s()) > 0

    @property
    def has_frame(self) -> bool:
        return len(self._rest) >= self._frame_bytes

    @property
    def has_room(self) -> bool:
        """True if all whole frames and marks were popped, so that more may be put."""
        return not self.has_frame and not self._waiting_marks

    def put(self, data: bytes) -> None:
        """Queue audio. Whole frames are popped when they are due; a partial frame waits for more."""
        self._rest += data

    def fill_frame(self) -> None:
        """Complete a partial frame with silence."""
        missing = -len(self._rest) % self._frame_bytes // self.format.sample_bytes
        self._rest += SILENCE[self.format.encoding] * missing

    def put_mark(self, reached: OnMarkReached) -> None:
        """Queue a mark. ``reached`` is called once the caller has heard the audio before it; never if it is cleared."""
        self._waiting_marks.append(reached)

    def due_s(self, now: float) -> float | None:
        """Return when ``pop_due`` returns a message; ``None`` while nothing is queued."""
        if self._waiting_marks and not self.has_frame:
            return now
        dues = [self._pacer.due_s(self.frame_samples, now)] if self.has_frame and not self._is_paused else []
        if self._silence is not None:
            dues.append(max(self._next_silence_s, self._pacer.underrun_deadline_s() if self.is_playing else 0.0))
        return min(dues, default=None)

    def pop_due(self, now: float) -> list[Message]:
        """Return the messages of the next frame, of the marks behind the last one, or of a silent frame."""
        if self.has_frame:
            if not self._is_paused and is_due(self._pacer.due_s(self.frame_samples, now), now):
                return [self._pop_frame(now), *self._periodic_mark(now)]
        elif self._waiting_marks:
            marks = [self._mark(self._waiting_marks.popleft(), now) for _ in range(len(self._waiting_marks))]
            return [message for message in marks if message is not None]
        return self._pop_silence(now)

    def _pop_frame(self, now: float) -> Message:
        frame, self._rest = self._rest[: self._frame_bytes], self._rest[self._frame_bytes :]
        self._cleared_s = math.inf
        self._pacer.on_sent(self.frame_samples, next_tick(now))  # the next are due on ticks, too
        self._playout_level.on_sent(self._sent(), frame)
        return self._dialect.send_audio(frame)

    def _pop_silence(self, now: float) -> list[Message]:
        if self._silence is None or not is_due(self._next_silence_s, now):
            return []
        self._next_silence_s = max(self._next_silence_s + FRAME_MS / 1000, now - MAX_CATCH_UP_S)
        return [] if self.is_playing else [self._silence]

    def _mark(self, reached: OnMarkReached | None, now: float) -> Message | None:
        name = f"{MARK_PREFIX}{next(self._numbers)}"
        self._marks[name] = PendingMark(self._sent(), now, reached)
        self._marked = self._sent()
        return self._dialect.send_mark(name)

    def on_mark_reached(self, name: str) -> None:
        """Resolve a mark that the provider returned, and those before it. Unknown marks are ignored."""
        if name not in self._marks:
            return
        position = self._marks[name].position
        self._pacer.on_playback_report(position - self._base, now_s())
        self._wake()
        for earlier in [one for one, mark in self._marks.items() if mark.position <= position]:
            self._resolve_marks(earlier, earlier == name)
            if earlier == name:
                break

    def on_cleared(self) -> Message | None:
        """Drop queued audio and marks and return the clear message, if the provider has one."""
        self._base, self._cleared_s = self.played(), now_s()
        self._playout_level.truncate(self._base + self.frame_samples)
        self._pacer = self._new_pacer()
        self._rest = b""
        self._waiting_marks.clear()
        self._marks.clear()
        self._marked = self._base
        self._wake()
        return self._dialect.send_clear()

    def set_paused(self, on: bool) -> None:
        """Pause or resume frames: the provider's buffer is full, or has room again."""
        self._is_paused = on
        self._wake()

    def on_tick(self) -> None:
        """Resolve overdue marks by the local clock."""
        self._wake()
        grace_s = self._settings.mark_timeout_s if self._dialect.has_marks else 0.0
        played, now = self.played(), now_s()
        for name, mark in list(self._marks.items()):
            if mark.position <= played and now - self._reached_s(mark, played, now) >= grace_s:
                self._resolve_marks(name, False)

    def _reached_s(self, mark: PendingMark, played: int, now: float) -> float:
        """Return when playout reached a mark by the local clock, which stops once all audio is played."""
        clock_s = now if self.is_playing else min(self._pacer.underrun_deadline_s(), now)
        return max(mark.sent_s, clock_s - (played - mark.position) / self.format.sample_rate)

    def _resolve_marks(self, name: str, confirmed: bool) -> None:
        mark = self._marks.pop(name)
        if mark.reached is not None:
            mark.reached(confirmed)

    def _periodic_mark(self, now: float) -> list[Message]:
        every = self._settings.mark_interval_ms * self.format.sample_rate // 1000
        if not self._dialect.has_marks or self._sent() - self._marked < every:
            return []
        message = self._mark(None, now)
        return [] if message is None else [message]

    def _sent(self) -> int:
        return self._base + self._pacer.handed_over_samples

    def _new_pacer(self) -> Pacer:
        lead_ms = min(self._settings.lead_ms, self._dialect.max_buffer_ms)
        return Pacer(self.format.sample_rate, PacerSettings(lead_ms=lead_ms))
