"""The half of a response that speaks: its script goes to the engine by segments, their sound to the outbox in order."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from engine.api import (
    EngineError,
    EngineOverloaded,
    Finished,
    FinishReason,
    SpeechChunk,
    SpeechRequest,
    SpeechStream,
    Starved,
)
from sessions.audio.pacer import UnderrunCause
from sessions.clock import TICK_S, Alarm, now_s, tick_at
from sessions.config import SpeechSettings
from sessions.errors import EngineFailed
from sessions.outbox import Outbox, Packet
from sessions.script import FlushMark, Script, Segment
from sessions.services import Services
from sessions.text.dead_air import DeadAirSettings, should_close_early, should_open_next
from sessions.voicing import Voicing

logger = logging.getLogger(__name__)


class Speaker:
    """``on_ready`` is called when there is something to take or all is spoken, ``on_end`` when it cannot go on:
    with the error, or with ``None`` when its task was cancelled from outside."""

    def __init__(
        self,
        request_prefix: str,
        settings: SpeechSettings,
        services: Services,
        script: Script,
        outbox: Outbox,
        on_ready: Callable[[], None],
        on_end: Callable[[Exception | None], None],
    ) -> None:
        self._request_prefix = request_prefix
        self._settings = settings
        self._services = services
        self._script = script
        self._outbox = outbox
        self._on_ready = on_ready
        self._on_end = on_end
        self._dead_air = DeadAirSettings(enabled=settings.avoid_dead_air)
        self._engine_rate = services.engine.info.sample_rate
        self._voicing = Voicing(settings.format, self._engine_rate, services.encoders)
        self._begun: deque[Segment | FlushMark] = deque()
        """Taken from the script, and not yet listened to."""
        self._generating: list[Segment] = []
        self._streams: list[SpeechStream] = []
        self._current: Segment | None = None
        self._text_was_short = False
        self._not_before_s = 0.0
        """The engine refused a segment for want of room: when to ask again."""
        self._alarm = Alarm()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        """Lives as long as anything of the engine is held."""
        self._listening = False
        self._stopped = False
        self.finished = False
        """All is in the outbox."""
        self.first_text_s: float | None = None
        """When the engine was given the first word."""
        self.num_events = 0
        """Segments begun, and what was heard of them."""

    @property
    def num_samples(self) -> int:
        """Of speech, at the format's rate."""
        return self._voicing.num_samples

    @property
    def waits_for_text(self) -> bool:
        has_text = any(isinstance(item, Segment) and item.speakable for item in self._script.waiting)
        gathers = self._script.open is not None and self._script.open.gathers
        return not self._script.closed and (gathers or not has_text) and all(one.starved for one in self._generating)

    def advance(self) -> None:
        """Do what is due: read text on, close a segment that is short of it, begin segments, or be done."""
        if self._stopped or self.finished:
            return
        try:
            self._look(now_s())
        except EngineError as error:
            self._on_end(error)

    def report_playback(self) -> None:
        """Tell the engine where the listener is: before a segment begins to play, that is a negative number."""
        segment = self._current
        if self._stopped or segment is None or segment.stream is None or self._settings.lead_ms is None:
            return
        played_samples = self._outbox.played_samples(now_s()) * self._engine_rate // self._settings.format.sample_rate
        segment.stream.report_playback(played_samples - (segment.spoken.start_sample or 0))

    def stop(self) -> None:
        """Fence the engine and let go of everything; ``released`` tells when it is free."""
        self._stopped = True
        self._set_timer(None)
        self._cancel_streams()
        if self._task is not None and self._listening:
            self._task.cancel()

    @property
    def free(self) -> bool:
        """Nothing of the engine is held."""
        return self._task is None or self._task.done()

    async def released(self) -> None:
        """Of a speaker that finished or was stopped: wait until nothing of the engine is held."""
        if self._task is not None:
            await asyncio.wait([self._task])
            await self._streams_released()

    # What to begin, and when

    def _look(self, now: float) -> None:
        left_ms = self._outbox.left_ms(now)
        self._script.read_on()
        if self._must_close_early(left_ms):
            self._script.close_early()
        while self._script.waiting and self._may_take(self._script.waiting[0], left_ms, now):
            self._take(now)
            self._script.read_on()
        self._set_timer(self._next_look_s(left_ms, now))
        if self._task is not None:
            self._alarm.ring()
        elif self._script.exhausted and not self._begun:
            self._finish()

    def _must_close_early(self, left_ms: float) -> bool:
        segment = self._script.open
        return segment is not None and segment.starved and should_close_early(segment.facts, left_ms, self._dead_air)

    def _may_take(self, item: Segment | FlushMark, left_ms: float, now: float) -> bool:
        if isinstance(item, FlushMark):
            return True
        if not item.speakable or now < self._not_before_s or not self._has_room():
            return False
        return item.closed or not item.gathers or should_open_next(item.facts, left_ms, self._dead_air)

    def _has_room(self) -> bool:
        limits = self._services.limits
        if self._settings.lead_ms is not None:
            return not self._generating
        is_read = self._outbox.waiting_samples * 1000 < limits.max_ready_ms * self._settings.format.sample_rate
        return len(self._generating) < limits.max_burst_segments and is_read

    def _next_look_s(self, left_ms: float, now: float) -> float | None:
        """The next moment at which time alone changes something."""
        waits_ms = []
        if self._script.open is not None and self._script.open.starved:
            waits_ms.append(left_ms - self._dead_air.close_below_ms)
        if self._script.waiting and not self._generating:
            waits_ms += [left_ms - self._dead_air.open_below_ms, 1000 * (self._not_before_s - now)]
        return min((now + max(wait_ms / 1000, TICK_S) for wait_ms in waits_ms if wait_ms >= 0), default=None)

    def _set_timer(self, moment_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if moment_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(tick_at(moment_s), self.advance)

    def _take(self, now: float) -> None:
        item = self._script.waiting[0]
        if isinstance(item, Segment) and not self._begin(item, now):
            return
        self._begun.append(self._script.take())
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._live(), name=f"speak {self._request_prefix}")
            self._task.add_done_callback(self._note_task_done)

    def _begin(self, segment: Segment, now: float) -> bool:
        """Whether the engine took it. Once a response speaks, it waits for room rather than break off."""
        try:
            segment.stream = self._submit(segment)
        except EngineOverloaded as error:
            if self.first_text_s is None:
                raise
            self._not_before_s = now + error.retry_after_ms / 1000
            return False
        self._streams.append(segment.stream)
        self._generating.append(segment)
        self.first_text_s = now if self.first_text_s is None else self.first_text_s
        self.num_events += 1
        return True

    def _submit(self, segment: Segment) -> SpeechStream:
        settings, limits = self._settings, self._services.limits
        lead_ms = None if settings.lead_ms is None else max(settings.lead_ms, limits.min_engine_lead_ms)
        request = SpeechRequest(
            request_id=f"{self._request_prefix}/{segment.index}",
            voice=settings.voice,
            language=settings.language,
            instruct=settings.instruct,
            text=segment.text,
            text_closed=segment.closed,
            layout=settings.layout,
            segment=segment.index,
            sampling=settings.sampling,
            lead_ms=lead_ms,
        )
        return self._services.engine.submit(request)

    # Listening to what has begun, in order

    async def _live(self) -> None:
        self._listening = True
        try:
            if not self._stopped:
                await self._hear_all()
        except (EngineError, EngineFailed) as error:
            self._fail(error)
        except Exception as error:
            logger.exception("a response failed by a fault of ours", extra={"request": self._request_prefix})
            self._fail(error)
        finally:
            self._listening = False
            self._cancel_streams()
            await self._streams_released()

    def _fail(self, error: Exception) -> None:
        self._listening = False
        self._on_end(error)

    def _cancel_streams(self) -> None:
        for stream in self._streams:
            stream.cancel()

    async def _streams_released(self) -> None:
        for stream in self._streams:
            await stream.released()

    def _note_task_done(self, _: asyncio.Task[None]) -> None:
        if not (self.finished or self._stopped):
            self._on_end(None)

    async def _hear_all(self) -> None:
        while (item := await self._next_begun()) is not None:
            if isinstance(item, Segment):
                await self._hear(item)
            else:
                self._put(await self._voicing.pause() if self._current else [])
                self._outbox.put_flush(item.flush)
                self._on_ready()
        self._put(await self._voicing.finish())
        self._finish()

    def _finish(self) -> None:
        self.finished = True
        self._set_timer(None)
        self._on_ready()

    async def _next_begun(self) -> Segment | FlushMark | None:
        while not self._begun:
            if self._script.exhausted:
                return None
            self._text_was_short = self._text_was_short or self.waits_for_text
            await self._alarm.wait()
        return self._begun.popleft()

    async def _hear(self, segment: Segment) -> None:
        assert segment.stream is not None, "a segment that has not begun"
        self._current = segment
        self._put(await self._voicing.begin_segment())
        segment.spoken.start_sample = self._voicing.num_engine_samples
        self.report_playback()
        async for event in segment.stream:
            self.num_events += 1
            match event:
                case SpeechChunk():
                    await self._hear_chunk(segment, event)
                case Starved():
                    segment.starved = not segment.closed
                    self._text_was_short = True
                case Finished():
                    await self._hear_end(segment, event)
            self.advance()

    async def _hear_chunk(self, segment: Segment, chunk: SpeechChunk) -> None:
        self._put(await self._voicing.push(chunk))
        self._measure(segment)
        self.report_playback()

    async def _hear_end(self, segment: Segment, end: Finished) -> None:
        metrics = self._services.metrics
        metrics.inc("segments_total", reason=end.reason)
        metrics.observe("queue_time_seconds", end.queue_ms / 1000)
        if end.reason in (FinishReason.ERROR, FinishReason.CANCELLED):
            raise EngineFailed(end.code or EngineError.code, end.message or f"the engine ended with {end.reason}")
        self._put(await self._voicing.end_segment())
        self._measure(segment)
        segment.spoken.complete = True
        duration_s = segment.spoken.num_samples / self._engine_rate
        self._services.pace.note(self._settings.voice, duration_s, segment.spoken.num_chars)
        self._generating.remove(segment)
        if segment is self._script.open:
            self._script.close_early()

    def _measure(self, segment: Segment) -> None:
        segment.spoken.num_samples = self._voicing.num_engine_samples - (segment.spoken.start_sample or 0)

    def _put(self, packets: Sequence[Packet]) -> None:
        if not packets:
            return
        cause = UnderrunCause.TEXT if self._text_was_short else UnderrunCause.ENGINE
        self._outbox.put(packets, now_s(), cause)
        self._text_was_short = False
        self._on_ready()
