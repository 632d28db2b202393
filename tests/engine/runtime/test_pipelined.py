"""The engine over static buffers, run eagerly on the CPU, says what the plain engine says."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from engine.api import (
    ClonedVoice,
    EngineOverloaded,
    FinishReason,
    RequestFinished,
    ResumePoint,
    SamplingParams,
    SpeechChunk,
    SpeechRequest,
    TextLayout,
)
from engine.config import EngineConfig
from engine.load import LoadedCheckpoint, load_engine
from engine.models.base import DecodedAudio
from engine.models.qwen3_tts.frame_program import PASS_FAILED
from engine.runtime import engine as engine_module
from engine.runtime.codec_stage import CodecStage
from engine.runtime.engine import COMMANDS_INTERVAL_S, COMMANDS_SHARE, FRAME_GROWTH, MAX_COMMANDS, MAX_COMMANDS_S
from engine.runtime.request import Request
from engine.runtime.runner import GraphRunner, Result, StepTimings
from tests.engine.engine_harness import EngineHarness, check_takeover
from tests.engine.families import write_with_voice
from tests.fakes.checkpoints import TINY, write_checkpoint

TEXT = "the quick brown fox jumps over the lazy dog"
# Of PCM in [-1, 1] in fp32; measured below 1e-6.
TOLERANCE = 1e-5
SAMPLINGS = [
    SamplingParams(seed=2**64 - 3, min_new_tokens=3),
    SamplingParams(seed=5, top_p=0.9, temperature=1.2, min_new_tokens=2),
    SamplingParams(seed=6, temperature=0.0, predictor_top_k=3, repetition_penalty=1.5),
    SamplingParams(seed=7, top_k=0, predictor_temperature=0.0, repetition_window=4, repetition_penalty=1.8),
]
LAYOUTS = [TextLayout.STREAMING, TextLayout.FULL]
FOLDERS = ["tiny_folder", "projected_folder"]
# With graphs or without.
ENGINES = [False, True]


def in_turn(first: Sequence[Any], *others: Sequence[Any]) -> list[Any]:
    """Return each of the first values with one of each of the others, in turn; the rest is among the slow tests."""
    usual = {
        (n, *((n + n // 2 * place) % len(values) for place, values in enumerate(others))) for n in range(len(first))
    }
    return [
        pytest.param(
            *(values[index] for values, index in zip((first, *others), case, strict=True)),
            marks=() if case in usual else pytest.mark.slow,
        )
        for case in itertools.product(*(range(len(values)) for values in (first, *others)))
    ]


def make_bench(folder: Path, graphs: bool, **settings: Any) -> EngineHarness:
    return EngineHarness.from_checkpoint(load(folder, graphs, **settings))


@lru_cache(4)
def load(folder: Path, graphs: bool, **settings: Any) -> LoadedCheckpoint:
    usual = dict(
        num_blocks=300,
        block_size=8,
        max_batch_size=8,
        max_running_requests=8,
        max_frames=16,
        admission_utilization=1e3,
        lazy_graph_capture=True,
    )
    config = EngineConfig(**(usual | settings), graphs=graphs)
    return load_engine(folder, config, "cpu", "float32", is_embedded=False)


def check_same(found: EngineHarness, wanted: EngineHarness) -> None:
    assert set(found.heard) == set(wanted.heard)
    for row, heard in wanted.heard.items():
        assert found.heard[row].reason == heard.reason
        assert len(found.heard[row].pcm) == len(heard.pcm)
        assert np.abs(found.heard[row].pcm - heard.pcm).max() < TOLERANCE


def check_same_but(cancelled: Collection[int], found: EngineHarness, wanted: EngineHarness) -> None:
    for row, heard in wanted.heard.items():
        if row not in cancelled:
            assert found.heard[row].reason == heard.reason
            assert np.abs(found.heard[row].pcm - heard.pcm).max(initial=0.0) < TOLERANCE


@pytest.mark.parametrize(("folder", "layout"), in_turn(FOLDERS, LAYOUTS))
def test_codes_equal_those_of_the_plain_engine(folder: str, layout: TextLayout, request: pytest.FixtureRequest) -> None:
    benches = []
    for graphs in (False, True):
        bench = make_bench(request.getfixturevalue(folder), graphs)
        for number, sampling in enumerate(SAMPLINGS):
            bench.submit(text=TEXT[: 9 * number + 5], text_closed=True, layout=layout, sampling=sampling)
            bench.step()
        bench.run()
        benches.append(bench)
    check_same(benches[1], benches[0])


def test_prefix_computed_ahead_delays_no_running_row(tiny_folder: Path) -> None:
    benches = []
    for prefetched in (False, True):
        bench = make_bench(tiny_folder, True)
        for seed in range(2):
            bench.submit(text=TEXT, text_closed=True, sampling=SamplingParams(seed=seed, min_new_tokens=9))
        for voice in bench.engine.model.voices:
            bench.step()
            bench.step()
            if prefetched:
                bench.engine.prefetch(voice.name)
        bench.run()
        bench.check_idle()
        benches.append(bench)
    assert len(benches[1].engine.prefixes) > len(benches[0].engine.prefixes)
    check_same(benches[1], benches[0])


def test_prefix_that_is_known_is_not_prepared_again(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, prepared = make_bench(tiny_folder, True, max_cached_prefixes=1), list[object]()
    engine, new_request = bench.engine, bench.engine.requests.new_request

    def new_request_noted(spec: SpeechRequest, epoch: int, seed: int) -> Request:
        prepared.append(spec.voice)
        return new_request(spec, epoch, seed)

    monkeypatch.setattr(engine.requests, "new_request", new_request_noted)
    first, second = (voice.name for voice in engine.model.voices[:2])
    for voice in (first, first.upper(), second, first):
        engine.prefetch(voice)
    assert prepared == [first, second, first], "the second one took the place of the first"


def reader_of(commands: list[Callable[[], object]]) -> Callable[[], bool]:
    def read_command() -> bool:
        if not commands:
            return False
        commands.pop(0)()
        return True

    return read_command


def step_with(bench: EngineHarness, command: Callable[[], None]) -> None:
    """Carry out a command within a step, as one that came while the host waited for the device."""
    commands: list[Callable[[], object]] = [command]
    bench.engine.read_command = reader_of(commands)
    bench.step()
    assert not commands


def random_life(bench: EngineHarness, seed: int) -> list[int]:
    """Rows that come, wait for text, go on, are cancelled, in an order the seed decides; the cancelled ones."""
    chance = random.Random(seed)
    open_rows: dict[int, list[str]] = {}
    cancelled: list[int] = []

    def act(number: int) -> None:
        action = chance.random()
        if action < 0.3 and len(open_rows) < 6:
            row = bench.submit(text="", layout=TextLayout.STREAMING, sampling=SamplingParams(seed=number))
            open_rows[row] = [TEXT[i : i + 6] for i in range(0, chance.randrange(6, 40), 6)]
        elif action < 0.75 and open_rows:
            row = chance.choice(list(open_rows))
            pieces = open_rows[row]
            bench.push_text(row, pieces.pop(0)) if pieces else bench.end_input(row)
            if not pieces and chance.random() < 0.5:
                bench.end_input(row)
                del open_rows[row]
        elif action < 0.8 and open_rows:
            row = chance.choice(list(open_rows))
            bench.cancel(row)
            cancelled.append(row)
            del open_rows[row]

    for number in range(40):
        if chance.random() < 0.5:
            act(number)
        else:
            step_with(bench, partial(act, number))
        for _ in range(chance.randrange(4)):
            bench.step()
    for row in open_rows:
        bench.end_input(row)
    bench.run()
    return cancelled


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_rows_that_come_and_go_equal_the_plain_engine(tiny_folder: Path, seed: int) -> None:
    plain, pipelined = (
        make_bench(tiny_folder, False, max_running_requests=5),
        make_bench(tiny_folder, True, max_running_requests=5),
    )
    cancelled = random_life(plain, seed)
    assert random_life(pipelined, seed) == cancelled
    check_same_but(cancelled, pipelined, plain)
    pipelined.check_idle()


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_rows_prepared_beside_a_frame_equal_the_plain_engine(
    tiny_folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, pipelined = make_bench(tiny_folder, False), make_bench(tiny_folder, True)
    monkeypatch.setattr(GraphRunner, "is_done", property(lambda runner: not runner.in_flight))
    engine, num_prepared = pipelined.engine, 0
    restore_prefix = engine.scheduler.restore_prefix

    def restore_noted(request: Request, may_grow: bool) -> bool:
        nonlocal num_prepared
        num_prepared += engine.runner.in_flight
        return restore_prefix(request, may_grow)

    monkeypatch.setattr(engine.scheduler, "restore_prefix", restore_noted)
    cancelled = random_life(plain, seed)
    assert random_life(pipelined, seed) == cancelled
    check_same_but(cancelled, pipelined, plain)
    assert num_prepared
    pipelined.check_idle()


def test_request_without_text_is_prepared_at_an_idle_engine(tiny_folder: Path) -> None:
    bench = make_bench(tiny_folder, True)
    epoch = bench.submit(text="", layout=TextLayout.STREAMING)
    bench.run()
    request, runner = bench.request(epoch), bench.engine.runner
    assert isinstance(runner, GraphRunner)
    assert runner._holders[request.held_slot] is request
    bench.push_text(epoch, TEXT)
    bench.end_input(epoch)
    bench.run()
    bench.check_idle()


def test_request_during_the_wait_for_a_frame_is_in_the_next(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, late = make_bench(tiny_folder, True), list[Callable[[], object]]()
    first = bench.submit(text=TEXT, text_closed=True)
    bench.step()
    collect = bench.engine.runner.collect

    def wait(times: StepTimings) -> list[Result]:
        results = collect(times)
        late.append(partial(bench.submit, text=TEXT, text_closed=True))
        return results

    monkeypatch.setattr(bench.engine.runner, "collect", wait)
    bench.engine.read_command = reader_of(late)
    bench.step()
    assert bench.admitted == [first, first + 1]


@pytest.mark.parametrize("is_beside", [True, False])
def test_commands_are_read_beside_a_frame_in_flight_until_it_is_done(
    tiny_folder: Path, is_beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a second, and the frame two: what is done by then leaves before the others are read."""
    monkeypatch.setattr(engine_module, "MAX_COMMANDS_S", 10.0)
    bench = bench_with_a_frame_in_flight(tiny_folder, commands_beside_device=is_beside)
    engine, clock, found = bench.engine, [0.0], list[str]()
    monkeypatch.setattr(engine.requests, "clock", lambda: clock[0])
    monkeypatch.setattr(GraphRunner, "is_done", property(lambda runner: clock[0] >= 2.0))
    emit_completed = engine.decoding.emit_completed

    def emit_noted() -> int:
        found.append("emit")
        return emit_completed()

    def command() -> None:
        found.append("command")
        clock[0] += 1.0

    monkeypatch.setattr(engine.decoding, "emit_completed", emit_noted)
    engine.read_command = reader_of([command] * 5)
    bench.step()
    num_beside = 2 if is_beside else 0
    assert found == ["command"] * num_beside + ["emit"] + ["command"] * (5 - num_beside) + ["emit"] * 2
    assert engine.times.last_s == num_beside, "the time that the frame takes anyway, and no more"


