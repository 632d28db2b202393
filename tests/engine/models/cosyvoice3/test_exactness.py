"""The real tiny model in the engine: what a row says depends on its own text, voice and seed, on nobody beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as law
from msgspec import structs

from engine.api import ClonedVoice, FinishReason, SamplingParams, TextLayout
from engine.config import EngineConfig
from engine.layers.transformer import CausalContext
from engine.load import LoadedCheckpoint, load_engine
from engine.models.cosyvoice3 import model as module
from engine.models.cosyvoice3.model import CosyVoice3
from engine.models.cosyvoice3.prompt import CosySequence
from tests.engine.engine_harness import EngineHarness
from tests.engine.models.cosyvoice3.voices import cloned
from tests.engine.runtime.random_schedule import Order, orders, play
from tests.engine.sample_recorder import DrawBook, check_identical

ROWS, SEED, MAX_FRAMES = 6, 1000, 32
TEXT = "the quick brown fox jumps over the lazy dog"
OTHERS = ["hello world", "how are you today", "over the lazy dog", "jumps", "the fox [breath] jumps"]
# Of logits with a deviation near 3.
TOLERANCE = 2e-4


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> DrawBook:
    return DrawBook().install(monkeypatch, module)


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedCheckpoint:
    config = EngineConfig(
        num_blocks=300, block_size=8, max_batch_size=ROWS, max_running_requests=ROWS, lazy_graph_capture=True,
        fixed_batch_rows=ROWS, fixed_block_table_width=32,
    )  # fmt: skip
    return load_engine(folder, config, "cpu", "float32", is_embedded=False)


@pytest.fixture
def bench(loaded: LoadedCheckpoint) -> EngineHarness:
    return EngineHarness.from_checkpoint(loaded)


def speak(bench: EngineHarness, **fields: Any) -> int:
    usual = dict(text=TEXT, text_closed=True, sampling=SamplingParams(seed=SEED), max_frames=MAX_FRAMES)
    return bench.submit(**(usual | fields))


VOICES: list[ClonedVoice | None] = [None, cloned(), cloned(with_transcript=False)]


@pytest.mark.parametrize("voice", VOICES, ids=["none", "zero-shot", "cross-lingual"])
@pytest.mark.parametrize(
    ("layout", "instruct"),
    [
        (TextLayout.FULL, ""),
        (TextLayout.STREAMING, "happy"),
        pytest.param(TextLayout.FULL, "happy", marks=pytest.mark.slow),
        pytest.param(TextLayout.STREAMING, "", marks=pytest.mark.slow),
    ],
)
def test_paged_steps_equal_one_dense_pass(
    bench: EngineHarness, book: DrawBook, voice: ClonedVoice | None, layout: TextLayout, instruct: str
) -> None:
    row = speak(bench, voice=voice, layout=layout, instruct=instruct)
    assert bench.heard[row].end is None
    request = bench.request(row)
    bench.run()
    bench.check_idle()
    assert bench.heard[row].reason in (FinishReason.STOP, FinishReason.LENGTH)
    assert bench.heard[row].num_samples == 960 * bench.heard[row].end.num_frames > 0  # type: ignore[union-attr]
    model, speech = bench.engine.model, request.row
    assert isinstance(model, CosyVoice3)
    assert isinstance(speech, CosySequence)
    draws = book.take()[SEED]
    hidden = model.forward([speech], [speech.inputs], torch.arange(len(speech.inputs))[None], CausalContext())[0]
    logits = model.talker.logits(hidden)[:, : model.config.talker.speech_ids.num_codes]
    for draw in draws.values():
        distance = (logits - draw.logits[: logits.shape[1]]).abs().amax(1).min()
        assert distance < TOLERANCE, "no position of the one pass has these logits"


def arrive(bench: EngineHarness, pieces: Sequence[str], **fields: Any) -> int:
    row = speak(bench, text="", text_closed=False, **fields)
    for piece in pieces:
        bench.push_text(row, piece)
        bench.run()
    bench.end_input(row)
    bench.run()
    return row


@pytest.mark.parametrize("voice", VOICES, ids=["none", "zero-shot", "cross-lingual"])
def test_any_text_pieces_give_bit_equal_speech(bench: EngineHarness, book: DrawBook, voice: ClonedVoice | None) -> None:
    said, pcm = [], []
    for pieces in ([TEXT], list(TEXT), [TEXT[:3], TEXT[3:20], TEXT[20:]]):
        row = arrive(bench, pieces, voice=voice)
        said.append(book.take()[SEED])
        pcm.append(bench.heard[row].pcm)
    for other in (1, 2):
        check_identical(said[0], said[other])
        np.testing.assert_allclose(pcm[other], pcm[0], atol=1e-4)


def test_live_text_starves_and_goes_on(bench: EngineHarness) -> None:
    row = arrive(bench, [TEXT[:25], TEXT[25:]])
    heard = bench.heard[row]
    assert heard.starved
    assert heard.reason in (FinishReason.STOP, FinishReason.LENGTH)


def test_voice_sets_the_sound_and_transcript_the_words(bench: EngineHarness, book: DrawBook) -> None:
    draws, pcm = [], []
    for voice in VOICES:
        row = speak(bench, voice=voice)
        bench.run()
        draws.append(book.take()[SEED])
        pcm.append(bench.heard[row].pcm)
    assert not torch.equal(draws[0][0, 0].logits, draws[1][0, 0].logits), "the transcript is in nobody's prompt"
    check_identical(draws[0], draws[2])
    assert len(pcm[0]) == len(pcm[2])
    assert not np.allclose(pcm[0], pcm[2], atol=1e-2), "the recording is in nobody's sound"


def test_an_instruction_replaces_the_recording_in_the_prompt(bench: EngineHarness, book: DrawBook) -> None:
    speak(bench, voice=cloned(), instruct="请用广东话表达。")
    bench.run()
    first = book.take()[SEED]
    speak(bench, voice=cloned(with_transcript=False), instruct="cantonese")
    bench.run()
    check_identical(first, book.take()[SEED])


def test_settings_of_a_request_reach_the_draws(bench: EngineHarness, book: DrawBook) -> None:
    for sampling in (SamplingParams(seed=1, do_sample=False), SamplingParams(seed=1, temperature=0.0)):
        speak(bench, sampling=sampling)
        bench.run()
        assert all(draw.choice == int(draw.logits.argmax()) for draw in book.take()[1].values())
    explicit = SamplingParams(seed=SEED, temperature=1.0, top_k=25, top_p=0.8, repetition_window=10)
    speak(bench)
    bench.run()
    usual = book.take()[SEED]
    speak(bench, sampling=explicit)
    bench.run()
    check_identical(usual, book.take()[SEED])


Act = Callable[[EngineHarness, int], None]


def preempted(bench: EngineHarness, row: int) -> None:
    for wait in (3, 5):
        for _ in range(wait):
            bench.step()
        if (request := bench.row(row)) and request.block_table:
            bench.engine.scheduler.preempt(request)


def test_row_that_lost_its_memory_gives_equal_speech(bench: EngineHarness) -> None:
    row = speak(bench)
    bench.run()
    steady = bench.heard[row].pcm
    row = speak(bench)
    preempted(bench, row)
    bench.run()
    np.testing.assert_allclose(bench.heard[row].pcm, steady, atol=1e-3)


@given(order=orders(max_size=14))
@law(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_rows_that_come_and_go_leave_others_bit_identical(
    order: Order, loaded: LoadedCheckpoint, book: DrawBook
) -> None:
    """Every request of a random order against itself alone: all its draws, and the sound but for rounding."""
    bench, book.by_seed = EngineHarness.from_checkpoint(loaded), {}

    def submit(number: int) -> int:
        voice, sampling = VOICES[number % len(VOICES)], SamplingParams(seed=len(bench.heard))
        text, closed = OTHERS[number % len(OTHERS)], number % 2 == 0
        return speak(bench, text=text, text_closed=closed, sampling=sampling, voice=voice, max_frames=20)

    texts = play(order, bench, submit)
    together = book.take()
    for epoch, text in texts.items():
        heard = bench.heard[epoch]
        alone = EngineHarness.from_checkpoint(loaded)
        again = alone.submit(**(structs.asdict(heard.spec) | dict(text=text)))
        alone.end_input(again)
        alone.run()
        mine, whole = (draws.get(heard.spec.sampling.seed, {}) for draws in (together, book.take()))
        is_cut = heard.reason is FinishReason.CANCELLED
        check_identical(mine, {place: whole[place] for place in mine} if is_cut else whole)
        np.testing.assert_allclose(heard.pcm, alone.heard[again].pcm[: heard.num_samples], atol=1e-3)
