"""The half of a response that speaks: listens to its segments in order, and puts their sound into the outbox."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence

from engine.api import (
    EngineError,
    FinishReason,
    RequestFinished,
    RequestParked,
    SpeechChunk,
    SpeechEvent,
    SpeechStream,
)
from sessions.audio.pacer import UnderrunCause
from sessions.audio_chain import AudioChain
from sessions.clock import WakeEvent, now_s
from sessions.config import SpeechSettings
from sessions.errors import EngineFailed
from sessions.segment_scheduler import SegmentScheduler
from sessions.send_queue import AudioPacket, SendQueue
from sessions.session_services import SessionServices
from sessions.text_budget import TextQueue
from sessions.text_pipeline import FlushItem, TextPipeline, TextSegment
from sessions.weak import weak_method

logger = logging.getLogger(__name__)


# Audio that the listener still has when the encoder is drained at the latest.
DRAIN_MARGIN_S = 0.2
MAX_DRAIN_WAIT_S = 1.0


async def _next_event(events: AsyncIterator[SpeechEvent]) -> SpeechEvent | None:
    return await anext(events, None)


class AudioProducer:
    """``on_ready`` is called when there is something to take or all is spoken, ``on_end`` when it cannot go on:
    with the error, or with ``None`` when its task was cancelled from outside."""

    # There while it listens: encoders are large, and ended responses are remembered.
    _voicing: AudioChain

    def __init__(
        self,
        request_prefix: str,
        group: str,
        settings: SpeechSettings,
        services: SessionServices,
        script: TextPipeline,
        outbox: SendQueue,
        text_queue: TextQueue,
        on_ready: Callable[[], None],
        on_end: Callable[[Exception | None], None],
    ) -> None:
        self._request_prefix = request_prefix
        self._settings = settings
        self._services = services
        self._outbox = outbox
        self._on_ready = on_ready
        self._on_end = on_end
        self._engine_rate = services.engine.info.sample_rate
        self._told = script.timeline
        self._feeder = SegmentScheduler(
            request_prefix,
            group,
            settings,
            services,
            script,
            outbox,
            text_queue,
            weak_method(self._ensure_running),
            on_end,
        )
        self._current: TextSegment | None = None
        self._text_was_short = False
        # Its sound is not yet all out of the encoder: the next segment's pushes it out.
        self._pending_flush: FlushItem | None = None
        self._alarm = WakeEvent()
        # Lives as long as anything of the engine is held.
        self._task: asyncio.Task[None] | None = None
        self._listening = False
        self._stopped = False
        self._num_received_chunks = 0
        # What the engine was told last of its current request: where the listener was, and when.
        self._reported_samples, self._reported_s = 0, -math.inf
        # All is in the outbox.
        self.finished = False
        # Of speech, at the format's rate.
        self.num_samples = 0
        self.num_text_tokens = 0
        self.has_runaway = False
        self.num_frames = 0

    @property
    def num_events(self) -> int:
        """Segments begun, and what was heard of them."""
        return self._feeder.num_begun + self._num_received_chunks

    @property
    def is_waiting_for_text(self) -> bool:
        return self._feeder.is_waiting_for_text

    @property
    def first_text_at_s(self) -> float | None:
        """When the engine was given the first word."""
        return self._feeder.first_text_s

    def advance(self) -> None:
        """There may be more to say, or less left to hear."""
        if not self.finished:
            self._feeder.schedule()

    def receive_text(self, text: str) -> None:
        """A text delta has come."""
        self._feeder.record_text(text)
        self.advance()

    def report_playback(self) -> None:
        """Tell the engine where the listener is, unless it reckons so by itself: it counts on from what it was told."""
        segment = self._current
        if self._stopped or segment is None or segment.stream is None or self._settings.lead_ms is None:
            return
        settings, now = self._settings, now_s()
        engine_rate = settings.speed * self._engine_rate
        played_samples = int(self._outbox.played_samples(now) * engine_rate / settings.format.sample_rate)
        reckoned_samples = self._reported_samples + (now - self._reported_s) * self._engine_rate
        tolerance_ms = self._services.limits.playback_tolerance_ms
        if abs(played_samples - reckoned_samples) * 1000 >= tolerance_ms * self._engine_rate:
            self._reported_samples, self._reported_s = played_samples, now
            # before a segment begins to play, that is a negative number
            segment.stream.report_playback(played_samples - (segment.spoken.start_sample or 0))

    def stop(self) -> None:
        """Fence the engine and let go of everything; ``released`` tells when it is free."""
        self._stopped = True
        self._feeder.stop()
        if self._task is not None and self._listening:
            self._task.cancel()

    @property
    def is_released(self) -> bool:
        """Nothing of the engine is held."""
        return self._task is None or self._task.done()

    async def released(self) -> None:
        """Of a speaker that finished or was stopped: wait until nothing of the engine is held."""
        if self._task is not None:
            await asyncio.wait([self._task])
            await self._feeder.released()

    def _ensure_running(self) -> None:
        if self._task is not None:
            self._alarm.set()
        elif self._feeder.begun:
            self._task = asyncio.get_running_loop().create_task(
                self._is_running(), name=f"speak {self._request_prefix}"
            )
            self._task.add_done_callback(self._on_task_done)
        elif self._feeder.exhausted:
            self._finish()

    def _finish(self) -> None:
        self.finished = True
        self._on_ready()

    async def _is_running(self) -> None:
        self._listening = True
        try:
            if not self._stopped:
                await self._run()
        except asyncio.CancelledError:  # dropped here: kept in the task, its frames would hold stream and encoder
            if not self._stopped:
                raise
        except (EngineError, EngineFailed) as error:
            self._fail(error)
        except Exception as error:
            logger.exception("internal error in response", extra={"request_id": self._request_prefix})
            self._fail(error)
        finally:
            self._listening = False
            self._feeder.stop()
            await self._feeder.released()

    def _fail(self, error: Exception) -> None:
        self._listening = False
        self._on_end(error)

    def _on_task_done(self, _: asyncio.Task[None]) -> None:
        if not (self.finished or self._stopped):
            self._on_end(None)

    async def _run(self) -> None:
        settings = self._settings
        self._voicing = AudioChain(settings.format, self._engine_rate, self._services.encoders, settings.speed)
        try:
            await self._process_items()
            self._put(await self._voicing.finish())
        finally:
            del self._voicing
            self._current = None
        self._finish()

    async def _process_items(self) -> None:
        while (item := await self._next_started_segment()) is not None:
            if isinstance(item, TextSegment):
                await self._consume_segment(item)
            else:
                await self._emit_flush(item)

    async def _next_started_segment(self) -> TextSegment | FlushItem | None:
        while not self._feeder.begun:
            if self._feeder.exhausted:
                return None
            self._text_was_short = self._text_was_short or self.is_waiting_for_text
            await self._alarm.wait()
        return self._feeder.begun.popleft()

    async def _emit_flush(self, mark: FlushItem) -> None:
        self._put(await self._voicing.insert_pause())
        self._pending_flush = mark
        if not (self._voicing.num_held_samples and self._is_segment_next()):
            await self._complete_flush()
        self.advance()
        await asyncio.sleep(0)

    def _is_segment_next(self) -> bool:
        return bool(self._feeder.begun) and isinstance(self._feeder.begun[0], TextSegment)

    async def _complete_flush(self) -> None:
        """Emit the pending flush; silence pushes out what the encoder still holds of the sound before it."""
        if self._voicing.num_held_samples:
            self._put(await self._voicing.drain())
        if self._pending_flush is not None:
            self._outbox.put_flush(self._pending_flush.flush)
            self._pending_flush = None
            self._on_ready()

    def _drain_timeout_s(self) -> float:
        """How long the first audio of the next segment may take before silence has to drain the encoder."""
        left_s = self._outbox.left_ms(now_s()) / 1000
        return min(max(left_s - DRAIN_MARGIN_S, 0.0), MAX_DRAIN_WAIT_S)

    async def _consume_segment(self, segment: TextSegment) -> None:
        assert segment.stream is not None, "a segment that has not begun"
        self._current = segment
        self._put(await self._voicing.begin_segment(segment.spoken.push))
        segment.spoken.start_sample = self._voicing.num_engine_samples
        self._reported_s = -math.inf
        self.report_playback()
        events = segment.stream if self._pending_flush is None else self._events_or_drain(segment, segment.stream)
        async for event in events:
            self._num_received_chunks += 1
            match event:
                case SpeechChunk():
                    await self._process_chunk(segment, event)
                case RequestParked():
                    segment.is_parked = not segment.closed
                    self._text_was_short = True
                case RequestFinished():
                    await self._process_segment_end(segment, event)
            self.advance()

    async def _events_or_drain(self, segment: TextSegment, stream: SpeechStream) -> AsyncIterator[SpeechEvent]:
        """Events of a segment. If the first is late, the pending flush is completed before it."""
        events = aiter(stream)
        first = asyncio.ensure_future(_next_event(events))
        try:
            await asyncio.wait([first], timeout=self._drain_timeout_s())
            if not first.done():
                await self._complete_flush()
                segment.spoken.start_sample = self._voicing.num_engine_samples
            event = await first
        finally:
            first.cancel()
        if event is not None:
            yield event
        async for event in events:
            yield event

    async def _process_chunk(self, segment: TextSegment, chunk: SpeechChunk) -> None:
        segment.has_audio = True
        if not self.num_samples and self._services.limits.first_packet_apart:
            first, chunk = self._voicing.encode_first_packet(chunk)
            self._put(await self._voicing.push(first))
            await asyncio.sleep(0)  # now it leaves
        elif self._services.limits.chunks_in_turn:
            await self._services.loop_throttle.wait_turn()
        if self._pending_flush is not None:
            first, chunk = self._voicing.split(chunk, self._voicing.num_held_samples)
            self._put(await self._voicing.push(first))
            if not self._voicing.num_held_samples:
                await self._complete_flush()
        self._put(await self._voicing.push(chunk))
        self._emit_word_times()
        self.report_playback()

    async def _process_segment_end(self, segment: TextSegment, end: RequestFinished) -> None:
        self._services.metrics.inc("segments_total", reason=end.reason)
        self._services.metrics.observe("queue_time_seconds", end.queue_ms / 1000)
        if end.num_skipped_tokens:
            self._services.metrics.inc("skipped_silence_tokens_total", end.num_skipped_tokens)
        if end.prompt_wait_ms is not None:
            self._services.metrics.observe("first_token_to_prompt_ready_seconds", end.prompt_wait_ms / 1000)
        self.num_text_tokens += end.num_text_tokens
        self.num_frames += end.num_frames
        self.has_runaway = self.has_runaway or self._is_runaway(end.reason)
        if end.reason in (FinishReason.ERROR, FinishReason.CANCELLED):
            message = end.message or f"the engine ended with {end.reason}"
            raise EngineFailed(end.code or EngineError.code, message, end.retry_after_ms)
        self._put(await self._voicing.end_segment())
        await self._complete_flush()
        segment.spoken.finish()
        self._emit_word_times()
        self._feeder.on_segment_end(segment)

    def _is_runaway(self, reason: FinishReason) -> bool:
        if reason is FinishReason.LENGTH:
            return self._settings.max_frames is None  # else the client asked for that length
        return reason in (FinishReason.SILENCE, FinishReason.LOOP)

    def _emit_word_times(self) -> None:
        if self._settings.word_times and (words := self._told.new_words()):
            self._outbox.put_words(words)
            self._on_ready()

    def _put(self, packets: Sequence[AudioPacket]) -> None:
        self.num_samples = self._voicing.num_samples
        if not packets:
            return
        cause = UnderrunCause.TEXT if self._text_was_short else UnderrunCause.ENGINE
        self._outbox.put(packets, now_s(), cause)
        self._text_was_short = False
        self._on_ready()
