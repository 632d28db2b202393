"""One request of the fake engine: a task that plays the request's script."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import numpy as np

from engine.api import (
    CodedError,
    ErrorInfo,
    FinishReason,
    InvalidRequest,
    RequestFinished,
    RequestParked,
    RequestTimings,
    SpeechChunk,
    SpeechError,
    SpeechEvent,
    SpeechRequest,
    TextLayout,
)
from tests.fakes.engine_script import FRAME_S, FRAME_SAMPLES, FakeScript, tone
from tests.fakes.playback_clock import FakePlaybackClock

if TYPE_CHECKING:
    from tests.fakes.engine import FakeSpeechEngine

BLOCK_FRAMES = 16


class FakeSpeechStream:
    """Implements ``engine.api.SpeechStream``."""

    def __init__(
        self,
        engine: FakeSpeechEngine,
        request: SpeechRequest,
        script: FakeScript,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self.has_slot = False
        self.parked = False
        self.num_frames = 0
        self._engine = engine
        self._request = request
        self._script = script
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._text = request.text
        self._text_closed = request.text_closed
        self._changed = asyncio.Event()
        self._freed = asyncio.Event()
        self._events: asyncio.Queue[SpeechEvent] = asyncio.Queue()
        self._ended = False
        self._drained = False
        self._playback = FakePlaybackClock(self._loop)
        resume = request.resume
        # To be made again, one a frame.
        self._forced = list(np.frombuffer(resume.codes, np.int16)) if resume is not None else []
        self._is_complete = resume is not None and resume.is_complete
        self._submitted_s = self._loop.time()
        self._queue_ms = 0.0
        self._first_text_s: float | None = None
        self._first_chunk_s: float | None = None
        self._note_text()
        self._task = self._loop.create_task(self._speak(), name=f"fake request {request.request_id}")
        self._task.add_done_callback(self._spoken)

    @property
    def request_id(self) -> str:
        return self._request.request_id

    @property
    def ended(self) -> bool:
        """True once the terminal event is queued; the slot comes free later."""
        return self._ended

    @property
    def num_blocks(self) -> int:
        return 1 + self.num_frames // BLOCK_FRAMES

    def push_text(self, text: str) -> None:
        if self._ended:
            return
        if self._text_closed:
            raise InvalidRequest("text is closed", "text")
        self._text += text
        self._note_text()

    def end_input(self) -> None:
        self._text_closed = True
        if not self._text.strip():
            self.fail(InvalidRequest.code, "text is empty")
        self._note_text()

    def report_playback(self, played_samples: int) -> None:
        self._playback.report(played_samples)
        self._changed.set()

    def cancel(self) -> None:
        if not self._drained:
            self._end(FinishReason.CANCELLED)

    def fail(self, code: str, message: str) -> None:
        if not self._ended:
            self._end(FinishReason.ERROR, CodedError(code, message).info)

    def refuse(self, error: SpeechError) -> None:
        self._end(FinishReason.ERROR, error.info)

    async def released(self) -> None:
        await self._freed.wait()

    def next_event(self) -> SpeechEvent | None:
        if self._events.empty():
            return None
        event = self._events.get_nowait()
        self._drained = isinstance(event, RequestFinished)
        return event

    def __aiter__(self) -> AsyncIterator[SpeechEvent]:
        return self

    async def __anext__(self) -> SpeechEvent:
        if self._drained:
            raise StopAsyncIteration
        event = await self._events.get()
        self._drained = isinstance(event, RequestFinished)
        return event

    def _put(self, event: SpeechEvent) -> None:
        self._events.put_nowait(event)
        if self._wake is not None:
            self._wake()
        if isinstance(event, RequestFinished):
            self._wake = None  # a cancelled task keeps this stream until the next garbage collection

    # The request's life

    async def _speak(self) -> None:
        await self._engine.slots.acquire()
        self.has_slot = True
        self._queue_ms = 1000 * (self._loop.time() - self._submitted_s)
        if self._script.parks_first:
            self._put(RequestParked(self.request_id, 0.0))
        while not self._reached_end():
            if self._frames_ready() == 0:
                await self._park()
            else:
                await self._wait_for_lead()
                num_frames = self._frames_ready()
                await asyncio.sleep(self._work_s(num_frames))
                self._emit_chunk(num_frames)

    def _reached_end(self) -> bool:
        """Whether the speech ends before the next frame, and if so, its end."""
        script, frame = self._script, self.num_frames
        if frame == script.fail_at_frame:
            self.fail("engine_error", f"scripted failure at frame {frame}")
        elif frame == script.die_at_frame:
            self._engine.crash()
        elif self._is_complete and not self._forced:
            self._end(FinishReason.STOP)
        elif frame == script.end_at_frame:
            self._end(script.end_reason)
        elif frame == self._request.max_frames:
            self._end(FinishReason.LENGTH)
        elif self._text_closed and frame == self._known_frames():
            self._end(FinishReason.STOP)
        return self._ended

    async def _park(self) -> None:
        if self._first_text_s is not None and not self._waits_for_closed_text():
            self._put(RequestParked(self.request_id, self._playback.lead_ms()))
        self.parked = True
        while self._frames_ready() == 0:
            self._changed.clear()
            await self._changed.wait()
        self.parked = False

    async def _wait_for_lead(self) -> None:
        if self._request.lead_ms is None:
            return
        limit_ms = self._request.lead_ms + 1000 * FRAME_S * self._script.chunk_frames
        while (excess_ms := self._playback.lead_ms() - limit_ms) > 0:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), excess_ms / 1000)
            except TimeoutError:
                continue

    def _work_s(self, num_frames: int) -> float:
        script = self._script
        work_s = num_frames * FRAME_S * script.real_time_factor if self.num_frames else script.first_chunk_s
        if self._forced:
            work_s *= script.replay_factor
        return work_s + script.stalls_s.get(self.num_frames, 0.0)

    def _emit_chunk(self, num_frames: int) -> None:
        timings = None
        if self._first_chunk_s is None:
            self._first_chunk_s = self._loop.time()
            work_ms = 1000 * (self._first_chunk_s - self._submitted_s) - self._queue_ms
            timings = RequestTimings(self._queue_ms, work_ms / 2, work_ms / 4, work_ms / 4)
        start_sample = self.num_frames * FRAME_SAMPLES
        codes, self._forced = self._forced[:num_frames], self._forced[num_frames:]
        codes += [self._script.draw_code() for _ in range(num_frames - len(codes))]
        self.num_frames += num_frames
        last = self._text_closed and self.num_frames == self._known_frames()
        pcm = tone(self._request, start_sample, num_frames * FRAME_SAMPLES)
        if any(codes):
            pcm = pcm + np.repeat(np.array(codes, np.float32) / 256, FRAME_SAMPLES)
        code_bytes = np.array(codes, np.int16).tobytes()
        self._put(SpeechChunk(self.request_id, start_sample, pcm, last=last, codes=code_bytes, timings=timings))
        self._playback.generated(self.num_frames * FRAME_SAMPLES)

    def _end(self, reason: FinishReason, error: ErrorInfo | None = None) -> None:
        """Say the terminal event; a cancel or an error also fences what was queued before it."""
        if reason in (FinishReason.CANCELLED, FinishReason.ERROR):
            while not self._events.empty():
                self._events.get_nowait()
        self._ended = True
        self._put(self._finished(reason, error))
        if self._task is not asyncio.current_task():
            self._task.cancel()

    def _finished(self, reason: FinishReason, error: ErrorInfo | None) -> RequestFinished:
        first_audio_ms = None
        if self._first_chunk_s is not None and self._first_text_s is not None:
            first_audio_ms = 1000 * (self._first_chunk_s - self._first_text_s)
        seed = self._request.sampling.seed
        return RequestFinished(
            self.request_id,
            reason,
            num_frames=self.num_frames,
            num_samples=self.num_frames * FRAME_SAMPLES,
            num_text_tokens=len(self._final_text().split()),
            num_skipped_tokens=self._script.num_skipped_tokens,
            seed=zlib.crc32(self.request_id.encode()) if seed is None else seed,
            queue_ms=self._queue_ms,
            first_audio_ms=first_audio_ms,
            error=error,
        )

    def _spoken(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self.fail("fake_error", repr(error))
        if not self._ended:
            self._end(FinishReason.CANCELLED)
        self._loop.call_later(self._engine.step_s, self._free)

    def _free(self) -> None:
        self._engine.release(self)
        self._freed.set()

    # How much text there is, and how many frames it makes

    def _note_text(self) -> None:
        if self._first_text_s is None and self._final_text():
            self._first_text_s = self._loop.time()
        self._changed.set()

    def _final_text(self) -> str:
        """What later text cannot change: whole words, or all of it once the text is closed."""
        if self._text_closed:
            return self._text.rstrip()
        cut = max((i for i, char in enumerate(self._text) if char.isspace()), default=0)
        return self._text[:cut].rstrip()

    def _waits_for_closed_text(self) -> bool:
        return self._request.layout is TextLayout.FULL and not self._text_closed

    def _known_frames(self) -> int:
        """Frames of the final text, and one to finish on once the text is closed."""
        if self._waits_for_closed_text():
            return 0
        frames = int(len(self._final_text()) * self._script.ms_per_char / (1000 * FRAME_S))
        limit = self._request.max_frames
        frames += self._text_closed
        return frames if limit is None else min(frames, limit)

    def _frames_ready(self) -> int:
        frames = min(self._known_frames() - self.num_frames, self._script.chunk_frames)
        cut = self._script.next_cut(self.num_frames)
        return frames if cut is None else min(frames, cut - self.num_frames)
