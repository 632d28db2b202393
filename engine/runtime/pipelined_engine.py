"""The loop body when the device works ahead: launch a step, and while it runs hand over what the last one made.

    collect frame n-1 | schedule n | launch frame n, decode n | collect decode n-1 | hand over

The device is given decode n without waiting for the host to have seen frame n, so that scheduling, text and hand-over
run beside it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from engine.api import SpeechRequest
from engine.config import EngineConfig
from engine.memory.kv_cache import PagedKV
from engine.memory.prefix_cache import PrefixCache
from engine.models.base import DecodedAudio, FrameOutcome, SpeechModel
from engine.ops.parallel_compile import compile_only
from engine.process import freeze_gc
from engine.program.capture import GraphSet
from engine.runtime.call_planner import CALL_FRAMES
from engine.runtime.engine import MIN_BURST_SLACK_S, STALL_RETRY_S, Engine
from engine.runtime.graph_decode_stage import GraphDecodeStage
from engine.runtime.graph_runner import GraphRunner
from engine.runtime.model_runner import Result
from engine.runtime.request import Request, RequestPhase, StepBatch
from engine.runtime.step_model import StepTimeTable

log = logging.getLogger(__name__)

# The first graph takes no longer where its kernels have been compiled before.
COLD_COMPILE_THRESHOLD_S = 4.0


class PipelinedEngine(Engine):
    runner: GraphRunner
    stage: GraphDecodeStage

    def __init__(
        self,
        model: SpeechModel,
        stage: GraphDecodeStage,
        make_runner: Callable[[PagedKV, PrefixCache], GraphRunner],
        config: EngineConfig,
        **settings: Any,
    ) -> None:
        super().__init__(model, stage, config, **settings)
        self.runner = make_runner(self.kv, self.prefixes)
        self.scheduler.burst_model = self.step_model

    @property
    def capacity(self) -> int:
        return min(super().capacity, self.runner.tables.rows.shape[1] * self.config.block_size)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Capture every graph before the first request, unless each is captured on first use; then generate dummy
        frames.
        """
        self.choose_device()
        if not self.config.lazy_graph_capture:
            start = time.perf_counter()
            for number, (graphs, key) in enumerate(self.graph_keys(), 1):
                graphs.capture(*key)
                if number == 1 and time.perf_counter() - start > COLD_COMPILE_THRESHOLD_S:
                    self.precompile_kernels()
                log.debug(
                    "graph %d of %d: %s, %.1f s", number, len(self.graph_keys()), key, time.perf_counter() - start
                )
            log.info("%d graphs in %.1f s", len(self.graph_keys()), time.perf_counter() - start)
        super().warm_up()
        self.step_model.calibrate(self.measure_step_times())
        if self.runner.device.type == "cuda":
            freeze_gc()

    def precompile_kernels(self) -> None:
        """What all graphs launch, side by side: one after another it takes a minute."""
        start = time.perf_counter()
        try:
            with compile_only():
                for graphs, key in self.graph_keys():
                    graphs.warm_up(*key)
        except Exception:
            log.warning("parallel kernel compilation unavailable; compiling on demand", exc_info=True)
        else:
            log.info("kernels compiled in %.1f s", time.perf_counter() - start)

    def measure_step_times(self) -> StepTimeTable | None:
        """Time of a step of dummy rows: the frame, and the decoding of as many frames in large calls.

        None where the CPU has a part: there steps teach what they take.
        """
        stage_device = self.stage.program.device
        if self.config.lazy_graph_capture or "cpu" in (self.runner.device.type, stage_device.type):
            return None
        most = CALL_FRAMES[0]
        buckets = {rows: self.stage.bucket(-(-rows // most), most) for rows in self.runner.frame_buckets}
        return StepTimeTable({rows: self.estimate_step_s(rows, calls) for rows, calls in buckets.items()})

    def estimate_step_s(self, rows: int, call_rows: int) -> float:
        """Of the second run; the first is for the clocks of the chip."""
        took_s = 0.0
        for _ in range(2):
            torch.cuda.synchronize(self.runner.device)
            start = time.perf_counter()
            self.runner.frames.replay(rows)
            decoding = self.stage.lane.run(lambda: self.stage.graphs.replay(call_rows, CALL_FRAMES[0]))
            torch.cuda.synchronize(self.runner.device)
            decoding.wait()
            took_s = time.perf_counter() - start
        return took_s

    def close(self) -> None:
        self.stage.lane.close()

    def choose_device(self) -> None:
        """Kernels go to the device that is current on their thread."""
        if self.runner.device.type == "cuda":
            torch.cuda.set_device(self.runner.device)

    def prefetch(self, spec: SpeechRequest) -> None:
        self.choose_device()
        super().prefetch(spec)

    def graph_keys(self) -> list[tuple[GraphSet, tuple[int, ...]]]:
        """Largest first: the smaller ones then fit in the memory of the larger."""
        runner, stage = self.runner, self.stage
        return [
            *((runner.frames, (rows,)) for rows in reversed(runner.frame_buckets)),
            *((runner.prefills, (tokens,)) for tokens in reversed(runner.token_buckets)),
            *((stage.graphs, key) for key in reversed(stage.call_shapes)),
        ]

    @torch.inference_mode()
    def step(self) -> None:
        start = self.clock()
        self.choose_device()
        self.process_results(self.runner.collect(self.times))
        num_chunks = self.emit_completed_calls()
        batch = self.scheduler.schedule(self.clock())
        num_chunks += self.emit_completed_calls()
        num_old = len(self.stage.calls)
        self.process_results(self.runner.launch(batch, self.times))
        self.speculate(batch)
        self.launch_decode()
        num_chunks += self.emit_calls(num_old)
        self.retire_finished()
        got_somewhere = len(batch) or num_chunks or self.stage.busy or self.released or self.pool.num_quarantined
        self.retry_s = 0.0 if got_somewhere else self.clock() + STALL_RETRY_S
        self.release_finished()
        self.record_step(batch, self.clock() - start)

    def process_results(self, results: Iterable[Result]) -> None:
        results = list(results)
        self.stage.feed_batch([request.held_slot for request, outcome in results if isinstance(outcome, FrameOutcome)])
        super().process_results(results)

    def feed_decoder(self, request: Request, codes: Sequence[int]) -> None:
        """The stage was fed all frames in one call."""
        self.count_frame(request, codes[0])

    def slack_s(self, request: Request, now_s: float) -> float:
        """One at its lead gathers like any other: it plays on, and its next frame is due before it runs dry."""
        if request.phase is not RequestPhase.RUNNING or request.waits_for_text or request.lacks_blocks:
            return MIN_BURST_SLACK_S if request.is_burst else 0.0
        if request.is_burst or request.spec.chunk_frames:
            return super().slack_s(request, now_s)
        return request.clock.lead_s(now_s)

    def speculate(self, batch: StepBatch) -> None:
        sampled = [work.request.slot for work in batch.items if work.sample]
        self.stage.speculate([slot for slot in sampled if slot is not None])

    def launch_decode(self) -> None:
        start = time.perf_counter()
        now, running = self.clock(), self.scheduler.running
        slots = [request.held_slot for request in running]
        slack, wanted = (
            np.zeros(self.stage.slots.num_slots + 1),
            np.ones(self.stage.slots.num_slots + 1, dtype=np.int64),
        )
        slack[slots] = [self.slack_s(request, now) for request in running]
        wanted[slots] = [self.wanted_frames(request) for request in running]
        self.stage.launch(slack, wanted)
        self.times.launch_s += time.perf_counter() - start

    def emit_completed_calls(self) -> int:
        """What has been decoded by now; how many chunks. The first calls are those of listeners who run dry first."""
        num_chunks = 0
        while self.config.emit_per_decode_call and self.stage.is_done:
            num_chunks += self.emit_urgent_calls(1)
        return num_chunks

    def emit_calls(self, num_calls: int) -> int:
        """What the oldest calls make, each as it ends or all at once; how many chunks."""
        size = 1 if self.config.emit_per_decode_call else max(1, num_calls)
        return sum(self.emit_urgent_calls(min(size, num_calls - start)) for start in range(0, num_calls, size))

    def emit_urgent_calls(self, num_calls: int) -> int:
        is_urgent = self.stage.calls[0].slack_s <= self.config.decode_batching_slack_s
        chunks = self.collect_decode(num_calls)
        self.emit(chunks)
        if is_urgent:
            self.hand_over()
        return len(chunks)

    def collect_decode(self, num_calls: int) -> list[DecodedAudio]:
        start = time.perf_counter()
        try:
            return self.stage.collect(num_calls)
        finally:
            self.times.decode_s += time.perf_counter() - start

    @property
    def has_work(self) -> bool:
        return self.runner.in_flight or super().has_work
