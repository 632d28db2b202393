"""Capture of graphs, compilation of their kernels, and timing of their steps before the first request."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import torch

from engine.ops.launched_predictor import MAX_ROWS
from engine.ops.parallel_compile import run_compiled
from engine.runtime.call_planner import CALL_FRAMES
from engine.runtime.codec_runners import GraphCodec
from engine.runtime.runner import GraphKey, GraphRunner
from engine.runtime.step_model import StepTimeTable

log = logging.getLogger(__name__)


def capture_graphs(keys: Sequence[GraphKey]) -> None:
    """Capture all; kernels that Triton's cache lacks are compiled in parallel, for in sequence that takes a minute."""

    def capture(has_run: bool) -> None:
        for number, (graphs, key) in enumerate(keys, 1):
            # Those of few rows always run before: the predictor's kernel is tried there.
            graphs.capture(*key, has_run=has_run and key[0] > MAX_ROWS)
            log.debug("graph %d of %d: %s, %.1f s", number, len(keys), key, time.perf_counter() - start)

    def run_all() -> None:
        for graphs, key in keys:
            graphs.warm_up(*key)

    if not any(graphs.captures for graphs, _ in keys):
        return
    start = time.perf_counter()
    run_compiled(capture, run_all)
    log.info("%d graphs in %.1f s", len(keys), time.perf_counter() - start)


def measure_step_times(runner: GraphRunner, codec: GraphCodec) -> StepTimeTable | None:
    """Time of a step of dummy rows: the frame, and the decoding of as many frames in large calls.

    None where the CPU has a part: there steps teach what they take.
    """
    if "cpu" in (runner.device.type, codec.program.device.type):
        return None
    most = CALL_FRAMES[0]
    buckets = {rows: codec.bucket(-(-rows // most), most) for rows in runner.frame_buckets}
    return StepTimeTable({rows: measure_step_s(runner, codec, rows, calls) for rows, calls in buckets.items()})


def measure_step_s(runner: GraphRunner, codec: GraphCodec, rows: int, call_rows: int) -> float:
    """Return the time of the second run; the first raises the clocks of the chip."""
    took_s = 0.0
    for _ in range(2):
        torch.cuda.synchronize(runner.device)
        start = time.perf_counter()
        runner.frames.replay(rows)
        decoding = codec.lane.run(lambda: codec.graphs.replay(call_rows, CALL_FRAMES[0]))
        torch.cuda.synchronize(runner.device)
        decoding.wait()
        took_s = time.perf_counter() - start
    return took_s