def test_commands_that_take_long_leave_others_to_the_next_step(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_with_a_frame_in_flight(tiny_folder)
    engine, clock, num_carried_out = bench.engine, [0.0], [0]
    monkeypatch.setattr(engine.requests, "clock", lambda: clock[0])
    monkeypatch.setattr(GraphRunner, "is_done", property(lambda runner: True))

    def command() -> None:
        num_carried_out[0] += 1
        clock[0] += 0.6 * MAX_COMMANDS_S

    engine.read_command = reader_of([command] * 5)
    for number in (2, 4, 5):
        bench.step()
        assert num_carried_out[0] == number


class TimedFrames:
    """A frame takes ``frame_s`` on the clock of the bench. How long one of this kind takes, the engine knows."""

    def __init__(self, bench: EngineHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bench, self.engine, self.frame_s = bench, bench.engine, 1.0
        # How long the host looked for commands beside each, from its launch on.
        self.looked_s: list[float] = []
        # What comes this long after the launch of a frame.
        self.commands: list[tuple[float, Callable[[], object]]] = []
        self.on_wait: Callable[[], None] = lambda: None
        self._collect = self.engine.runner.collect
        monkeypatch.setattr(GraphRunner, "is_done", property(lambda runner: self.elapsed_s >= self.frame_s))
        monkeypatch.setattr(self.engine.runner, "collect", self.collect)
        self.engine.sleep, self.engine.read_command = self.sleep, self.read_command
        self.engine._frame_s.clear()
        while self.engine._frame_kind not in self.engine._frame_s:
            bench.step()
        self.looked_s.clear()

    @property
    def elapsed_s(self) -> float:
        return self.bench.now_s - self.engine._launched_s

    def collect(self, times: StepTimings) -> list[Result]:
        self.looked_s.append(self.elapsed_s)
        self.on_wait()
        self.bench.now_s += max(self.frame_s - self.elapsed_s, 0.0)
        return self._collect(times)

    def sleep(self, seconds: float) -> None:
        assert 0.0 < seconds <= COMMANDS_INTERVAL_S
        self.bench.now_s += seconds

    def read_command(self) -> bool:
        if not self.commands or self.elapsed_s < self.commands[0][0]:
            return False
        self.commands.pop(0)[1]()
        return True

    def prepared(self) -> list[int]:
        """Epochs of requests whose first step the device will not have to wait for."""
        runner, running = self.engine.runner, self.engine.scheduler.running
        assert isinstance(runner, GraphRunner)
        assert not self.engine.prefixes._due
        return sorted(request.epoch for request in running if runner._holders[request.held_slot] is request)


def test_command_that_comes_during_a_frame_is_carried_out_beside_it(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames, read_at_s = TimedFrames(bench_with_a_frame_in_flight(tiny_folder), monkeypatch), list[float]()
    frames.commands.append((0.4, lambda: read_at_s.append(frames.elapsed_s)))
    frames.bench.step()
    assert read_at_s == [pytest.approx(0.4, abs=0.001)]


def test_host_looks_for_commands_for_a_share_of_the_shortest_frame(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long a frame took is unknown where it was done before the host waited for it."""
    frames = TimedFrames(bench_with_a_frame_in_flight(tiny_folder), monkeypatch)
    for frame_s in (3.0, 3.0, 1.0, 0.5, 3.0):
        frames.frame_s = frame_s
        frames.bench.step()
    expected_s = [1.0, FRAME_GROWTH, FRAME_GROWTH**2, 0.5 / COMMANDS_SHARE, 1.0]
    assert frames.looked_s == pytest.approx([COMMANDS_SHARE * each_s for each_s in expected_s], abs=0.001)
    frames.bench.submit(text=TEXT, text_closed=True)
    for _ in range(2):
        frames.bench.step()
    assert frames.looked_s[-1] == 0.0, "the first frame of its kind"


def test_newcomers_during_a_frame_are_prepared_beside_it(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames, prepared = TimedFrames(bench_with_a_frame_in_flight(tiny_folder), monkeypatch), list[list[int]]()
    bench = frames.bench
    submit = partial(bench.submit, text=TEXT, text_closed=True)
    frames.commands += [(0.2, submit), (0.4, submit), (0.4, submit)]
    frames.on_wait = lambda: prepared.append(frames.prepared())
    bench.step()
    assert prepared == [[1, 2, 3, 4]]
    bench.run()
    bench.check_idle()


def test_newcomers_are_left_to_their_step_once_the_frame_is_done(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames, prepared = TimedFrames(bench_with_a_frame_in_flight(tiny_folder), monkeypatch), list[list[int]]()
    bench, prepare = frames.bench, frames.engine.runner.prepare

    def prepare_slowly(request: Request) -> None:
        prepare(request)
        bench.now_s += 0.3

    monkeypatch.setattr(frames.engine.runner, "prepare", prepare_slowly)
    frames.commands += [(0.5, partial(bench.submit, text=TEXT, text_closed=True))] * 4
    frames.on_wait = lambda: prepared.append(frames.prepared())
    bench.step()
    assert prepared == [[1, 2, 3]]
    monkeypatch.undo()
    bench.run()
    bench.check_idle()


def test_commands_without_end_do_not_stop_a_step(tiny_folder: Path) -> None:
    bench = bench_with_a_frame_in_flight(tiny_folder)
    num_read = itertools.count(1)
    bench.engine.read_command = lambda: next(num_read) > 0
    bench.step()
    assert next(num_read) == MAX_COMMANDS + 1
    bench.engine.read_command = lambda: False
    bench.run()
    bench.check_idle()


def bench_with_a_frame_in_flight(folder: Path, **settings: Any) -> EngineHarness:
    bench = make_bench(folder, True, **settings)
    bench.submit(text=TEXT, text_closed=True)
    while not bench.engine.runner.in_flight:
        bench.step()
    return bench


@pytest.mark.parametrize("layout", LAYOUTS)
def test_row_that_lost_its_blocks_gives_equal_codes(tiny_folder: Path, layout: TextLayout) -> None:
    benches = []
    for num_blocks in (200, 10):
        settings = dict(
            num_blocks=num_blocks, watermark_blocks=0, max_cached_prefixes=0, min_frame_cap=16, max_frames=28
        )
        bench = make_bench(tiny_folder, True, **settings)
        for seed in range(3):
            sampling = SamplingParams(seed=seed, min_new_tokens=28)
            bench.submit(text=TEXT[:17], text_closed=True, max_frames=28, sampling=sampling, layout=layout)
        bench.run()
        assert (bench.engine.scheduler.num_preemptions > 0) == (num_blocks == 10)
        benches.append(bench)
    check_same(benches[1], benches[0])


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("base"), TINY, task="base")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cloned_voices_are_primed_once_and_sound_the_same(base_folder: Path, layout: TextLayout) -> None:
    chance = np.random.default_rng(3)
    embedding = chance.standard_normal(48).astype(np.float32).tobytes()
    codes = chance.integers(0, 64, (11, 4)).astype(np.int16).tobytes()
    benches = []
    for graphs in (False, True):
        bench = make_bench(base_folder, graphs)
        for number, voice in enumerate(
            [
                ClonedVoice(embedding=embedding, codes=codes, num_codebooks=4, transcript="the dog"),
                ClonedVoice(embedding=embedding),
            ]
            * 2
        ):
            sampling = SamplingParams(seed=number, min_new_tokens=9)
            bench.submit(voice=voice, text=TEXT[:30], text_closed=True, layout=layout, sampling=sampling)
        bench.run()
        benches.append(bench)
    check_same(benches[1], benches[0])
    assert len(benches[1].engine.stage.codec.references) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(("sampling", "folder", "graphs"), in_turn(SAMPLINGS, FOLDERS, ENGINES), ids=str)
def test_another_engine_goes_on_with_the_same_samples(
    sampling: SamplingParams, folder: str, graphs: bool, request: pytest.FixtureRequest
) -> None:
    loaded = load(request.getfixturevalue(folder), graphs)
    spec = dict(text=TEXT, text_closed=True, sampling=sampling)
    check_takeover(lambda: EngineHarness.from_checkpoint(loaded), TOLERANCE, **spec)


@pytest.mark.parametrize(("layout", "graphs"), in_turn(LAYOUTS, ENGINES), ids=str)
def test_another_engine_goes_on_where_a_frame_hears_ahead(tmp_path: Path, layout: TextLayout, graphs: bool) -> None:
    """CosyVoice3: control tokens are among the codes, and all blocks of the flow are made again."""
    folder = write_with_voice(tmp_path)
    sampling = SamplingParams(seed=5, min_new_tokens=45)
    spec = dict(text=TEXT * 2, text_closed=True, layout=layout, sampling=sampling, max_frames=60)
    # Which blocks go together is a matter of timing: another lead alone makes a difference of 0.00095.
    loaded = load(folder, graphs, max_frames=120)
    check_takeover(lambda: EngineHarness.from_checkpoint(loaded), 2e-3, **spec)


@pytest.mark.parametrize(("layout", "graphs"), in_turn(LAYOUTS, ENGINES), ids=str)
def test_another_engine_goes_on_with_a_cloned_voice(base_folder: Path, layout: TextLayout, graphs: bool) -> None:
    chance = np.random.default_rng(3)
    embedding = chance.standard_normal(48).astype(np.float32).tobytes()
    codes = chance.integers(0, 64, (11, 4)).astype(np.int16).tobytes()
    voice = ClonedVoice(embedding=embedding, codes=codes, num_codebooks=4, transcript="the dog")
    sampling = SamplingParams(seed=5, min_new_tokens=9)
    spec = dict(voice=voice, text=TEXT, text_closed=True, layout=layout, sampling=sampling)
    check_takeover(lambda: make_bench(base_folder, graphs), TOLERANCE, **spec)


@pytest.mark.parametrize("graphs", [False, True])
def test_voice_that_fails_in_the_decoder_fails_alone(base_folder: Path, graphs: bool) -> None:
    embedding = np.ones(48, np.float32).tobytes()
    codes = np.full((3, 4), 9_999, np.int16).tobytes()
    broken = ClonedVoice(embedding=embedding, codes=codes, num_codebooks=4, transcript="the dog")
    bench = make_bench(base_folder, graphs)
    voices = [ClonedVoice(embedding=embedding), broken, ClonedVoice(embedding=embedding)]
    rows = [bench.submit(voice=voice, text=TEXT, text_closed=True) for voice in voices]
    bench.run()
    bench.check_idle()
    assert [bench.heard[row].reason is FinishReason.ERROR for row in rows] == [False, True, False]


def keys_replayed(bench: EngineHarness, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | int, ...]]:
    """Graphs that run from now on: of frames or of a prefill, and their keys."""
    keys, runner = list[tuple[str | int, ...]](), bench.engine.runner
    assert isinstance(runner, GraphRunner)

    def note(name: str, replay: Callable[..., None], *key: int) -> None:
        keys.append((name, *key))
        replay(*key)

    for name, graphs in (("frame", runner.frames), ("prefill", runner.prefills)):
        monkeypatch.setattr(graphs, "replay", partial(note, name, graphs.replay))
    return keys


@pytest.mark.parametrize("is_split", [False, True])
def test_rows_that_begin_together_sample_from_their_prefill(
    tiny_folder: Path, is_split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    benches = [make_bench(tiny_folder, graphs) for graphs in (False, True)]
    for bench, sampling in itertools.product(benches, SAMPLINGS[:2]):
        bench.submit(text=TEXT[:20], text_closed=True, layout=TextLayout.FULL, sampling=sampling)
    keys, runner = keys_replayed(benches[1], monkeypatch), benches[1].engine.runner
    assert isinstance(runner, GraphRunner)

    def first_only(stage: Callable[..., None]) -> Callable[..., None]:
        def stage_first(start: int, *args: Any) -> None:
            if is_split and start and args[0]:
                raise ValueError("one row at a time")
            stage(start, *args)

        return stage_first

    for name in ("stage_tokens", "stage_steps"):
        monkeypatch.setattr(runner.program, name, first_only(getattr(runner.program, name)))
    for bench in benches:
        for _ in range(5):
            bench.step()
        # Beside rows that go on, some of them in a block of their own or without a frame so far.
        for number in range(5):
            layout = TextLayout.STREAMING if number == 2 else TextLayout.FULL
            bench.submit(text=TEXT[: 8 * number + 20], text_closed=True, layout=layout, sampling=SAMPLINGS[2])
            if number != 2:
                bench.step()
        bench.run()
    check_same(benches[1], benches[0])
    frames = [key for name, *key in keys if name == "frame"]
    assert frames[0] == ([2] if is_split else [2, 1])
    assert (frames.count([4, 1]), frames.count([8, 1])) == ((0, 0) if is_split else (2, 2))
    assert sum(len(key) == 1 for key in frames) > 4


@pytest.mark.parametrize(
    ("num_steps", "wanted"), [(0, [(1, True, 1), (1, False, 2)]), (3, [(1, False, 2), (1, True, 1)])]
)
def test_single_position_of_a_prompt_is_in_a_pass_with_rows_that_go_on(
    tiny_folder: Path, num_steps: int, wanted: list[tuple[int, bool, int]]
) -> None:
    """It is a frame of a row that was resumed, and not the last one: it is staged before those, wherever it is in the
    batch."""
    resume = ResumePoint(codes=np.arange(12, dtype=np.int16).tobytes(), num_samples=0)
    benches, batches = list[EngineHarness](), list[list[tuple[int, bool, int]]]()
    for graphs in (False, True):
        bench = make_bench(tiny_folder, graphs, max_prefill_positions=7, max_cached_prefixes=0)
        bench.on_batch = lambda batch: batches.append([(w.count, w.sample, w.request.epoch) for w in batch.items])
        bench.submit(text=TEXT, text_closed=True, layout=TextLayout.STREAMING, sampling=SAMPLINGS[1])
        for _ in range(num_steps):
            bench.step()
        row = bench.submit(text=TEXT[:12], layout=TextLayout.STREAMING, sampling=SAMPLINGS[0], resume=resume)
        bench.run()
        bench.end_input(row)
        bench.run()
        benches.append(bench)
    assert [batch for batch in batches if (1, False, 2) in batch] == [wanted, wanted]
    check_same(benches[1], benches[0])


def test_prompts_are_in_a_pass_with_many_rows_up_to_the_limit(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = dict(max_batch_size=132, max_running_requests=132, num_blocks=1_000)
    benches = [make_bench(tiny_folder, True, sample_from_prefill=is_on, **sizes) for is_on in (False, True)]
    keys = keys_replayed(benches[1], monkeypatch)
    for bench in benches:
        # The first input of a streamed text is no prompt, once the prefix is known.
        for num_streamed, num_whole in [(1, 0), (19, 0), (0, 1), (106, 0), (0, 1), (0, 1)]:
            for layout in [TextLayout.STREAMING] * num_streamed + [TextLayout.FULL] * num_whole:
                sampling = SamplingParams(seed=bench.num_submitted, min_new_tokens=9)
                bench.submit(text=TEXT[:9], text_closed=True, layout=layout, sampling=sampling, lead_ms=60_000)
            bench.step()
        bench.step()
    assert [key for name, *key in keys if name == "frame"] == [[24], [24, 1], [128], [128, 1], [132], [132]]
    check_same(benches[1], benches[0])


def test_states_of_a_prefill_can_be_left_unused(tiny_folder: Path) -> None:
    benches = [make_bench(tiny_folder, True, sample_from_prefill=is_on) for is_on in (True, False)]
    for bench, sampling in itertools.product(benches, SAMPLINGS[:2]):
        bench.submit(text=TEXT[:20], text_closed=True, layout=TextLayout.FULL, sampling=sampling)
    runners = [bench.engine.runner for bench in benches]
    assert [isinstance(one, GraphRunner) and bool(one.prefilled_buckets) for one in runners] == [True, False]
    for bench in benches:
        bench.run()
    check_same(benches[1], benches[0])


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, [1, 2, 4, 8]),
        ({"max_prefill_positions": 6}, [1, 2, 4]),
        ({"max_batch_size": 132, "max_running_requests": 132}, [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128]),
        ({"fixed_batch_rows": 8}, []),
    ],
    ids=str,
)
def test_rows_that_sample_from_a_prefill_have_graphs_as_far_as_it_holds_them(
    tiny_folder: Path, settings: dict[str, int], wanted: list[int]
) -> None:
    runner = make_bench(tiny_folder, True, **settings).engine.runner
    assert isinstance(runner, GraphRunner)
    assert runner.prefilled_buckets == wanted


def test_a_row_that_cannot_be_staged_fails_alone(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(tiny_folder, True)
    program = bench.engine.runner.program  # type: ignore[attr-defined]
    stage_rows = program.stage_rows

    def stage(rows: Sequence[Any], start: int = 0) -> None:
        if any(row.seed == 1 and len(row.codes) == 3 for row in rows):
            raise ValueError("no such row")
        stage_rows(rows, start)

    monkeypatch.setattr(program, "stage_rows", stage)
    rows = [bench.submit(text=TEXT, text_closed=True, sampling=SamplingParams(seed=seed)) for seed in range(3)]
    bench.run()
    bench.check_idle()
    assert [bench.heard[row].reason is FinishReason.ERROR for row in rows] == [False, True, False]


def test_row_that_cannot_be_restored_fails_alone(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(tiny_folder, True)
    runner = bench.engine.runner
    assert isinstance(runner, GraphRunner)
    restore_row = runner.program.restore_row

    def restore(slot: int, row: Any) -> None:
        if row.seed == 1:
            raise ValueError("no such row")
        restore_row(slot, row)

    monkeypatch.setattr(runner.program, "restore_row", restore)
    rows = [bench.submit(text=TEXT, text_closed=True, sampling=SamplingParams(seed=seed)) for seed in range(3)]
    bench.run()
    bench.check_idle()
    assert [bench.heard[row].reason is FinishReason.ERROR for row in rows] == [False, True, False]


def test_frame_whose_pass_failed_ends_its_rows_and_no_later_one(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench, other = make_bench(tiny_folder, True), make_bench(tiny_folder, True)
    assert isinstance(bench.engine.runner, GraphRunner)
    program: Any = bench.engine.runner.program
    write_status, frames = program.passes.write_status, itertools.count(1)

    def write(finite: Tensor, out: Tensor) -> None:
        write_status(finite, out)
        if next(frames) == 4:
            out -= 2

    monkeypatch.setattr(program.passes, "write_status", write)
    sampling = SamplingParams(seed=1, min_new_tokens=9)
    rows = [bench.submit(text=TEXT, text_closed=True, sampling=sampling) for _ in range(3)]
    bench.run()
    for row in rows:
        [end] = [event for event in bench.heard[row].events if isinstance(event, RequestFinished)]
        assert end.reason is FinishReason.ERROR
        assert end.error is not None
        assert PASS_FAILED in end.error.message
    [warning] = [record.message for record in caplog.records if PASS_FAILED in record.message]
    assert 'disabled_kernels = ["predictor"]' in warning
    later, wanted = (one.submit(text=TEXT, text_closed=True, sampling=sampling) for one in (bench, other))
    bench.run()
    other.run()
    bench.check_idle()
    assert np.abs(bench.heard[later].pcm - other.heard[wanted].pcm).max() < TOLERANCE


def test_newcomer_that_cannot_be_staged_costs_others_no_pass_of_their_own(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    benches = [make_bench(tiny_folder, graphs) for graphs in (False, True)]
    runner = benches[1].engine.runner
    assert isinstance(runner, GraphRunner)
    stage_tokens = runner.program.stage_tokens

    def stage(start: int, row: Any, items: Sequence[Any]) -> None:
        if row.seed == 9:
            raise ValueError("no such row")
        stage_tokens(start, row, items)

    monkeypatch.setattr(runner.program, "stage_tokens", stage)
    for bench in benches:
        for sampling in SAMPLINGS:
            bench.submit(text=TEXT, text_closed=True, sampling=sampling)
        bench.step()
        bench.step()
    keys = keys_replayed(benches[1], monkeypatch)
    found = benches[1].submit(text=TEXT, text_closed=True, layout=TextLayout.FULL, sampling=SamplingParams(seed=9))
    benches[1].step()
    assert keys == [("frame", 4)]
    assert "prompts of a step are run alone: ValueError" in caplog.text
    for bench in benches:
        bench.run()
    assert benches[1].heard.pop(found).reason is FinishReason.ERROR
    check_same(benches[1], benches[0])


def test_one_more_than_can_be_carried_is_refused(tiny_folder: Path) -> None:
    bench = make_bench(tiny_folder, True, admission_utilization=0.9)
    first = bench.submit(text=TEXT, text_closed=True, lead_ms=2_000)
    for _ in range(100):
        bench.engine.scheduler.step_model.observe(1, 0.08)
    second = bench.submit(text=TEXT, text_closed=True, lead_ms=2_000)
    bench.run()
    assert bench.heard[first].reason is not FinishReason.ERROR
    assert bench.heard[second].end is not None
    assert bench.heard[second].end.error.code == EngineOverloaded.code
    assert bench.heard[second].end.error.retry_after_ms


def two_who_came_one_after_the_other(
    folder: Path, by_call: bool, num_chunks: int = 3
) -> tuple[EngineHarness, list[list[set[str]]]]:
    """Whose chunks were handed over together, in each step after the second has come."""
    bench = make_bench(folder, True, max_frames=60, min_frame_cap=60, emit_per_decode_call=by_call)
    handed: list[list[set[str]]] = [[]]

    def hand_over() -> None:
        handed[-1].append(
            {event.request_id for _, event in bench.engine.requests.events if isinstance(event, SpeechChunk)}
        )
        bench.collect()

    bench.engine.hand_over = hand_over
    bench.on_batch = lambda _: handed.append([])
    bench.step_s = 0.01
    sampling = SamplingParams(seed=1, min_new_tokens=50)
    bench.submit(text=TEXT, text_closed=True, max_frames=40, sampling=sampling, lead_ms=60_000)
    bench.run(until=lambda: bench.request(1).num_chunks > num_chunks)
    bench.submit(text=TEXT, text_closed=True, max_frames=40, sampling=sampling, lead_ms=60_000)
    del handed[:-1]
    bench.run()
    bench.check_idle()
    return bench, handed


def test_first_chunk_is_decoded_alone_with_equal_samples(tiny_folder: Path) -> None:
    together, all_at_once = two_who_came_one_after_the_other(tiny_folder, by_call=False)
    apart, by_call = two_who_came_one_after_the_other(tiny_folder, by_call=True)
    check_same(apart, together)
    first, second = {"r1"}, {"r2"}
    assert [first | second] in all_at_once
    assert [second] in by_call, "the first has lead, and what it gets leaves with the step"
    assert [first, second] not in by_call


def test_first_chunk_leaves_before_others_of_its_call(tiny_folder: Path) -> None:
    _, handed = two_who_came_one_after_the_other(tiny_folder, by_call=True, num_chunks=0)
    first_chunk = next(groups for groups in handed if {"r2"} in groups)
    assert first_chunk == [{"r2"}, {"r1"}], "both have little lead"


@pytest.mark.parametrize(
    ("max_rows", "num_replayed", "num_chunks", "wanted"),
    [
        (1, 0, 1, ["launch", "collect", "launch"]),
        (1, 0, 2, ["launch", "collect", "launch", "launch", "collect"]),
        (1, 1, 1, ["collect", "launch"]),
        (1, 2, 1, ["launch", "collect"]),
        (0, 0, 1, ["launch", "launch", "collect"]),
    ],
    ids=["first", "second", "one replayed", "two replayed", "many rows"],
)
def test_first_chunk_of_one_frame_leaves_before_later_calls_are_launched(
    tiny_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    max_rows: int,
    num_replayed: int,
    num_chunks: int,
    wanted: list[str],
) -> None:
    bench, order = make_bench(tiny_folder, True), list[str]()
    launch_call, collect = CodecStage._launch_call, CodecStage.collect

    def launched(stage: CodecStage, *args: Any) -> None:
        order.append("launch")
        launch_call(stage, *args)

    def collected(stage: CodecStage, num_calls: int) -> list[DecodedAudio]:
        order.append("collect")
        return collect(stage, num_calls)

    monkeypatch.setattr(CodecStage, "_launch_call", launched)
    monkeypatch.setattr(CodecStage, "collect", collected)
    # No call is done before the host waits for it.
    monkeypatch.setattr(CodecStage, "is_done", False)
    monkeypatch.setattr("engine.runtime.decoding.MAX_ROWS_WAITING", max_rows)
    resume = ResumePoint(codes=np.zeros((num_replayed, 4), np.int16).tobytes(), num_samples=0) if num_replayed else None
    sampling = SamplingParams(seed=1, min_new_tokens=20)
    bench.submit(text=TEXT, text_closed=True, lead_ms=2_000, sampling=sampling, resume=resume)
    bench.run(until=lambda: bench.request(1).num_chunks >= num_chunks)
    assert order == wanted


def test_request_of_an_engine_that_died_before_its_first_audio_is_accepted(tiny_folder: Path) -> None:
    bench = make_bench(tiny_folder, True, admission_utilization=0.9)
    spec: dict[str, Any] = dict(text=TEXT, text_closed=True, lead_ms=2_000, sampling=SamplingParams(seed=3))
    first = bench.submit(**spec)
    for _ in range(100):
        bench.engine.scheduler.step_model.observe(1, 0.08)
    second = bench.submit(**spec, resume=ResumePoint(codes=b"", num_samples=0))
    bench.run()
    assert bench.heard[second].reason is bench.heard[first].reason is not FinishReason.ERROR
    np.testing.assert_allclose(bench.heard[second].pcm, bench.heard[first].pcm, atol=1e-4)


def test_later_segment_of_a_reply_counts_no_new_stream(tiny_folder: Path) -> None:
    bench = make_bench(tiny_folder, True, admission_utilization=0.9)
    rows = [bench.submit(text=TEXT, text_closed=True, lead_ms=2_000)]
    for _ in range(100):
        bench.engine.scheduler.step_model.observe(1, 0.08)
    rows.append(bench.submit(text=TEXT, text_closed=True, lead_ms=2_000, segment=1))
    bench.run()
    assert all(bench.heard[row].reason is not FinishReason.ERROR for row in rows)


def test_listener_with_lead_gets_large_chunks(tiny_folder: Path) -> None:
    bench = make_bench(tiny_folder, True, max_frames=100, min_frame_cap=100)
    bench.step_s = 0.01
    sampling = SamplingParams(min_new_tokens=90)
    row = bench.submit(text=TEXT, text_closed=True, max_frames=80, sampling=sampling, lead_ms=2000)
    started_s, late = bench.now_s, []
    request = bench.request(row)
    for _ in range(600):
        num_chunks, dry_at_s = request.num_chunks, request.clock.dry_at_s
        bench.run(until=lambda before=num_chunks: request.num_chunks > before or not bench.row(row))
        late.append(dry_at_s is not None and bench.now_s > dry_at_s)
        if not bench.row(row):
            break
    sizes = [len(chunk.pcm) // 1920 for chunk in bench.heard[row].chunks]
    assert sizes[0] == 1
    assert sizes.count(8) >= 7, sizes
    assert not any(late[:-1])
    assert bench.now_s - started_s > 3.0
    assert bench.engine.times.num_steps < 250


@pytest.mark.parametrize(
    ("settings", "penalty"), [({}, 50.0), ({"sample_from_prefill": False}, None)], ids=["penalty", "last frame"]
)
@pytest.mark.parametrize("num_chars", [0, 12])
def test_resumed_request_whose_text_comes_later_goes_on_as_before(
    tiny_folder: Path, settings: dict[str, bool], penalty: float | None, num_chars: int
) -> None:
    """Its row is parked before its codes are forced, in a slot that another request has used."""
    sampling = SamplingParams(seed=5, min_new_tokens=9, repetition_penalty=penalty)
    spec = dict(layout=TextLayout.STREAMING, sampling=sampling)
    whole, other = (make_bench(tiny_folder, True, **settings) for _ in range(2))
    uncut = whole.heard[whole.submit(text=TEXT, text_closed=True, **spec)]
    whole.run()
    received = uncut.chunks[: len(uncut.chunks) // 2]
    num_samples = received[-1].start_sample + len(received[-1].pcm)
    point = ResumePoint(codes=b"".join(chunk.codes for chunk in received), num_samples=num_samples)
    other.submit(text="another", text_closed=True, sampling=SamplingParams(seed=99, min_new_tokens=9))
    other.run()
    resumed = other.submit(text=TEXT[:num_chars], **spec, resume=point)
    other.run()
    other.push_text(resumed, TEXT[num_chars:])
    other.end_input(resumed)
    other.run()
    found = other.heard[resumed]
    assert found.reason == uncut.reason
    pcm = np.concatenate([chunk.pcm for chunk in found.chunks])
    np.testing.assert_allclose(pcm, uncut.pcm[num_samples:], rtol=0, atol=TOLERANCE)
