"""Gives a script to the engine by segments: what to begin and when, and what to close early."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from engine.api import EngineError, SpeechRequest, SpeechStream
from sessions.clock import TICK_S, is_due, next_tick, now_s
from sessions.config import SpeechSettings
from sessions.send_queue import SendQueue
from sessions.session_services import SessionServices
from sessions.text.dead_air import DeadAirSettings, TextPace, should_close_early, should_open_next
from sessions.text_budget import TextQueue
from sessions.text_pipeline import FlushItem, TextPipeline, TextSegment

# A burst reply begins no further segment while its audio is not read for so long.
MAX_UNREAD_S = 1.0
# Flushes are taken from the script when they are passed on; very many at once would hold up others.
MAX_BEGUN_FLUSHES = 50


class SegmentScheduler:
    """``on_look`` is called after each look at the script, ``on_error`` when the engine refuses a segment for good."""

    def __init__(
        self,
        request_prefix: str,
        group: str,
        settings: SpeechSettings,
        services: SessionServices,
        script: TextPipeline,
        outbox: SendQueue,
        text_queue: TextQueue,
        on_schedule: Callable[[], None],
        on_error: Callable[[EngineError], None],
    ) -> None:
        self._request_prefix = request_prefix
        self._group = group
        self._settings = settings
        self._services = services
        self._script = script
        self._outbox = outbox
        self._text_queue = text_queue
        self._on_look = on_schedule
        self._on_error = on_error
        self._dead_air = DeadAirSettings(enabled=settings.avoid_dead_air)
        self._pace = TextPace()
        self._generating: list[TextSegment] = []
        self._streams: list[SpeechStream] = []
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        # Taken from the script, and not yet taken from here.
        self.begun: deque[TextSegment | FlushItem] = deque()
        self.num_begun = 0
        # When the engine was given the first word.
        self.first_text_s: float | None = None

    @property
    def exhausted(self) -> bool:
        """Nothing will begin any more."""
        return self._script.exhausted and not self.begun

    @property
    def is_waiting_for_text(self) -> bool:
        has_text = any(isinstance(item, TextSegment) and item.speakable for item in self._script.waiting)
        gathers = self._script.open is not None and self._script.open.is_gathering
        return (
            not (self._script.closed or self._script.wants_text)
            and (gathers or not has_text)
            and all(one.can_starve for one in self._generating)
        )

    def record_text(self, text: str) -> None:
        """A text delta has come."""
        self._pace.record(text, now_s())

    def schedule(self) -> None:
        """Do what is due: read text on, close a segment that is short of it, begin segments."""
        if self._stopped:
            return
        try:
            self._schedule_next(now_s())
        except EngineError as error:
            self._on_error(error)
        else:
            self._on_look()

    def on_segment_end(self, segment: TextSegment) -> None:
        """The engine has ended it, maybe before its text was closed: what comes then opens another."""
        self._generating.remove(segment)
        if segment is self._script.open:
            self._script.close_early()

    def stop(self) -> None:
        """Fence the engine; idempotent."""
        self._stopped = True
        self._set_timer(None)
        self._text_queue.leave(self)
        self._script.stop()
        for stream in self._streams:
            stream.cancel()

    async def released(self) -> None:
        """After ``stop``: wait until nothing of the engine is held, and let go of the streams."""
        for stream in self._streams:
            await stream.released()
        for segment in self._generating:
            segment.stream = None
        self._streams.clear()
        self._generating.clear()
        self.begun.clear()

    def _schedule_next(self, now: float) -> None:
        left_ms = self._outbox.left_ms(now)
        self._read_text()
        if self._must_close_early(left_ms, now):
            self._script.close_early()
        while self._script.waiting and self._can_start(self._script.waiting[0], left_ms):
            item = self._script.pop()
            if isinstance(item, TextSegment):
                self._start_segment(item, now)
            self.begun.append(item)
            self._read_text()
        self._set_timer(self._next_check_s(left_ms, now))

    def _read_text(self) -> None:
        """Read on as far as needed; what this event loop iteration has no budget for is read in later ones."""
        while self._script.wants_text and (max_chars := self._text_queue.allow(self)):
            self._text_queue.spend(self._script.read(max_chars))

    def _must_close_early(self, left_ms: float, now: float) -> bool:
        segment = self._script.open
        if segment is None or self._script.wants_text or not is_due(self._pace.stalls_at_s(now), now):
            return False
        return segment.is_parked and should_close_early(segment.stats, left_ms, self._dead_air)

    def _can_start(self, item: TextSegment | FlushItem, left_ms: float) -> bool:
        if isinstance(item, FlushItem):
            return len(self.begun) < MAX_BEGUN_FLUSHES
        if not item.speakable or not self._has_capacity():
            return False
        if item.closed:
            return True
        if self._script.wants_text:  # its end may be there already
            return False
        return not item.is_gathering or should_open_next(item.stats, left_ms, self._dead_air)

    @property
    def _is_generating(self) -> bool:
        """Something has been heard: from now on no crowd in the engine refuses the response its segments."""
        return len(self._generating) < self.num_begun or any(segment.has_audio for segment in self._generating)

    def _has_capacity(self) -> bool:
        limits = self._services.limits
        if self._settings.lead_ms is not None or not self._is_generating:
            return not self._generating
        # An unread reply ends its segments and then holds no slot of the engine.
        has_capacity = self._outbox.waiting_samples * 1000 < limits.max_ready_ms * self._settings.format.sample_rate
        is_read = self._outbox.unread_s(now_s()) < MAX_UNREAD_S
        return len(self._generating) < limits.max_burst_segments and has_capacity and is_read

    def _start_segment(self, segment: TextSegment, now: float) -> None:
        segment.stream = self._submit(segment)
        self._streams.append(segment.stream)
        self._generating.append(segment)
        self.num_begun += 1
        self.first_text_s = now if self.first_text_s is None else self.first_text_s

    def _submit(self, segment: TextSegment) -> SpeechStream:
        settings, limits = self._settings, self._services.limits
        lead_ms = None
        if settings.lead_ms is not None:  # the listener's, in the engine's time
            lead_ms = max(int(settings.lead_ms * settings.speed), limits.min_engine_lead_ms)
        request = SpeechRequest(
            request_id=f"{self._request_prefix}/{segment.index}",
            voice=settings.clone or settings.voice,
            language=settings.language,
            instruct=settings.instruct,
            text=segment.text,
            text_closed=segment.closed,
            layout=settings.layout,
            segment=self.num_begun,
            sampling=settings.sampling,
            max_frames=settings.max_frames,
            chunk_frames=settings.chunk_frames,
            lead_ms=lead_ms,
            group=self._group,
        )
        return self._services.engine.submit(request)

    def _next_check_s(self, left_ms: float, now: float) -> float | None:
        """The next moment at which time alone changes something."""
        waits_ms = []
        if self._script.open is not None and self._script.open.is_parked:
            until_stall_ms = 1000 * (self._pace.stalls_at_s(now) - now)
            waits_ms.append(max(left_ms - self._dead_air.close_below_ms, until_stall_ms))
        if self._script.waiting and not self._generating:
            waits_ms.append(left_ms - self._dead_air.open_below_ms)
        return min((now + max(wait_ms / 1000, TICK_S) for wait_ms in waits_ms if wait_ms >= 0), default=None)

    def _set_timer(self, moment_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if moment_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(next_tick(moment_s), self.schedule)
