"""An engine on a clock that the test moves, and what it said about each request, held against the laws of events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from engine.api import (
    FinishReason,
    Pcm,
    RequestFinished,
    RequestParked,
    ResumePoint,
    SamplingParams,
    SpeechChunk,
    SpeechEvent,
    SpeechRequest,
)
from engine.load import LoadedCheckpoint
from engine.runtime.engine import Engine
from engine.runtime.request import Request, RequestPhase, RequestReleased, StepBatch

MAX_STEPS = 20_000


@dataclass
class RecordedRequest:
    """One request from outside: its events so far, checked as they come."""

    spec: SpeechRequest
    events: list[SpeechEvent] = field(default_factory=list)
    released: bool = False
    num_samples: int = 0
    # What it went on from.
    before: Pcm = field(default_factory=lambda: np.zeros(0, np.float32))

    @property
    def point(self) -> ResumePoint | None:
        """Where another engine can go on: none while nothing has been received."""
        codes = self.spec.resume.codes if self.spec.resume and self.spec.is_takeover else b""
        codes += b"".join(chunk.codes for chunk in self.chunks)
        return ResumePoint(codes=codes, num_samples=self.num_samples) if self.num_samples else None

    def take(self, event: SpeechEvent | RequestReleased) -> None:
        assert not self.released, "an event after Released"
        if isinstance(event, RequestReleased):
            assert self.end is not None, "released before the terminal event"
            self.released = True
            return
        assert self.end is None, f"{event} after the terminal event"
        if isinstance(event, SpeechChunk):
            self._take_chunk(event)
        if isinstance(event, RequestFinished):
            assert event.num_samples == self.num_samples
            is_whole = event.reason not in (FinishReason.CANCELLED, FinishReason.ERROR)
            assert not is_whole or self.chunks[-1].last, "ended without a last chunk"
        if isinstance(event, RequestParked):
            assert self.num_samples or event.lead_ms, "starved before the first frame"
        self.events.append(event)

    def _take_chunk(self, chunk: SpeechChunk) -> None:
        assert not any(c.last for c in self.chunks), "a chunk after the last"
        assert chunk.start_sample == self.num_samples, "chunks do not abut"
        self.num_samples = chunk.start_sample + len(chunk.pcm)

    @property
    def chunks(self) -> list[SpeechChunk]:
        return [event for event in self.events if isinstance(event, SpeechChunk)]

    @property
    def starved(self) -> list[RequestParked]:
        return [event for event in self.events if isinstance(event, RequestParked)]

    @property
    def end(self) -> RequestFinished | None:
        last = self.events[-1] if self.events else None
        return last if isinstance(last, RequestFinished) else None

    @property
    def reason(self) -> FinishReason | None:
        return self.end.reason if self.end else None

    @property
    def pcm(self) -> Pcm:
        return np.concatenate([self.before, *(chunk.pcm for chunk in self.chunks)])


class EngineHarness:
    def __init__(self, engine: Engine) -> None:
        self.now_s = 100.0
        # What a step takes on the clock.
        self.step_s = 0.0
        self.engine, self.config = engine, engine.config
        self.engine.requests.clock = lambda: self.now_s
        self.heard: dict[int, RecordedRequest] = {}
        self.num_submitted = 0
        self.admitted: list[int] = []
        self.batches: list[StepBatch] = []
        self.keep_batches = False
        self._schedule = self.engine.scheduler.schedule
        self.engine.scheduler.schedule = self._watched  # type: ignore[method-assign]
        self.on_batch: Callable[[StepBatch], None] = lambda batch: None

    @classmethod
    def from_checkpoint(cls, loaded: LoadedCheckpoint) -> EngineHarness:
        """Make an engine that has not warmed up: dummy requests cost as much as a short one, and change no other."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Engine, "warm_up", Engine.choose_device)
            return cls(loaded.make_engine())

    def _watched(self, now_s: float) -> StepBatch:
        before = set(self.engine.scheduler.running)
        batch = self._schedule(now_s)
        self.admitted += [r.epoch for r in self.engine.scheduler.running if r not in before]
        if self.keep_batches:
            self.batches.append(batch)
        self.on_batch(batch)
        return batch

    def submit(self, **spec: object) -> int:
        self.num_submitted += 1
        epoch = self.num_submitted
        request = SpeechRequest(**({"request_id": f"r{epoch}"} | spec))  # type: ignore[arg-type]
        self.heard[epoch] = RecordedRequest(request)
        if request.resume is not None:
            self.heard[epoch].num_samples = request.resume.num_samples
        self.engine.requests.submit(request, epoch)
        self.collect()
        return epoch

    def push_text(self, epoch: int, text: str) -> None:
        self.engine.requests.push_text(epoch, text)
        self.collect()

    def end_input(self, epoch: int) -> None:
        self.engine.requests.end_input(epoch)
        self.collect()

    def cancel(self, epoch: int) -> None:
        self.engine.requests.cancel(epoch)
        self.collect()

    def step(self) -> None:
        self.engine.step()
        self.now_s += self.step_s
        self.collect()
        self.check_accounts()
        stage, running = self.engine.stage, self.engine.scheduler.running
        assert stage.slots.num_free == stage.slots.num_slots - len(running), "slots held by nobody after a step"
        assert not self.engine.pool.num_quarantined

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Step while anything can move, and let the clock jump when only time can move it."""
        for _ in range(MAX_STEPS):
            if until():
                return
            if self.engine.has_work:
                self.step()
                continue
            wake_s = self.engine.next_wake_s()
            if wake_s is None:
                return
            self.now_s = max(self.now_s + 1e-6, wake_s)
        raise AssertionError(f"still running after {MAX_STEPS} steps: {self.engine.stats()}")

    def collect(self) -> None:
        events, self.engine.requests.events = self.engine.requests.events, []
        for epoch, event in events:
            self.heard[epoch].take(event)

    def request(self, epoch: int) -> Request:
        return self.engine.requests.active[epoch]

    def row(self, epoch: int) -> Request | None:
        return self.engine.requests.active.get(epoch)

    def check_accounts(self) -> None:
        """free + held = total for blocks and slots, and every held one has exactly one owner that may hold it."""
        engine, running = self.engine, self.engine.scheduler.running
        engine.pool.check_invariants()
        tables = [block for request in engine.requests.active.values() for block in request.block_table]
        assert len(tables) == len(set(tables)) == engine.pool.num_held - engine.pool.num_quarantined
        slots = [request.slot for request in running]
        assert None not in slots
        assert len(slots) == len(set(slots))
        assert engine.stage.slots.num_free <= engine.stage.slots.num_slots - len(slots)
        for request in engine.requests.active.values():
            assert (request.slot is None) == (request.phase is RequestPhase.WAITING)
            assert request.phase is RequestPhase.RUNNING or not request.block_table
            assert request.phase is not RequestPhase.DONE

    def check_idle(self) -> None:
        assert not self.engine.requests.active
        assert all(heard.released for heard in self.heard.values())
        assert all(heard.end for heard in self.heard.values())
        self.engine.check_nothing_held()
        self.engine.pool.check_invariants()
        assert self.engine.pool.num_free == self.engine.pool.num_blocks
        assert self.engine.stage.slots.num_free == self.engine.stage.slots.num_slots
        assert not self.engine.scheduler.waiting


def check_takeover(make: Callable[[], EngineHarness], tolerance: float, **spec: Any) -> None:
    """Another engine, busy with another request, goes on after some chunks with the samples of an uncut request."""
    whole = make()
    uncut = whole.heard[whole.submit(**spec)]
    whole.run()
    assert len(uncut.chunks) > 2, uncut.end
    for num_chunks in (1, len(uncut.chunks) // 2):
        last = uncut.chunks[num_chunks - 1]
        received = RecordedRequest(uncut.spec, list(uncut.chunks[:num_chunks]), num_samples=last.start_sample)
        received.num_samples += len(last.pcm)
        other = make()
        other.submit(**(spec | {"text": "another", "sampling": SamplingParams(seed=99, min_new_tokens=9)}))
        other.step()
        resumed = other.heard[other.submit(**spec, resume=received.point)]
        resumed.before = received.pcm
        other.run()
        other.check_idle()
        assert resumed.reason == uncut.reason
        np.testing.assert_allclose(resumed.pcm, uncut.pcm, rtol=0, atol=tolerance)
        assert resumed.point == uncut.point
    check_replay(make, uncut, tolerance, **spec)


def check_replay(make: Callable[[], EngineHarness], uncut: RecordedRequest, tolerance: float, **spec: Any) -> None:
    """Another engine makes the audio of some codes again from its beginning, and goes on behind them if there are more.

    It does not end early, and needs no talker for a request that was complete."""
    num_chunks = len(uncut.chunks)
    for num_received in (num_chunks // 2, num_chunks):
        is_complete = num_received == num_chunks
        codes = b"".join(chunk.codes for chunk in uncut.chunks[:num_received])
        point = ResumePoint(codes=codes, num_samples=0, is_complete=is_complete)
        other = make()
        other.submit(**(spec | {"text": "another", "sampling": SamplingParams(seed=99, min_new_tokens=9)}))
        other.step()
        replayed = other.heard[other.submit(**spec, resume=point)]
        other.keep_batches = True
        other.run()
        other.check_idle()
        assert replayed.reason == (FinishReason.STOP if is_complete else uncut.reason)
        np.testing.assert_allclose(replayed.pcm, uncut.pcm, rtol=0, atol=tolerance)
        assert replayed.point == uncut.point
        ids = {work.request.spec.request_id for batch in other.batches for work in batch.items}
        assert (replayed.spec.request_id in ids) != is_complete
