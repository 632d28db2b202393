"""One phone line, outwards: frames of 20 ms at the caller's pace, marks, and what was played of it.

The far side holds what it has not played yet, at most ``lead_ms``, so that a clear takes little back. Where the caller
is, the clock tells, and the marks that come back correct it. A mark that comes back after a clear was not played.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from realtime.config import CallSettings
from realtime.protocol.model import Message, TelephonyFormat
from realtime.protocol.telephony.base import TelephonyDialect
from sessions.audio.pacer import Pacer, PacerSettings
from sessions.clock import WakeEvent, is_due, next_tick, now_s
from sessions.vad.echo_suppression import PlayoutLevel
from sessions.vad.energy import SILENCE, SILENCE_DB

FRAME_MS = 20
MARK_PREFIX = "vw"
# A clock that was held up catches up on so much, and forgets the rest.
MAX_CATCH_UP_S = 0.1

# Called when playout reaches a mark; ``True`` if the provider confirmed it, ``False`` by the local clock.
OnMarkReached = Callable[[bool], None]


class MessageWriter(Protocol):
    def __call__(self, message: Message, wanted: Callable[[], bool] | None = None) -> Awaitable[None]: ...


@dataclass(frozen=True, slots=True)
class PendingMark:
    position: int
    sent_s: float
    reached: OnMarkReached | None


class CallPlayout:
    """Positions count samples since the call began. One task plays; all else may be called from anywhere."""

    def __init__(
        self, dialect: TelephonyDialect, line: TelephonyFormat, write: MessageWriter, settings: CallSettings
    ) -> None:
        self.format = line
        self.frame_samples = line.sample_rate * FRAME_MS // 1000
        self._dialect, self.write, self._settings = dialect, write, settings
        self._frame_bytes = self.frame_samples * line.sample_bytes
        self._pacer = self._new_pacer()
        # Position where the pacer began.
        self._base = 0
        self._own_voice = PlayoutLevel(line.encoding, line.sample_rate)
        self._rest = b""
        # Counts the clears.
        self._epoch = 0
        self._numbers = itertools.count(1)
        # By their names on the wire, in order.
        self._marks: dict[str, PendingMark] = {}
        self._marked = 0
        # When playout ran out, if nothing was sent since.
        self._cleared_s = math.inf
        self._held = False
        self._alarm = WakeEvent()

    @property
    def position(self) -> int:
        """Of what is played next."""
        return self._sent() + len(self._rest) // self.format.sample_bytes

    def played(self) -> int:
        """Where the caller is."""
        return self._base + self._pacer.played_samples(now_s())

    def playout_level_db(self) -> float:
        """Level of playout at the caller, or of playout so recent that its echo may still return."""
        if not self._own_voice.has_audio:
            return SILENCE_DB
        silent_s = max(now_s() - min(self._pacer.underrun_deadline_s(), self._cleared_s), 0.0)
        return self._own_voice.level_db(self.played() + int(silent_s * self.format.sample_rate))

    @property
    def is_playing(self) -> bool:
        """Whether the far side has something left to play."""
        return self._pacer.lead_samples(now_s()) > 0

    async def play(self, data: bytes, wanted: Callable[[], bool]) -> None:
        """Whole frames leave when they are due, the rest waits for more, all of it only while ``wanted``, and until
        it is cleared."""
        epoch = self._epoch

        def still_wanted() -> bool:
            return epoch == self._epoch and wanted()

        self._rest += data
        while still_wanted() and len(self._rest) >= self._frame_bytes:
            await self._until_due(still_wanted)
            if still_wanted():
                await self._send_frame(still_wanted)
                await self._send_periodic_mark(still_wanted)

    async def _send_frame(self, wanted: Callable[[], bool]) -> None:
        frame, self._rest = self._rest[: self._frame_bytes], self._rest[self._frame_bytes :]
        self._cleared_s = math.inf
        self._pacer.on_sent(self.frame_samples, next_tick(now_s()))  # the next are due on ticks, too
        self._own_voice.on_sent(self._sent(), frame)
        await self.write(self._dialect.send_audio(frame), wanted)

    async def advance_clock(self) -> None:
        """For a far side that must be fed: silence, whenever there is nothing to say."""
        silence = self._dialect.send_audio(SILENCE[self.format.encoding] * self.frame_samples)
        due_s = now_s()
        while self._dialect.is_paced:
            due_s = max(due_s + FRAME_MS / 1000, now_s() - MAX_CATCH_UP_S)
            await asyncio.sleep(next_tick(due_s) - now_s())  # many lines wake in one turn
            if not self.is_playing:
                await self.write(silence, lambda: not self.is_playing)

    async def wait_played(self, wanted: Callable[[], bool]) -> None:
        """Play what is left of the last frame, filled up with silence."""
        if self._rest:
            missing = -len(self._rest) % self._frame_bytes // self.format.sample_bytes
            await self.play(SILENCE[self.format.encoding] * missing, wanted)

    async def mark(self, reached: OnMarkReached | None, wanted: Callable[[], bool] | None = None) -> None:
        """``reached`` is called once the caller has heard what was played so far; never if it is cleared."""
        name = f"{MARK_PREFIX}{next(self._numbers)}"
        self._marks[name] = PendingMark(self._sent(), now_s(), reached)
        self._marked = self._sent()
        if (message := self._dialect.send_mark(name)) is not None:
            await self.write(message, wanted)

    def on_mark_reached(self, name: str) -> None:
        """The far side returns a mark, and by it those before. Unknown ones are passed over."""
        if name not in self._marks:
            return
        position = self._marks[name].position
        self._pacer.on_playback_report(position - self._base, now_s())
        self._alarm.set()
        for earlier in [one for one, mark in self._marks.items() if mark.position <= position]:
            self._resolve_marks(earlier, earlier == name)
            if earlier == name:
                break

    def on_cleared(self) -> Message | None:
        """Forget what was not played; what is to be sent for it. From now on nothing of it is sent, and no mark of
        it counts."""
        self._epoch += 1
        self._base, self._cleared_s = self.played(), now_s()
        self._own_voice.truncate(self._base + self.frame_samples)
        self._pacer = self._new_pacer()
        self._rest = b""
        self._marks.clear()
        self._marked = self._base
        self._alarm.set()
        return self._dialect.send_clear()

    def set_paused(self, on: bool) -> None:
        """The far buffer is full, or has room again."""
        self._held = on
        self._alarm.set()

    def on_tick(self) -> None:
        """Confirm overdue marks by the local clock, and drop held audio that is no longer wanted."""
        self._alarm.set()
        grace_s = self._settings.mark_timeout_s if self._dialect.has_marks else 0.0
        played, now = self.played(), now_s()
        for name, mark in list(self._marks.items()):
            if mark.position <= played and now - self._heard_s(mark, played, now) >= grace_s:
                self._resolve_marks(name, False)

    def _heard_s(self, mark: PendingMark, played: int, now: float) -> float:
        """When playout reached a position by the local clock, which stops once all is played."""
        clock_s = now if self.is_playing else min(self._pacer.underrun_deadline_s(), now)
        return max(mark.sent_s, clock_s - (played - mark.position) / self.format.sample_rate)

    def _resolve_marks(self, name: str, confirmed: bool) -> None:
        mark = self._marks.pop(name)
        if mark.reached is not None:
            mark.reached(confirmed)

    async def _send_periodic_mark(self, wanted: Callable[[], bool]) -> None:
        every = self._settings.mark_interval_ms * self.format.sample_rate // 1000
        if self._dialect.has_marks and wanted() and self._sent() - self._marked >= every:
            await self.mark(None, wanted)

    def _sent(self) -> int:
        return self._base + self._pacer.handed_over_samples

    async def _until_due(self, wanted: Callable[[], bool]) -> None:
        while wanted():
            due_s = self._pacer.due_s(self.frame_samples, now_s())
            if not self._held and is_due(due_s, now_s()):
                return
            await self._alarm.wait(until_s=None if self._held else due_s)

    def _new_pacer(self) -> Pacer:
        lead_ms = min(self._settings.lead_ms, self._dialect.max_buffer_ms)
        return Pacer(self.format.sample_rate, PacerSettings(lead_ms=lead_ms))
