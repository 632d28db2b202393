"""The loop body when the device works ahead: launch a step, and while it runs hand over what the last one made.

    collect frame n-1 | schedule n | launch frame n, decode n | collect decode n-1 | hand over

The device is given decode n without waiting for the host to have seen frame n, so that scheduling, text and hand-over
run beside it.
"""

from __future__ import annotations

import gc
import logging
import time
from typing import Any

import torch

from engine.admission import StepModel
from engine.api import SpeechRequest
from engine.batch import Batch
from engine.config import EngineConfig
from engine.engine import STALL_RETRY_S, Engine
from engine.errors import OVERLOAD_RETRY_MS, EngineOverloaded
from engine.graphs.capture import GraphSet
from engine.graphs.decode import GraphDecode
from engine.graphs.runner import GraphRunner
from engine.graphs.stages import GraphStages
from engine.models.base import Decoded, SpeechModel

log = logging.getLogger(__name__)


class PipelinedEngine(Engine):
    runner: GraphRunner
    stage: GraphDecode

    def __init__(self, model: SpeechModel, stages: GraphStages, config: EngineConfig, **settings: Any) -> None:
        super().__init__(model, stages.decode, config, **settings)
        self.runner = stages.make_runner(model, self.kv, self.prefixes, config)
        self.step_model = StepModel()

    @property
    def capacity(self) -> int:
        return min(super().capacity, self.runner.tables.rows.shape[1] * self.config.block_size)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Record every graph while nobody is there, unless each is to be recorded when first needed; then speak."""
        self.choose_device()
        if not self.config.fast_start:
            start = time.perf_counter()
            for number, (graphs, key) in enumerate(self.recordings(), 1):
                graphs.capture(*key)
                log.debug(
                    "graph %d of %d: %s, %.1f s", number, len(self.recordings()), key, time.perf_counter() - start
                )
            log.info("%d graphs in %.1f s", len(self.recordings()), time.perf_counter() - start)
        super().warm_up()
        self.step_model = StepModel()
        if self.runner.device.type == "cuda":
            gc.freeze()  # what is there now stays; looking through it again would stop the engine for a step or two

    def choose_device(self) -> None:
        """Kernels go to the device that is current on their thread."""
        if self.runner.device.type == "cuda":
            torch.cuda.set_device(self.runner.device)

    def prefetch(self, spec: SpeechRequest) -> None:
        self.choose_device()
        super().prefetch(spec)

    def recordings(self) -> list[tuple[GraphSet, tuple[int, ...]]]:
        """Largest first: the smaller ones then fit in the memory of the larger."""
        runner, stage = self.runner, self.stage
        return [
            *((runner.frames, (rows,)) for rows in reversed(runner.frame_buckets)),
            *((runner.prefills, (tokens,)) for tokens in reversed(runner.token_buckets)),
            *((stage.graphs, key) for key in reversed(stage.call_shapes)),
        ]

    def check_room(self) -> None:
        super().check_room()
        frame_s = self.config.admission_share * self.scheduler.frame_s
        if self.requests and not self.step_model.carries(len(self.requests) + 1, frame_s):
            raise EngineOverloaded(
                f"one more than {len(self.requests)} requests would be heard with gaps", OVERLOAD_RETRY_MS
            )

    @torch.inference_mode()
    def step(self) -> None:
        start = time.perf_counter()
        self.choose_device()
        self.take(self.runner.collect(self.times))
        now = self.clock()
        batch = self.scheduler.schedule(now)
        num_old = len(self.stage.calls)
        self.take(self.runner.launch(batch, self.times))
        self.promise(batch)
        self.launch_decode()
        chunks = self.collect_decode(num_old)
        self.emit(chunks)
        self.retire()
        got_somewhere = len(batch) or chunks or self.stage.busy or self.released or self.pool.num_quarantined
        self.retry_s = 0.0 if got_somewhere else self.clock() + STALL_RETRY_S
        self.settle()
        seconds = time.perf_counter() - start
        self.account(len(batch), seconds)
        if not batch.prefills:
            self.step_model.note(len(batch), seconds)

    def promise(self, batch: Batch) -> None:
        for work in batch.works:
            if work.sample and work.request.slot is not None:
                self.stage.promise(work.request.slot)

    def launch_decode(self) -> None:
        start = time.perf_counter()
        now = self.clock()
        running = [(r.slot, r) for r in self.scheduler.running if r.slot is not None]
        slack = {slot: self.slack_s(request, now) for slot, request in running}
        self.stage.launch(slack, {slot: self.wanted_frames(request) for slot, request in running})
        self.times.launch_s += time.perf_counter() - start

    def collect_decode(self, num_calls: int) -> list[Decoded]:
        start = time.perf_counter()
        try:
            return self.stage.collect(num_calls)
        finally:
            self.times.decode_s += time.perf_counter() - start

    @property
    def has_work(self) -> bool:
        return self.runner.in_flight or super().has_work
