"""Decides what is decoded in a step and when it leaves: in rounds, or in calls that are launched ahead."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import accumulate, compress
from operator import not_
from typing import Protocol

import numpy as np

from engine.config import EngineConfig
from engine.models.base import DecodedAudio, DecodeStage
from engine.runtime.admission import DEADLINE_S
from engine.runtime.call_planner import CALL_FRAMES, DECODE_BATCHING_SLACK_S
from engine.runtime.codec_runners import GraphCodec
from engine.runtime.codec_stage import CodecStage
from engine.runtime.request import Request, RequestPhase, StepBatch
from engine.runtime.request_manager import RequestManager
from engine.runtime.runner import GraphKey, StepTimings
from engine.runtime.scheduler import Scheduler

MIN_ROUND_FRAMES = 16
# Burst frames that are decoded in a step beside paced requests, for each row: a little more than it makes.
ROUND_SHARE = 1.25
MAX_CALL_FRAMES = CALL_FRAMES[0]
MIN_BURST_SLACK_S = 0.001
# Maximum rows of a step beside which launches wait for first chunks. With more, the host has no time to wait.
MAX_ROWS_WAITING = 64
# A frame that was sampled: the request and its codes.
Frame = tuple[Request, Sequence[int]]


class DecodingHost(Protocol):
    """The engine, as its decoding sees it."""

    config: EngineConfig
    scheduler: Scheduler
    times: StepTimings
    requests: RequestManager

    def emit(self, chunks: Iterable[DecodedAudio]) -> None: ...
    def hand_over(self) -> None: ...
    def read_commands(self) -> None: ...


class RoundDecoding:
    """Decodes in rounds of ``stage.step``, whose PCM leaves within the step."""

    graph_keys: Sequence[GraphKey] = ()
    # Calls have been launched and not collected.
    in_flight = False

    def __init__(self, stage: DecodeStage, host: DecodingHost) -> None:
        self.stage, self.host = stage, host

    def feed(self, frames: Iterable[Frame]) -> None:
        for request, codes in frames:
            try:
                self.stage.feed(request.held_slot, codes)
            except Exception as error:
                self.host.requests.fail(request, error)

    def emit_completed(self) -> int:
        """Nothing is in flight between steps."""
        return 0

    def decode(self, batch: StepBatch) -> int:
        """Decode and emit what is due after this batch; returns the number of chunks.

        Beside paced requests burst rows come behind, in small rounds: a step then decodes about as many frames as it
        makes, and a paced request that arrives meanwhile waits for one round.
        """
        host, scheduler, num_rows = self.host, self.host.scheduler, len(batch)
        if not (scheduler.num_burst_slots and scheduler.spares_paced):
            return self.decode_round(None)
        num_chunks = self.decode_round({r.held_slot for r in scheduler.running if not r.is_burst})
        num_frames = max(MIN_ROUND_FRAMES, round(ROUND_SHARE * num_rows))
        while num_frames > 0:
            host.hand_over()
            host.read_commands()
            is_urgent = num_rows > 0 and scheduler.paced_slack_s(host.requests.clock()) <= 0.0
            newcomer = scheduler.next_admitted()
            is_paced_next = newcomer is not None and not newcomer.is_burst
            if is_urgent or is_paced_next or not (due := self.due_burst_frames()):
                break
            chosen = first_slots(due, MIN_ROUND_FRAMES)
            num_frames -= sum(due[slot] for slot in chosen)
            num_chunks += self.decode_round(chosen)
        return num_chunks

    def decode_round(self, slots: Container[int] | None) -> int:
        """One round of the decode stage, over all slots or those given."""
        start = time.perf_counter()
        now, slack, wanted = self.host.requests.clock(), {}, {}
        for request in self.host.scheduler.running:
            slot = request.held_slot
            slack[slot], wanted[slot] = self.slack_s(request, now), wanted_frames(request, self.host.config)
            if slots is not None and slot not in slots:
                slack[slot], wanted[slot] = math.inf, sys.maxsize
        try:
            chunks = self.stage.step(slack, wanted)
        finally:
            self.host.times.decode_s += time.perf_counter() - start
        self.host.emit(chunks)
        return len(chunks)

    def due_burst_frames(self) -> dict[int, int]:
        """Frames by slot that one decode call would take of each burst row, the row that runs dry first leading."""
        now, due, config = self.host.requests.clock(), {}, self.host.config
        for request in sorted(self.host.scheduler.running, key=DEADLINE_S):
            num_pending, wanted = request.num_pending_frames, wanted_frames(request, config)
            is_patient = self.slack_s(request, now) > DECODE_BATCHING_SLACK_S
            if request.is_burst and num_pending and not (is_patient and num_pending < wanted):
                due[request.held_slot] = min(num_pending, MAX_CALL_FRAMES)
        return due

    def slack_s(self, request: Request, now_s: float) -> float:
        """Return how long the listener can wait for its next chunk; 0 for a row that samples nothing now."""
        samples = self.host.scheduler.can_run(request, now_s) and not request.lacks_blocks
        return chunk_slack_s(request, now_s, samples)

    def close(self) -> None:
        """Nothing is held."""


class CallDecoding:
    """Launches calls over graphs and collects them a step later, the most urgent call by itself."""

    def __init__(self, stage: CodecStage, codec: GraphCodec, host: DecodingHost) -> None:
        self.stage, self.codec, self.host = stage, codec, host

    @property
    def in_flight(self) -> bool:
        return bool(self.stage.calls)

    @property
    def graph_keys(self) -> Sequence[GraphKey]:
        """Largest first."""
        return [(self.codec.graphs, key) for key in reversed(self.codec.call_shapes)]

    def feed(self, frames: Iterable[Frame]) -> None:
        """The codes are in the ring already."""
        self.stage.feed_batch([request.held_slot for request, _ in frames])

    def decode(self, batch: StepBatch) -> int:
        """Launch what is due after this batch, and emit the calls of the step before; returns the number of chunks."""
        num_chunks = self.emit_before_launch(len(batch))
        num_old = len(self.stage.calls)
        sampled = [work.request.slot for work in batch.items if work.sample]
        self.stage.speculate([slot for slot in sampled if slot is not None])
        self.launch()
        size = 1 if self.host.config.emit_per_decode_call else max(1, num_old)
        return num_chunks + sum(self.emit_calls(min(size, num_old - start)) for start in range(0, num_old, size))

    def launch(self) -> None:
        start = time.perf_counter()
        now, running, size = self.host.requests.clock(), self.host.scheduler.running, self.stage.slots.num_slots + 1
        slots = [request.held_slot for request in running]
        slack, wanted = np.zeros(size), np.full(size, self.host.config.chunk_frames[-1])
        slack[slots] = [self.slack_s(request, now) for request in running]
        num_first = len(self.host.config.chunk_frames)
        for request in running:
            if request.num_chunks < num_first or request.spec.chunk_frames:
                wanted[request.held_slot] = wanted_frames(request, self.host.config)
        self.stage.launch(slack, wanted)
        self.host.times.launch_s += time.perf_counter() - start

    def emit_before_launch(self, num_rows: int) -> int:
        """Emit what is decoded by now, and wait for first chunks: launches take longer than these, and the device
        computes a frame meanwhile."""
        if num_rows > MAX_ROWS_WAITING or not self.host.config.emit_per_decode_call:
            return 0
        num_chunks, calls = self.emit_completed(), self.stage.calls
        while calls and calls[0].num_frames == 1 and calls[0].has_first:
            num_chunks += self.emit_calls(1)
        return num_chunks

    def emit_completed(self) -> int:
        """Emit what has been decoded by now. The first calls are those of listeners who run dry first."""
        num_chunks = 0
        while self.host.config.emit_per_decode_call and self.stage.is_done:
            num_chunks += self.emit_calls(1)
        return num_chunks

    def emit_calls(self, num_calls: int) -> int:
        """Emit the oldest calls, and hand them over at once if a listener of the first one is about to run dry."""
        is_urgent = self.stage.calls[0].slack_s <= DECODE_BATCHING_SLACK_S
        start = time.perf_counter()
        try:
            chunks = self.stage.collect(num_calls)
        finally:
            self.host.times.decode_s += time.perf_counter() - start
        first, others = self.split_first(chunks) if is_urgent else ([], chunks)
        for some in (first, others):
            self.host.emit(some)
            if some and is_urgent:
                self.host.hand_over()
        return len(chunks)

    def split_first(self, chunks: Sequence[DecodedAudio]) -> tuple[list[DecodedAudio], list[DecodedAudio]]:
        """First chunks, which leave before the others are looked at, and the others."""
        if not self.host.config.send_first_chunks_at_once:
            return [], list(chunks)
        by_slot = self.host.scheduler.by_slot
        requests = [by_slot.get(chunk.slot) for chunk in chunks]
        is_first = [request is not None and request.first_chunk_s is None for request in requests]
        return list(compress(chunks, is_first)), list(compress(chunks, map(not_, is_first)))

    def slack_s(self, request: Request, now_s: float) -> float:
        """A row at its lead gathers like any other: it plays on, and its next frame is due before it runs dry."""
        is_usual = not (request.parked or request.lacks_blocks or request.is_burst or request.spec.chunk_frames)
        if is_usual and request.phase is RequestPhase.RUNNING:
            return request.clock.lead_s(now_s)
        samples = request.phase is RequestPhase.RUNNING and not request.waits_for_text and not request.lacks_blocks
        if samples and (request.is_burst or request.spec.chunk_frames):
            samples = self.host.scheduler.can_run(request, now_s)
        return chunk_slack_s(request, now_s, samples)

    def close(self) -> None:
        self.codec.lane.close()


Decoding = RoundDecoding | CallDecoding


def first_slots(num_frames: Mapping[int, int], max_frames: int) -> set[int]:
    """The first slots that together hold ``max_frames`` frames, and at least one."""
    ahead = accumulate(num_frames.values(), initial=0)
    return {slot for slot, num_ahead in zip(num_frames, ahead, strict=False) if num_ahead < max_frames}


def wanted_frames(request: Request, config: EngineConfig) -> int:
    """Return the frames of the request's next chunk, by its own schedule or the engine's."""
    schedule = request.spec.chunk_frames or config.chunk_frames
    return schedule[min(request.num_chunks, len(schedule) - 1)]


def chunk_slack_s(request: Request, now_s: float, samples: bool) -> float:
    """Slack of a row that does or does not sample now. A burst reply never goes before others."""
    min_slack_s = MIN_BURST_SLACK_S if request.is_burst else 0.0
    if not samples:
        return min_slack_s
    return math.inf if request.spec.chunk_frames else max(min_slack_s, request.clock.lead_s(now_s))
