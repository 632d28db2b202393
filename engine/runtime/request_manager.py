"""Requests between steps: text in, events out, and everything held released exactly once. No torch."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from engine.api import FinishReason, InvalidRequest, RequestFinished, RequestParked, SpeechChunk, SpeechRequest
from engine.config import EngineConfig
from engine.errors import OVERLOAD_RETRY_MS, EngineError, EngineOverloaded, ErrorInfo, RequestTooLong
from engine.models.base import SequenceState, SpeechModel
from engine.runtime.admission import QueueLimits, RequestCounts
from engine.runtime.request import (
    Emitted,
    LoopGuard,
    PlaybackClock,
    Request,
    RequestPhase,
    RequestReleased,
    Resumption,
    SilenceGuard,
)

if TYPE_CHECKING:
    from engine.runtime.scheduler import Scheduler

# Positions after the text in a full-text prompt.
PROMPT_END_ROWS = 2
# Level below which audio is near-silence.
SILENCE_DBFS = -60.0
# Longest repeating pattern that is looked for, in frames.
MAX_LOOP_PERIOD = 8
NO_PCM = np.zeros(0, dtype=np.float32)


def request_error(error: Exception) -> ErrorInfo:
    """Describe what ended one request."""
    return (error if isinstance(error, EngineError) else EngineError(f"{type(error).__name__}: {error}")).info


class RequestManager:
    """Owns the requests, their counts and their events; a part of ``Engine``.

    ``active`` by epoch are all that have not ended. ``capacity`` is how many positions one of them can have.
    """

    def __init__(
        self,
        model: SpeechModel,
        scheduler: Scheduler,
        config: EngineConfig,
        capacity: int,
        sample_rate: int,
        clock: Callable[[], float],
    ) -> None:
        self.model, self.scheduler, self.config = model, scheduler, config
        self.capacity, self.sample_rate, self.clock = capacity, sample_rate, clock
        self.queue_limits = QueueLimits.from_config(config)
        self.counts = RequestCounts()
        self.active: dict[int, Request] = {}
        self.released: list[Request] = []
        self.events: list[Emitted] = []
        self.num_finished = 0

    def submit(self, spec: SpeechRequest, epoch: int) -> None:
        """Queue a request. A bad one ends at once, with its terminal event."""
        seed = secrets.randbits(48) if spec.sampling.seed is None else spec.sampling.seed
        try:
            self.check_capacity(spec)
            request = self.new_request(spec, epoch, seed)
        except Exception as error:
            end = RequestFinished(spec.request_id, FinishReason.ERROR, error=request_error(error), seed=seed)
            self.events += [(epoch, end), (epoch, RequestReleased(spec.request_id))]
            return
        self.active[epoch] = request
        self.counts.add(spec)
        self.scheduler.waiting.append(request)
        if spec.text:
            self.push_text(epoch, spec.text)
        if spec.text_closed:
            self.end_input(epoch)

    def check_capacity(self, spec: SpeechRequest) -> None:
        """Check that there is room. Raises ``EngineOverloaded``. A paced reply must also be carried without a gap
        beside the other paced ones; burst rows take only what those leave."""
        self.queue_limits.check(self.counts, spec)
        num_paced, frame_s = self.counts.num_paced, self.config.admission_utilization * self.scheduler.frame_s
        is_one_more = num_paced > 0 and not spec.is_burst and spec.segment == 0 and not spec.is_takeover
        if is_one_more and not self.scheduler.step_model.can_sustain(num_paced + 1, frame_s):
            raise EngineOverloaded(
                f"one more than {num_paced} paced requests would be heard with gaps", OVERLOAD_RETRY_MS
            )

    def new_request(self, spec: SpeechRequest, epoch: int, seed: int) -> Request:
        row = self.model.new_sequence(spec, seed)
        needed = row.num_prefix + row.num_reserved + PROMPT_END_ROWS + self.config.min_frame_cap
        if needed > self.capacity:
            raise RequestTooLong(
                f"voice and instruct need {needed} positions; the cache holds {self.capacity}", "instruct"
            )
        now_s = self.clock()
        return Request(
            spec=spec,
            epoch=epoch,
            seed=seed,
            row=row,
            tokens=self.model.tokenizer.incremental(),
            clock=self.playback_clock(spec),
            silence=SilenceGuard(int(self.config.silence_limit_s * self.sample_rate), SILENCE_DBFS),
            loop=LoopGuard(self.config.loop_limit_frames, MAX_LOOP_PERIOD),
            prefix_key=self.model.prefix_key(row),
            submitted_s=now_s,
            first_text_s=now_s,
            frame_cap=self.frame_cap(spec, row),
            resumption=self.resumption(spec),
            num_codes_sent=len(spec.resume.codes) // 2 if spec.resume and spec.is_takeover else 0,
        )

    def playback_clock(self, spec: SpeechRequest) -> PlaybackClock:
        """The listener of a resumed request has its audio up to there, and may have played all of it."""
        clock = PlaybackClock(self.sample_rate)
        if spec.resume is not None and spec.resume.num_samples:
            clock.emit(spec.resume.num_samples, self.clock())
            clock.report(spec.resume.num_samples, self.clock())
        return clock

    def resumption(self, spec: SpeechRequest) -> Resumption | None:
        if spec.resume is None:
            return None
        stage, size = self.scheduler.stage, self.model.codes_per_step
        found = Resumption.from_point(spec.resume, size, stage.frame_samples)
        return found if spec.resume.codes or spec.resume.is_complete else None

    def push_text(self, epoch: int, text: str) -> None:
        request = self.active.get(epoch)
        if request is None or request.row.text.closed:
            return
        if not request.num_chars:
            request.first_text_s = self.clock()
        request.num_chars += len(text)
        if request.num_chars > self.config.max_text_chars:
            limit = f"text has {request.num_chars} characters; one request takes {self.config.max_text_chars}"
            self.fail(request, RequestTooLong(limit, "text"))
            return
        self.tokenize_text(request, lambda: request.tokens.push(text))

    def end_input(self, epoch: int) -> None:
        request = self.active.get(epoch)
        if request is None or request.row.text.closed:
            return
        request.row.text.closed = request.has_new_text = True
        self.tokenize_text(request, request.tokens.finish)
        self.record_prompt(request)
        if not request.row.text.ids and request.phase is not RequestPhase.DONE:
            self.fail(request, InvalidRequest("text holds nothing that can be spoken", "text"))

    def tokenize_text(self, request: Request, ids: Callable[[], list[int]]) -> None:
        try:
            self.add_ids(request, ids())
        except Exception as error:
            self.fail(request, error)

    def add_ids(self, request: Request, ids: list[int]) -> None:
        if not ids:
            return
        request.has_new_text = True
        if request.first_token_s is None:
            request.first_token_s = self.clock()
        request.row.text.ids += ids
        num_tokens = len(request.row.text.ids)
        row = request.row
        if row.num_prompt_tokens is not None and num_tokens >= row.num_prompt_tokens:
            self.record_prompt(request)
        request.frame_cap = self.frame_cap(request.spec, row)
        num_positions = row.num_prefix + row.num_reserved + num_tokens + PROMPT_END_ROWS + request.frame_cap
        if num_positions > self.capacity:
            detail = f"{num_tokens} tokens may need {num_positions} positions; the cache holds {self.capacity}"
            raise RequestTooLong(f"text is too long: {detail}", "text")

    def frame_cap(self, spec: SpeechRequest, row: SequenceState) -> int:
        """A named limit on runaway speech: from the length of the text, unless the request says its own."""
        from_text = row.frame_cap()
        if from_text is None:
            from_text = self.config.min_frame_cap + self.config.frames_per_text_token * len(row.text.ids)
        return min(spec.max_frames or from_text, self.config.max_frames)

    def record_prompt(self, request: Request) -> None:
        """The text is there that the first frame needs."""
        if request.prompt_ready_s is None:
            request.prompt_ready_s = self.clock()

    def report_playback(self, epoch: int, played_samples: int) -> None:
        if request := self.active.get(epoch):
            request.clock.report(played_samples, self.clock())

    def cancel(self, epoch: int) -> None:
        if request := self.active.get(epoch):
            self.finish(request, FinishReason.CANCELLED)

    # -- how a request ends --------------------------------------------------------------------------------------

    def process_scheduled(self) -> None:
        """Report what scheduling a step came upon: requests without text, and failed ones."""
        for request in self.scheduler.parked:
            self.report_parked(request)
        for request, error in self.scheduler.failed:
            self.fail(request, error)
        self.scheduler.parked.clear()
        self.scheduler.failed.clear()

    def report_parked(self, request: Request) -> None:
        if request.num_frames:
            lead_ms = 1000 * request.generated_lead_s(self.clock(), self.scheduler.frame_s)
            self.events.append((request.epoch, RequestParked(request.spec.request_id, lead_ms)))

    def fail(self, request: Request, error: Exception) -> None:
        request.error = request_error(error)
        self.finish(request, FinishReason.ERROR)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """The one way out: terminal event, then everything the request held goes back."""
        if request.epoch not in self.active:
            return
        if reason not in (FinishReason.CANCELLED, FinishReason.ERROR) and not request.last_sent:
            end = request.clock.num_emitted
            self.events.append((request.epoch, SpeechChunk(request.spec.request_id, end, NO_PCM, last=True)))
        self.events.append((request.epoch, self.build_finished_event(request, reason)))
        self.scheduler.release(request)
        del self.active[request.epoch]
        self.counts.remove(request.spec)
        self.released.append(request)
        self.num_finished += 1

    def report_released(self) -> None:
        """The step has passed: what ended requests held is free."""
        self.events += [(request.epoch, RequestReleased(request.spec.request_id)) for request in self.released]
        self.released.clear()

    def build_finished_event(self, request: Request, reason: FinishReason) -> RequestFinished:
        started = request.started_s if request.started_s is not None else self.clock()
        return RequestFinished(
            request_id=request.spec.request_id,
            reason=reason,
            num_frames=request.num_frames,
            num_samples=request.clock.num_emitted,
            num_text_tokens=len(request.row.text.ids),
            num_skipped_tokens=request.row.num_dropped,
            seed=request.seed,
            queue_ms=1000 * max(0.0, started - request.first_text_s),
            first_audio_ms=self.ms_since_first_token(request, request.first_chunk_s),
            num_prompt_tokens=self.num_prompt_tokens(request),
            prompt_wait_ms=self.ms_since_first_token(request, request.prompt_ready_s),
            error=request.error,
        )

    @staticmethod
    def ms_since_first_token(request: Request, moment_s: float | None) -> float | None:
        if moment_s is None or request.first_token_s is None:
            return None
        return 1000 * (moment_s - request.first_token_s)

    @staticmethod
    def num_prompt_tokens(request: Request) -> int:
        needed, there = request.row.num_prompt_tokens, len(request.row.text.ids)
        return there if needed is None else min(needed, there)
