"""Decoding beside the frames, on a device of its own, says what decoding after them says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.api import ClonedVoice, FinishReason, InvalidRequest, SamplingParams
from engine.config import EngineConfig
from engine.load import load_engine
from engine.program.decode_executor import FRAME_PRIORITY, CpuThreadExecutor, decode_priority
from engine.runtime.runner import GraphRunner
from engine.runtime.workspace import call_groups
from tests.engine.engine_harness import EngineHarness
from tests.engine.runtime.graph_harness import codec_of
from tests.engine.runtime.test_pipelined import SAMPLINGS, TEXT, check_same, make_bench, random_life
from tests.fakes.checkpoints import TINY, write_checkpoint

MakeApart = Callable[..., EngineHarness]


@pytest.fixture
def make_apart() -> Iterator[Callable[..., EngineHarness]]:
    """Of engines that decode in a thread of their own."""
    made: list[EngineHarness] = []

    def make(folder: Path, **settings: Any) -> EngineHarness:
        made.append(make_bench(folder, True, decode_device="cpu", **settings))
        assert isinstance(codec_of(made[-1]).lane, CpuThreadExecutor)
        return made[-1]

    yield make
    for bench in made:
        bench.engine.close()


def test_decode_thread_equals_plain_engine(any_folder: Path, make_apart: MakeApart) -> None:
    benches = make_apart(any_folder), make_bench(any_folder, False)
    for bench in benches:
        for number, sampling in enumerate(SAMPLINGS):
            bench.submit(text=TEXT[: 9 * number + 5], text_closed=True, sampling=sampling)
            bench.step()
        bench.run()
        bench.check_idle()
    check_same(*benches)


def test_reused_slots_keep_nothing_of_their_last_holder(tiny_folder: Path, make_apart: MakeApart) -> None:
    apart, together = (
        make_apart(tiny_folder, max_running_requests=5),
        make_bench(tiny_folder, False, max_running_requests=5),
    )
    cancelled = random_life(together, 3)
    assert random_life(apart, 3) == cancelled
    for row, heard in together.heard.items():
        if row not in cancelled:
            assert np.abs(apart.heard[row].pcm - heard.pcm).max(initial=0.0) < 1e-5
    apart.check_idle()


def test_cloned_voices_are_heard_there_too(tmp_path: Path, make_apart: MakeApart) -> None:
    chance = np.random.default_rng(3)
    embedding = chance.standard_normal(48).astype(np.float32).tobytes()
    codes = chance.integers(0, 64, (11, 4)).astype(np.int16).tobytes()
    voice = ClonedVoice(embedding=embedding, codes=codes, transcript="the dog")
    folder = write_checkpoint(tmp_path, TINY, task="base")
    benches = make_apart(folder), make_bench(folder, False)
    for bench in benches:
        for seed in range(4):
            sampling = SamplingParams(seed=seed, min_new_tokens=9)
            bench.submit(voice=voice, text=TEXT[:30], text_closed=True, sampling=sampling)
        bench.run()
    check_same(*benches)


def test_error_of_a_thread_is_raised_where_it_is_awaited(tiny_folder: Path, make_apart: MakeApart) -> None:
    bench = make_apart(tiny_folder)

    def fail(*_: object) -> None:
        raise RuntimeError("no more memory")

    codec_of(bench).graphs._run = fail
    bench.submit(text=TEXT, text_closed=True)
    with pytest.raises(RuntimeError, match="no more memory"):
        bench.run()


def test_voice_that_fails_in_a_thread_fails_one_request(tmp_path: Path, make_apart: MakeApart) -> None:
    """Its slot still holds what another spoke."""
    embedding, codes = np.ones(48, np.float32).tobytes(), np.ones((11, 4), np.int16).tobytes()
    voice = ClonedVoice(embedding=embedding, codes=codes, num_codebooks=4, transcript="the dog")
    bench = make_apart(write_checkpoint(tmp_path, TINY, task="base"))
    run_frames, num_runs = codec_of(bench)._run_frames, 0

    def fail_once(*args: Any) -> None:
        nonlocal num_runs
        num_runs += 1
        if num_runs == 1:
            raise RuntimeError("no more memory")
        run_frames(*args)

    codec_of(bench)._run_frames = fail_once
    sampling = SamplingParams(seed=1, min_new_tokens=9)
    rows = [bench.submit(voice=voice, text=TEXT[:30], text_closed=True, sampling=sampling) for _ in range(2)]
    bench.run()
    bench.check_idle()
    broken, whole = (bench.heard[row] for row in rows)
    assert (broken.end.error.message, broken.num_samples) == ("RuntimeError: no more memory", 0)
    assert whole.reason is not FinishReason.ERROR


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "auto", "cuda:99"])
def test_a_device_that_is_not_there_is_named(tiny_folder: Path, name: str) -> None:
    config = EngineConfig(graphs=True, decode_device=name)
    with pytest.raises(InvalidRequest, match=f"decode_device is '{name}'") as refused:
        load_engine(tiny_folder, config, "cpu", "float32", is_embedded=False)
    assert refused.value.param == "decode_device"


def test_without_graphs_decoding_cannot_be_elsewhere(tiny_folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="decode_device is 'cpu'; it needs graphs"):
        load_engine(tiny_folder, EngineConfig(decode_device="cpu"), "cpu", "float32", is_embedded=False)


def test_with_many_rows_calls_of_one_frame_come_before_frames() -> None:
    few, many = decode_priority(64), decode_priority(65)
    assert few(8, 1) == few(8, 4)
    assert many(8, 1) < FRAME_PRIORITY < many(8, 4)


@pytest.mark.parametrize(
    ("settings", "frame_priority", "groups"),
    [
        (dict(max_batch_size=65), FRAME_PRIORITY, [[8, 4, 2], [1]]),
        (dict(max_batch_size=64), FRAME_PRIORITY, [[8, 4, 2, 1]]),
        (dict(max_batch_size=65, graph_priorities=False), 0, [[8, 4, 2, 1]]),
    ],
)
def test_calls_of_each_priority_have_memory_of_their_own(
    tiny_folder: Path, settings: dict[str, Any], frame_priority: int, groups: list[list[int]]
) -> None:
    bench = make_bench(tiny_folder, True, **settings)
    runner, codec = bench.engine.runner, codec_of(bench)
    assert isinstance(runner, GraphRunner)
    assert {graphs.priority_of(8) for graphs in (runner.frames, runner.prefills)} == {frame_priority}
    calls: Any = call_groups(runner.program, codec, bench.engine.config)[2:]
    assert [[run.args[1] for run in group] for group in calls] == groups
