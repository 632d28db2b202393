"""Makes the audio of what a response has begun, item by item: segments from the engine, flushes, breaks and marks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from engine.api import (
    EngineError,
    EngineOverloaded,
    FinishReason,
    RequestFinished,
    RequestParked,
    SpeechChunk,
    SpeechEvent,
)
from sessions.clock import is_due, now_s
from sessions.errors import EngineFailed
from sessions.text.ssml.items import BreakItem, MarkItem
from sessions.text_items import FlushItem, TextSegment

if TYPE_CHECKING:
    from sessions.audio_track import AudioOutput, AudioTrack
    from sessions.config import SpeechSettings
    from sessions.response_output import ResponseOutput
    from sessions.response_totals import ResponseTotals
    from sessions.session_services import SessionServices
    from sessions.speaking_queue import SpeakingQueue
    from sessions.text_track import TextTrack

# Audio that the listener still has when the encoder is drained at the latest.
DRAIN_MARGIN_S = 0.2
MAX_DRAIN_WAIT_S = 1.0


class AudioProducer:
    """Feeds the track of a response. One call at a time."""

    def __init__(
        self,
        audio: AudioTrack,
        settings: SpeechSettings,
        services: SessionServices,
        text: TextTrack,
        queue: SpeakingQueue,
        output: ResponseOutput,
        totals: ResponseTotals,
    ) -> None:
        # When silence takes the place of the next segment's sound that a flush waits for.
        self.drain_at_s = math.inf
        self._audio = audio
        self._settings = settings
        self._services = services
        self._text = text
        self._queue = queue
        self._output = output
        self._totals = totals

    async def step(self) -> bool:
        """Process what there is of the current item. Returns false if there is nothing yet."""
        match item := self._queue.current:
            case FlushItem():
                await self._apply_flush(item)
            case BreakItem():
                self._put([await self._audio.insert_break(item.duration_ms, self._settings.speed)])
                self._queue.pop()
            case MarkItem():
                self._output.put_mark(item, self._audio.num_engine_samples)
                self._queue.pop()
            case TextSegment() if item.spoken.start_sample is None:
                await self._begin_segment(item)
            case TextSegment() if (event := _next_event(item)) is not None:
                await self._apply_event(item, event)
            case _ if self.drain_at_s != math.inf and is_due(self.drain_at_s, now_s()):
                await self._drain_flush(item)
            case _:
                return False
        return True

    async def finish(self) -> None:
        """Put the rest of the audio."""
        self._put([await self._audio.finish()])

    async def _apply_flush(self, item: FlushItem) -> None:
        self._put(await self._audio.flush(item, self._queue.is_segment_next))
        self._queue.pop()
        await asyncio.sleep(0)

    async def _begin_segment(self, segment: TextSegment) -> None:
        self._put([await self._audio.begin_segment(segment.style)])
        segment.spoken.start_sample = self._audio.num_engine_samples
        if self._audio.has_pending_flush:
            left_s = self._output.ring.left_ms(now_s()) / 1000
            self.drain_at_s = now_s() + min(max(left_s - DRAIN_MARGIN_S, 0.0), MAX_DRAIN_WAIT_S)
        self._queue.report_playback(self._output)

    async def _drain_flush(self, segment: TextSegment | None) -> None:
        """Complete a flush with silence: the next segment's first sound is late."""
        self.drain_at_s = math.inf
        self._put(await self._audio.complete_flush())
        if segment is not None:
            segment.spoken.start_sample = self._audio.num_engine_samples

    async def _apply_event(self, segment: TextSegment, event: SpeechEvent) -> None:
        self._totals.num_engine_events += 1
        match event:
            case SpeechChunk():
                self.drain_at_s = math.inf
                await self._apply_chunk(segment, event)
            case RequestParked():
                segment.is_parked = not segment.closed
                self._output.text_was_short = True
            case RequestFinished():
                self.drain_at_s = math.inf
                await self._apply_segment_end(segment, event)

    async def _apply_chunk(self, segment: TextSegment, chunk: SpeechChunk) -> None:
        segment.has_audio = True
        speech = chunk.pcm
        if self._totals.times.first_chunk_s is None:
            self._totals.times.first_chunk_s, self._totals.times.engine = now_s(), chunk.timings
        segment.num_bytes_to_replay = max(segment.num_bytes_to_replay - len(chunk.codes), 0)
        self._output.put_checkpoint(segment, chunk.codes, self._text.cuts)
        if not self._totals.num_samples and self._services.limits.flush_first_packet:
            first, chunk = self._audio.split_first_packet(chunk)
            self._put(await self._audio.push(first))
            await asyncio.sleep(0)  # now it leaves
        elif self._services.limits.one_chunk_per_loop_iteration:
            await self._services.encoders.wait_turn()
        self._put(await self._audio.push(chunk))
        segment.spoken.push(speech)
        segment.spoken.num_trimmed = self._audio.num_trimmed
        self._output.put_words()
        self._queue.report_playback(self._output)

    async def _apply_segment_end(self, segment: TextSegment, end: RequestFinished) -> None:
        if end.error is not None and end.error.code == EngineOverloaded.code and self._make_room():
            self._queue.submit_again(segment)
            return
        self._totals.on_segment_end(end, self._settings, self._services.metrics)
        if end.reason in (FinishReason.ERROR, FinishReason.CANCELLED):
            error = end.error or EngineError(f"the engine ended with {end.reason}").info
            raise EngineFailed(error.code, error.message, error.param, error.retry_after_ms)
        self._output.put_checkpoint(segment, b"", self._text.cuts, is_complete=True)
        is_break_next = self._settings.reads_markup and self._queue.is_break_next(self._text.waiting)
        self._put(await self._audio.end_segment(is_break_next))
        segment.spoken.finish()
        self._output.put_words()
        self._queue.pop()
        self._text.end_segment(segment)

    def _make_room(self) -> bool:
        """Evict a suspended session that the engine generates for, unless this one is suspended, too."""
        return not self._output.is_suspended and self._services.evict(lambda session: session.is_generating)

    def _put(self, outputs: Iterable[AudioOutput]) -> None:
        self._totals.num_samples = self._audio.num_samples
        self._output.put_audio(outputs)


def _next_event(segment: TextSegment) -> SpeechEvent | None:
    assert segment.stream is not None, "a segment that has not begun"
    return segment.stream.next_event()
