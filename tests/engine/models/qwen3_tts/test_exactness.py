"""What a row says and what may change it: nothing in one pinned batch shape, rounding alone across shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as law

from engine.api import FinishReason, SamplingParams, TextLayout
from engine.config import EngineConfig
from engine.launch import EMBEDDED_VOICE
from engine.layers.transformer import CausalContext
from engine.load import LoadedCheckpoint, load_engine
from engine.models.qwen3_tts import model as model_module
from engine.models.qwen3_tts.model import Qwen3TTS
from engine.models.qwen3_tts.prompt import QwenSequence
from tests.engine.engine_harness import EngineHarness
from tests.engine.runtime.random_schedule import Order, orders, play
from tests.engine.sample_recorder import DrawBook, check_close, check_identical

ROWS, SEED = 8, 1000
TEXT = "the quick brown fox jumps over the lazy dog"
OTHERS = ["hello world", "how are you today", "over the lazy dog", "jumps", "the fox"]
PINNED: dict[str, Any] = dict(fixed_batch_rows=ROWS, fixed_block_table_width=12)
# Of logits with a deviation near 1; measured below 2e-5 in fp32.
TOLERANCE = 1e-4


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> DrawBook:
    return DrawBook().install(monkeypatch, model_module)


MakeBench = Callable[..., EngineHarness]


BENCHES = [
    pytest.param(("tiny_folder", True), id="cpu kernels"),
    pytest.param(("projected_folder", False), id="plain, projected"),
]


@pytest.fixture(params=BENCHES)
def make_bench(request: pytest.FixtureRequest) -> MakeBench:
    folder, cpu_optimizations = request.param

    @cache
    def load(**settings: Any) -> LoadedCheckpoint:
        usual: dict[str, Any] = dict(
            num_blocks=300, block_size=8, max_batch_size=ROWS, max_running_requests=ROWS, max_frames=16
        )
        usual["lazy_graph_capture"] = True  # warming up is seconds for each engine, and says nothing
        config = EngineConfig(**(usual | {"cpu_optimizations": cpu_optimizations} | settings))
        return load_engine(request.getfixturevalue(folder), config, "cpu", "float32", is_embedded=False)

    return lambda **settings: EngineHarness.from_checkpoint(load(**settings))


def usually_with(place: int) -> pytest.MarkDecorator:
    """Run a test with one of the benches, and with the other one among the slow tests."""
    marks = [() if number == place else pytest.mark.slow for number in range(len(BENCHES))]
    benches = [pytest.param(*bench.values, id=bench.id, marks=mark) for bench, mark in zip(BENCHES, marks, strict=True)]
    return pytest.mark.parametrize("make_bench", benches, indirect=True)


def speak(bench: EngineHarness, **fields: Any) -> int:
    usual = dict(text=TEXT, text_closed=True, layout=TextLayout.STREAMING, sampling=SamplingParams(seed=SEED))
    return bench.submit(**(usual | fields))


def others(bench: EngineHarness, count: int, first_seed: int) -> list[int]:
    return [
        speak(bench, text=OTHERS[n % len(OTHERS)], sampling=SamplingParams(seed=first_seed + n), voice="bo")
        for n in range(count)
    ]


def check_spoke(bench: EngineHarness, row: int) -> None:
    assert bench.heard[row].reason in (FinishReason.STOP, FinishReason.LENGTH)
    assert bench.heard[row].num_samples > 2 * 1920


# -- in one pinned shape -----------------------------------------------------------------------------------------


def test_pinned_shape_makes_rows_independent(make_bench: MakeBench, book: DrawBook) -> None:
    bench = make_bench(**PINNED)
    speak(bench)
    bench.run()
    alone = book.take()[SEED]

    crowded = make_bench(**PINNED)
    others(crowded, 3, first_seed=1)
    for _ in range(4):
        crowded.step()
    row = speak(crowded)
    for batch in range(3):
        for _ in range(5):
            crowded.step()
        others(crowded, 2, first_seed=10 * (batch + 1))
    crowded.run()
    check_spoke(crowded, row)
    check_identical(book.take()[SEED], alone)


@usually_with(0)
def test_text_by_character_equals_text_at_once(make_bench: MakeBench, book: DrawBook) -> None:
    said = []
    for pieces in ([TEXT], list(TEXT), [TEXT[:3], TEXT[3:20], TEXT[20:]]):
        bench = make_bench(**PINNED)
        row = speak(bench, text="", text_closed=False)
        for piece in pieces:
            bench.push_text(row, piece)
            bench.run(until=lambda: False)
        bench.end_input(row)
        bench.run()
        check_spoke(bench, row)
        said.append(book.take()[SEED])
    check_identical(said[0], said[1])
    check_identical(said[0], said[2])


@usually_with(0)
def test_a_row_that_sat_out_is_bit_identical(make_bench: MakeBench, book: DrawBook) -> None:
    """Parked for text twice, and waiting at its lead, while others come and go."""
    bench = make_bench(**PINNED)
    row = speak(bench)
    bench.run()
    steady = book.take()[SEED]

    bench = make_bench(**PINNED)
    row = speak(bench, text=TEXT[:10], text_closed=False, lead_ms=200)
    bench.run()
    assert bench.request(row).parked
    others(bench, 4, first_seed=1)
    bench.run()
    bench.push_text(row, TEXT[10:25])
    for _ in range(3):
        bench.step()
    others(bench, 3, first_seed=50)
    bench.run()
    bench.push_text(row, TEXT[25:])
    bench.end_input(row)
    bench.run()
    check_spoke(bench, row)
    check_identical(book.take()[SEED], steady)


@usually_with(1)
def test_a_prefix_out_of_the_cache_is_bit_identical(make_bench: MakeBench, book: DrawBook) -> None:
    said = []
    for max_cached_prefixes, requests_before in ((0, 0), (8, 0), (8, 1)):
        bench = make_bench(**PINNED, max_cached_prefixes=max_cached_prefixes)
        for _ in range(requests_before):
            speak(bench, text="hello", sampling=SamplingParams(seed=1))
            bench.run()
        speak(bench)
        bench.run()
        said.append(book.take()[SEED])
    check_identical(said[0], said[1])
    check_identical(said[0], said[2])


@usually_with(1)
def test_a_row_that_fails_leaves_the_others_bit_identical(make_bench: MakeBench, book: DrawBook) -> None:
    """Its numbers are not finite from its first text row on: in its keys and values, and in blocks that others get."""
    bench = make_bench(**PINNED)
    speak(bench)
    bench.run()
    alone = book.take()[SEED]

    bench = make_bench(**PINNED, num_blocks=40)
    model = bench.engine.model
    assert isinstance(model, Qwen3TTS)
    [bad_id] = model.tokenizer.encode("Q")
    model.talker.text_table[bad_id] = torch.nan
    broken = [speak(bench, text="Q", language="english", sampling=SamplingParams(seed=n)) for n in range(3)]
    row = speak(bench)
    late = speak(bench, text="hello", sampling=SamplingParams(seed=9), language="english")
    bench.run()
    bench.check_idle()
    for epoch in broken:
        assert bench.heard[epoch].reason is FinishReason.ERROR
    check_spoke(bench, row)
    assert bench.heard[late].reason is not FinishReason.ERROR
    check_identical(book.take()[SEED], alone)


# -- across shapes -----------------------------------------------------------------------------------------------


def whole(bench: EngineHarness, row: QwenSequence) -> torch.Tensor:
    """Teacher forced, the slow way: all inputs at once, one dense causal pass -> hidden states [T, H]."""
    model = bench.engine.model
    assert isinstance(model, Qwen3TTS)
    positions = torch.arange(len(row.inputs))[None]
    hidden: torch.Tensor = model.forward([row], [row.inputs], positions, CausalContext())[0]
    return hidden


def test_paged_steps_equal_one_dense_pass(make_bench: MakeBench, book: DrawBook) -> None:
    bench = make_bench(max_prefill_positions=3)
    row = speak(bench, layout=TextLayout.FULL, sampling=SamplingParams(seed=SEED, repetition_penalty=1.0))
    others(bench, 3, first_seed=1)
    request = bench.request(row)
    bench.run()
    check_spoke(bench, row)
    model, speech = bench.engine.model, request.row
    assert isinstance(model, Qwen3TTS)
    assert isinstance(speech, QwenSequence)
    hidden = whole(bench, speech)
    draws = [draw for (_, codebook), draw in sorted(book.of(SEED).items()) if codebook == 0]
    logits = model.talker.codec_head(hidden[len(hidden) - len(draws) :])[:, : model.config.talker.num_codes]
    found = torch.stack([draw.logits[: model.config.talker.num_codes] for draw in draws])
    torch.testing.assert_close(found, logits, atol=TOLERANCE, rtol=0)


def draws_of(book: DrawBook, bench: EngineHarness, act: Callable[[EngineHarness, int], None]) -> dict[Any, Any]:
    row = speak(bench)
    act(bench, row)
    bench.run()
    check_spoke(bench, row)
    return book.take()[SEED]


def undisturbed(bench: EngineHarness, row: int) -> None:
    pass


def among_others(bench: EngineHarness, row: int) -> None:
    others(bench, 2, first_seed=1)
    for _ in range(6):
        bench.step()
    others(bench, 5, first_seed=50)


def preempted(bench: EngineHarness, row: int) -> None:
    for wait in (4, 9):
        for _ in range(wait):
            bench.step()
        bench.engine.scheduler.preempt(bench.request(row))


OTHER_SHAPES: list[tuple[Callable[[EngineHarness, int], None], dict[str, Any]]] = [
    (among_others, {}),
    (preempted, {}),
    (preempted, dict(max_prefill_positions=4)),
    (undisturbed, dict(max_prefill_positions=2, max_cached_prefixes=0)),
    (undisturbed, dict(block_size=1)),
    (undisturbed, PINNED),
]


# Each with one of the two benches, in turn, and with the other one among the slow tests.
@pytest.mark.parametrize(
    ("make_bench", "act", "settings"),
    [
        pytest.param(*bench.values, *shape, marks=() if number % 2 == place else pytest.mark.slow)
        for place, bench in enumerate(BENCHES)
        for number, shape in enumerate(OTHER_SHAPES)
    ],
    indirect=["make_bench"],
)
def test_shapes_give_close_logits_and_equal_codes(
    make_bench: MakeBench, book: DrawBook, act: Callable[[EngineHarness, int], None], settings: dict[str, Any]
) -> None:
    usual = draws_of(book, make_bench(), undisturbed)
    other = draws_of(book, make_bench(**settings), act)
    assert check_close(usual, other, TOLERANCE) >= 40


@usually_with(0)
def test_the_comparison_would_see_a_clear_draw_that_differs(make_bench: MakeBench, book: DrawBook) -> None:
    one = draws_of(book, make_bench(max_frames=3), undisturbed)
    other = {place: replace(draw) for place, draw in one.items()}
    other[1, 0].choice = int(other[1, 0].logits.argsort(descending=True)[40])
    with pytest.raises(AssertionError, match="a clear draw differs"):
        check_close(one, other, TOLERANCE)
    other[1, 0].logits = other[1, 0].logits + 0.01
    with pytest.raises(AssertionError, match="not close"):
        check_close(one, other, TOLERANCE)


@usually_with(1)
def test_layouts_are_not_the_same_speech(make_bench: MakeBench, book: DrawBook) -> None:
    """Both are right, each for its layout: nothing may compare one to the other."""
    said = []
    for layout in (TextLayout.STREAMING, TextLayout.FULL):
        speak(bench := make_bench(), layout=layout)
        bench.run()
        said.append({place: draw.choice for place, draw in book.take()[SEED].items()})
    assert said[0] != said[1]


def test_restarted_engine_gives_equal_speech(any_folder: Path, book: DrawBook) -> None:
    loaded = load_engine(
        any_folder,
        EngineConfig(num_blocks=60, **PINNED, max_batch_size=ROWS, lazy_graph_capture=True),
        "cpu",
        "auto",
        False,
    )
    said = []
    for _ in range(2):
        bench = EngineHarness.from_checkpoint(loaded)
        speak(bench, max_frames=10)
        bench.run()
        said.append(book.take()[SEED])
    check_identical(said[0], said[1])


# -- random orders -----------------------------------------------------------------------------------------------


@given(order=orders(max_size=20))
@law(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_rows_that_come_and_go_leave_others_bit_identical(order: Order, make_bench: MakeBench, book: DrawBook) -> None:
    """Every request of a random order, as far as it came, against itself alone in the same pinned shape."""
    bench, book.by_seed = make_bench(**PINNED, max_frames=8), {}

    def submit(number: int) -> int:
        sampling = SamplingParams(seed=len(bench.heard))
        return speak(bench, text=OTHERS[number % len(OTHERS)], text_closed=number % 3 == 0, sampling=sampling)

    texts = play(order, bench, submit)
    together = book.take()
    for epoch, text in texts.items():
        sampling = bench.heard[epoch].spec.sampling
        alone = make_bench(**PINNED, max_frames=8)
        speak(alone, text=text, sampling=sampling)
        alone.run()
        mine, whole = together.get(sampling.seed, {}), book.take()[sampling.seed]
        check_identical(mine, {place: whole[place] for place in mine})


def test_embedded_voice_is_bit_identical_in_a_pinned_shape(book: DrawBook) -> None:
    """At its real sizes, where products take other paths than in small."""
    usual = dict(
        kv_memory_mb=64, max_batch_size=ROWS, max_running_requests=ROWS, max_frames=12, lazy_graph_capture=True
    )
    config = EngineConfig(**usual, **PINNED)  # type: ignore[arg-type]
    loaded = load_engine(EMBEDDED_VOICE, config, "cpu", "float32", is_embedded=True)
    bench = EngineHarness.from_checkpoint(loaded)
    speak(bench)
    bench.run()
    alone = book.take()[SEED]
    crowded = EngineHarness.from_checkpoint(loaded)
    for n in range(3):
        speak(crowded, text=OTHERS[n], sampling=SamplingParams(seed=n))
    for _ in range(3):
        crowded.step()
    speak(crowded)
    crowded.step()
    for n in range(3, 8):
        speak(crowded, text=OTHERS[n % 5], sampling=SamplingParams(seed=n), voice="edwin")
    crowded.run()
    check_identical(book.take()[SEED], alone)
