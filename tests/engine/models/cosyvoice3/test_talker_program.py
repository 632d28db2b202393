"""The talker over static buffers, run eagerly on the CPU, says what the plain talker says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.api import FinishReason, SamplingParams, TextLayout
from engine.config import EngineConfig
from engine.load import LoadedCheckpoint, load_engine
from engine.models.cosyvoice3.config import MAX_TOP_K
from engine.models.cosyvoice3.prompt import RasParams
from engine.models.cosyvoice3.talker import NOTHING, sample
from engine.ops.noise import PhiloxNoise, SampleKey
from engine.ops.ras import RasTensors, sample_rows
from engine.runtime.request import StepBatch
from engine.runtime.runner import GraphRunner, Result, StepTimings
from tests.engine.engine_harness import EngineHarness
from tests.engine.models.cosyvoice3.voices import cloned

TEXT = "the quick brown fox jumps over the lazy dog"
TOLERANCE = 1e-5
SETTINGS: dict[str, Any] = dict(
    num_blocks=600, block_size=8, max_batch_size=6, max_running_requests=6, lazy_graph_capture=True
)
SAMPLINGS = [
    SamplingParams(seed=2**64 - 3, min_new_tokens=12),
    SamplingParams(seed=5, top_k=128, top_p=1.0, temperature=1.3),
    SamplingParams(seed=6, temperature=0.0),
    SamplingParams(seed=7, top_k=3, repetition_window=40),
]


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "cpu kernels"])
def both(request: pytest.FixtureRequest, folder: Path) -> tuple[LoadedCheckpoint, LoadedCheckpoint]:
    plain, static = (
        load_engine(
            folder, EngineConfig(**SETTINGS, graphs=graphs, cpu_optimizations=request.param), "cpu", "float32", False
        )
        for graphs in (False, True)
    )
    return plain, static


def check_same(found: EngineHarness, wanted: EngineHarness) -> None:
    assert isinstance(found.engine.runner, GraphRunner)
    assert not isinstance(wanted.engine.runner, GraphRunner)
    assert set(found.heard) == set(wanted.heard)
    for row, heard in wanted.heard.items():
        assert found.heard[row].reason == heard.reason
        assert len(found.heard[row].pcm) == len(heard.pcm) > 0
        assert np.abs(found.heard[row].pcm - heard.pcm).max() < TOLERANCE


def test_whole_and_live_texts_with_and_without_a_voice(both: tuple[LoadedCheckpoint, LoadedCheckpoint]) -> None:
    benches = []
    for loaded in both:
        bench = EngineHarness.from_checkpoint(loaded)
        for number, sampling in enumerate(SAMPLINGS):
            voice = cloned(17 + number, with_transcript=number > 1) if number % 2 else None
            text, layout = TEXT[: 6 * number + 9], (TextLayout.FULL, TextLayout.STREAMING)[number // 2]
            row = bench.submit(text=text[:5], layout=layout, sampling=sampling, voice=voice, max_frames=32)
            bench.step()
            bench.engine.requests.push_text(row, text[5:])
            bench.engine.requests.end_input(row)
        bench.run()
        benches.append(bench)
    check_same(benches[1], benches[0])


def test_a_talker_that_is_not_finite_fails_its_row_alone(both: tuple[LoadedCheckpoint, LoadedCheckpoint]) -> None:
    bench = EngineHarness.from_checkpoint(both[1])
    runner = bench.engine.runner
    assert isinstance(runner, GraphRunner)
    replay = runner.frames.replay

    def broken(*key: int) -> None:
        replay(*key)
        runner.program.outputs.device["codes"][1, 1] = 0

    runner.frames.replay = broken  # type: ignore[method-assign, assignment]
    rows = [bench.submit(text=TEXT, text_closed=True, sampling=SamplingParams(seed=1)) for _ in range(2)]
    bench.run()
    assert [bench.heard[row].reason for row in rows] == [FinishReason.STOP, FinishReason.ERROR]


def test_time_of_each_batch_is_learned_once_and_with_its_own_positions(
    both: tuple[LoadedCheckpoint, LoadedCheckpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a batch in flight holds the wait for it, which is in the next step."""
    bench = EngineHarness.from_checkpoint(both[1])
    engine, clock = bench.engine, [0.0]
    learned: list[tuple[int, float]] = []
    positions: list[int] = []
    monkeypatch.setattr(engine.requests, "clock", lambda: clock[0])
    monkeypatch.setattr(
        engine.scheduler.burst_model,
        "note_step",
        lambda batch, seconds: learned.append((batch.num_prefill_positions, seconds)),
    )
    collect, run = engine.runner.collect, engine.runner.run

    def run_noted(batch: StepBatch, times: StepTimings) -> list[Result]:
        positions.append(batch.num_prefill_positions)
        return run(batch, times)

    def wait(times: StepTimings) -> list[Result]:
        clock[0] += 1.0 if engine.runner.in_flight else 0.0
        return collect(times)

    monkeypatch.setattr(engine.runner, "collect", wait)
    monkeypatch.setattr(engine.runner, "run", run_noted)
    monkeypatch.setattr(engine, "read_commands", lambda: clock.append(clock.pop() + 100.0))
    bench.submit(text=TEXT, text_closed=True, sampling=SamplingParams(seed=1))
    bench.run()
    assert sum(positions) > 0
    assert [number for number, _ in learned] == positions[: len(learned)]
    # A batch of a prefill alone is not in flight, and nothing waits for it.
    assert {seconds for number, seconds in learned if number} == {0.0, 1.0}
    assert engine.times.total_s < 100.0


def test_draws_are_those_of_the_plain_sampler() -> None:
    generator = torch.Generator().manual_seed(4)
    params = [
        RasParams(),
        RasParams(temperature=0.0),
        RasParams(top_k=MAX_TOP_K, top_p=1.0, temperature=0.7),
        RasParams(top_k=1),
        RasParams(window=3, tau=0.5),
        RasParams(top_k=2, top_p=0.3),
    ]
    for round_number in range(20):
        logits = 3 * torch.randn(len(params), 60, generator=generator)
        logits[3, 1:] = -torch.inf
        logits[:, 50:] = -torch.inf
        histories = [torch.randint(0, 12, (p.window,), generator=generator).tolist() for p in params]
        keys = [SampleKey(seed=2**40 + i, segment=i, frame=round_number) for i in range(len(params))]
        wanted = sample(logits, params, histories, keys, PhiloxNoise())
        padded = [history + [NOTHING] * (16 - len(history)) for history in histories]
        rows = RasTensors(
            temperature=torch.tensor([p.temperature for p in params]),
            top_p=torch.tensor([p.top_p for p in params]),
            top_k=torch.tensor([p.top_k for p in params]),
            min_repeats=torch.tensor([p.window * p.tau for p in params]),
            history=torch.tensor(padded),
            seed=torch.tensor([key.seed for key in keys]),
            place=torch.tensor([key.segment << 8 for key in keys]),
            frame=torch.tensor([key.frame for key in keys]),
        )
        assert sample_rows(logits, rows, MAX_TOP_K).tolist() == wanted.tolist()
