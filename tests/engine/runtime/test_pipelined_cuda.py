"""The graphs on a CUDA device: equal to eager code, exact in one bucket, and no row ever reads another's state."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import random_model
from engine.api import SamplingParams, TextLayout
from engine.config import EngineConfig
from engine.load import load_engine
from engine.ops.reference_ops import select_ops
from engine.runtime.request import Request
from tests.engine.engine_harness import EngineHarness, check_takeover
from tests.engine.runtime.graph_harness import FUSIBLE, TIMELESS, bench_of, keep_busy, note_calls, speak
from tests.engine.runtime.test_pipelined import TEXT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
# Plain products of the prompt run in TF32.
FP32_TOLERANCE = 5e-3


@pytest.mark.parametrize("settings", [{}, dict(triton_kernels=False), dict(lazy_graph_capture=True)], ids=str)
def test_in_fp32_the_device_says_what_the_cpu_says(settings: dict[str, Any]) -> None:
    for cpu, cuda in zip(
        speak(bench_of(CPU, torch.float32)), speak(bench_of(CUDA, torch.float32, **settings)), strict=True
    ):
        assert cpu.shape == cuda.shape
        assert np.abs(cpu - cuda).max() < FP32_TOLERANCE


@pytest.mark.parametrize("late", [False, True])
def test_graphs_say_what_the_same_kernels_say_eagerly(late: bool) -> None:
    """Also where the other's calls pass as late as on a busy device: in bf16 other calls have other last bits."""
    recorded, eager = (bench_of(CUDA, torch.bfloat16, **TIMELESS) for _ in range(2))
    for graphs in (eager.engine.runner.frames, eager.engine.runner.prefills, eager.engine.stage.codec.graphs):
        graphs.captures = False
        graphs._graphs.clear()
    if late:
        keep_busy(eager, lambda: False)
    recorded_calls, eager_calls = note_calls(recorded), note_calls(eager)
    recorded_rows, eager_rows = speak(recorded), speak(eager)
    assert recorded_calls == eager_calls
    for one, other in zip(recorded_rows, eager_rows, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("layout", [TextLayout.STREAMING, TextLayout.FULL])
def test_another_engine_goes_on_with_the_same_samples(layout: TextLayout) -> None:
    sampling = SamplingParams(seed=7, repetition_window=4, repetition_penalty=1.8, min_new_tokens=20)
    spec = dict(text=TEXT, text_closed=True, layout=layout, sampling=sampling)
    check_takeover(lambda: bench_of(CUDA, torch.float32), FP32_TOLERANCE, **spec)


@pytest.mark.parametrize("decode_device", ["cpu", f"cuda:{torch.cuda.device_count() - 1}"])
def test_decoding_elsewhere_says_what_decoding_there_says(tmp_path: Path, decode_device: str) -> None:
    """On a machine of one device the second of these is the first one's own."""
    random_model.SHAPES["fusible"] = FUSIBLE
    folder = random_model.write(tmp_path, "fusible", CPU)
    spoken = []
    for device in (None, decode_device):
        config = EngineConfig(
            num_blocks=400, max_batch_size=8, max_running_requests=8, max_frames=24, max_graph_positions=512,
            loop_limit_frames=10_000,
            admission_utilization=1e3, decode_device=device,
        )  # fmt: skip
        bench = EngineHarness(load_engine(folder, config, "cuda:0", "float32", is_embedded=False).make_engine())
        spoken.append(speak(bench))
        bench.engine.close()
    for one, other in zip(*spoken, strict=True):
        assert one.shape == other.shape
        assert np.abs(one - other).max() < FP32_TOLERANCE


STREAMS = 256
NUM_ROW_FRAMES = int(os.environ.get("ROW_FRAMES", "60000"))
# Codes alone end a row: when silence is noticed depends on what is decoded together, and that on time.
PINNED: dict[str, Any] = dict(
    max_batch_size=STREAMS, max_running_requests=STREAMS, fixed_batch_rows=STREAMS,
    num_blocks=STREAMS * 12, max_frames=80,
    silence_limit_s=1e6,
)  # fmt: skip


def wants(number: int) -> dict[str, Any]:
    chance = random.Random(number)
    text = TEXT * 2
    return dict(
        text=text[: chance.randrange(12, 60)],
        layout=TextLayout.STREAMING if number % 3 else TextLayout.FULL,
        sampling=SamplingParams(seed=number, temperature=chance.choice([0.7, 1.0, 1.3])),
        max_frames=chance.randrange(10, 80),
    )


def codes_of(request: Request) -> list[list[int]]:
    return list(request.row.codes)  # type: ignore[attr-defined]


def test_no_row_reads_another_ones_state_whatever_the_others_do() -> None:
    """Rows come, wait, are cancelled and finish by the thousand; a sample of them alone then says the same codes."""
    bench, chance = bench_of(CUDA, torch.bfloat16, **PINNED), random.Random(7)
    lives: dict[int, tuple[int, Request]] = {}
    numbers = iter(range(10**9))
    cancelled = set()
    num_row_frames = 0
    while num_row_frames < NUM_ROW_FRAMES:
        running = [epoch for epoch, heard in bench.heard.items() if heard.end is None]
        while len(running) < STREAMS and chance.random() < 0.9:
            number = next(numbers)
            epoch = bench.submit(**wants(number), text_closed=False)
            lives[epoch] = number, bench.request(epoch)
            running.append(epoch)
        for epoch in chance.sample(running, min(8, len(running))):
            if chance.random() < 0.05:
                bench.cancel(epoch)
                cancelled.add(epoch)
            else:
                bench.end_input(epoch)
        before = bench.engine.times.num_rows
        bench.step()
        num_row_frames += bench.engine.times.num_rows - before
    for epoch in [epoch for epoch, heard in bench.heard.items() if heard.end is None]:
        bench.end_input(epoch)
    bench.run()
    bench.check_idle()
    whole = [epoch for epoch in lives if epoch not in cancelled]
    assert all(np.isfinite(bench.heard[epoch].pcm).all() for epoch in whole)
    for epoch in chance.sample(whole, min(12, len(whole))):
        number, request = lives[epoch]
        alone = bench_of_one(bench, number)
        assert alone == codes_of(request)


def bench_of_one(bench: EngineHarness, number: int) -> list[list[int]]:
    """The same engine, otherwise empty."""
    epoch = bench.submit(**wants(number), text_closed=True)
    request = bench.request(epoch)
    bench.run()
    return codes_of(request)


def test_fused_kernels_are_chosen_on_cuda() -> None:
    assert type(select_ops(EngineConfig(), CUDA)).__name__ == "TritonOps"
