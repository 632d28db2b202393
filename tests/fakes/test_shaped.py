"""The shaped fakes have the shapes they are named for: what makes them worth holding the laws against."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engine.api import SamplingParams, SpeechRequest
from engine.config import EngineConfig
from engine.layers.transformer import CausalContext
from engine.models.base import AwaitText, TalkerInputs
from engine.runtime.engine import Engine
from tests.engine.engine_harness import EngineHarness
from tests.fakes.checksum_model import ChecksumFamily, ChecksumTalker, checksum_of, reference_codes
from tests.fakes.cosyvoice_checksum import (
    BLOCK_SPEECH,
    BLOCK_TEXT,
    HOP_TOKENS,
    LOOK_AHEAD_TOKENS,
    SLICES,
    TAIL_TOKENS,
    TASK,
    TEXT_BASE,
    TOKEN_SAMPLES,
    CosyRow,
    CosyVoiceChecksumFamily,
    CosyVoiceChecksumTalker,
    FakeSlicedDecodeStage,
)
from tests.fakes.qwen_checksum import QwenChecksumFamily

TEXT = "abcdefghijklmnopqrstuvw"


def request(**fields: Any) -> SpeechRequest:
    return SpeechRequest(request_id="r", **({"sampling": SamplingParams(seed=3)} | fields))


@pytest.mark.parametrize("shape", [QwenChecksumFamily(), CosyVoiceChecksumFamily()])
def test_checksum_depends_on_order_and_content(shape: ChecksumFamily) -> None:
    model = shape.make_model()
    assert isinstance(model, ChecksumTalker)
    items = [5, 17, 5, 40_000, 3]
    positions = torch.arange(5)[None]
    hidden = model.forward([model.new_sequence(request(), 1)], [items], positions, CausalContext())
    assert hidden[0, -1].round().int().tolist() == checksum_of(items)
    assert checksum_of(items) != checksum_of([17, 5, 5, 40_000, 3])
    assert checksum_of(items) != checksum_of([5, 17, 5, 40_001, 3])


@pytest.mark.parametrize("shape", [QwenChecksumFamily(), CosyVoiceChecksumFamily()])
def test_codes_are_a_function_of_seed_and_text(shape: ChecksumFamily) -> None:
    def said(seed: int, text: str) -> list[list[int]]:
        spec = request(sampling=SamplingParams(seed=seed))
        return reference_codes(shape.make_model(), spec, text, lambda n: 60)[0]

    assert said(1, TEXT) == said(1, TEXT)
    assert said(1, TEXT) != said(2, TEXT)
    assert said(1, TEXT) != said(1, TEXT[:-1] + "z")


def talk(num_ids: int) -> tuple[list[list[int]], list[str]]:
    """What the CosyVoice-shaped talker is fed and answers, alone, for closed text."""
    model = CosyVoiceChecksumTalker()
    row = model.new_sequence(request(), 3)
    assert isinstance(row, CosyRow)
    row.text.ids, row.text.closed = list(range(1, num_ids + 1)), True
    fed, answers = [], []
    while not answers or answers[-1] != "StopOutcome":
        due = model.next_input(row)
        assert isinstance(due, TalkerInputs)
        row.inputs += due.inputs
        fed.append(list(due.inputs))
        if due.sample:
            answers.append(type(model.outcome(row, checksum_of(row.inputs))).__name__)
    return fed, answers


def test_text_goes_in_blocks_of_five_and_the_rest_at_the_end() -> None:
    fed, answers = talk(23)
    texts = [[i - TEXT_BASE for i in items if i > TEXT_BASE] for items in fed]
    assert [len(block) for block in texts if block] == [BLOCK_TEXT] * 4 + [3]
    assert [i for block in texts for i in block] == list(range(1, 24))
    assert [TASK in items for items in fed].count(True) == 1
    assert fed[[TASK in items for items in fed].index(True)][-4:] == [
        TEXT_BASE + 21,
        TEXT_BASE + 22,
        TEXT_BASE + 23,
        TASK,
    ]
    assert set(answers) == {"FrameOutcome", "ControlOutcome", "StopOutcome"}


def test_block_holds_at_most_fifteen_speech_tokens() -> None:
    fed, _ = talk(20)
    blocks = [items for items in fed if len(items) > 1][1:]  # after the prefix
    assert {len(items) for items in blocks} >= {BLOCK_TEXT, BLOCK_TEXT + 1}, "a block ends early by FILL, or is full"
    lengths, count = [], 0
    for items in fed[1:]:
        if len(items) > 1 or TASK in items:
            lengths.append(count)
            count = len(items) - BLOCK_TEXT if TASK not in items else 0
        else:
            count += 1
    assert max(lengths) <= BLOCK_SPEECH + 1


def test_it_parks_between_blocks_until_five_ids_are_there() -> None:
    model = CosyVoiceChecksumTalker()
    row = model.new_sequence(request(), 3)
    model.next_input(row)
    row.inputs += row.prefix
    row.text.ids = [1, 2, 3, 4]
    assert isinstance(model.next_input(row), AwaitText)
    row.text.ids += [5]
    assert model.next_input(row) == TalkerInputs([TEXT_BASE + i for i in range(1, 6)])


def test_first_audio_needs_28_tokens_and_leaves_a_tail() -> None:
    stage = FakeSlicedDecodeStage(1)
    slot = stage.reserve()
    assert slot is not None
    for token in range(HOP_TOKENS + LOOK_AHEAD_TOKENS - 1):
        stage.feed(slot, [token])
        assert not stage.busy
    stage.feed(slot, [99])
    rounds = [stage.step({slot: 0.0}) for _ in range(SLICES)]
    assert [len(chunks) for chunks in rounds] == [0] * (SLICES - 1) + [1]
    assert len(rounds[-1][0].pcm) == (HOP_TOKENS - TAIL_TOKENS) * TOKEN_SAMPLES
    assert stage.num_pending(slot) == LOOK_AHEAD_TOKENS + TAIL_TOKENS
    assert not stage.busy
    stage.finalize(slot)
    assert stage.busy
    last = [chunk for _ in range(SLICES) for chunk in stage.step({slot: 0.0})]
    assert len(last[0].pcm) == (LOOK_AHEAD_TOKENS + TAIL_TOKENS) * TOKEN_SAMPLES
    assert stage.num_pending(slot) == 0


def test_hops_sound_as_decoded_in_one_piece() -> None:
    codes = reference_codes(CosyVoiceChecksumTalker(), request(), TEXT, lambda n: 200)[0]
    assert len(codes) > 2 * HOP_TOKENS
    config = EngineConfig(max_frames=200, num_blocks=40)
    shape = CosyVoiceChecksumFamily()
    bench = EngineHarness(Engine(shape.make_model(), shape.make_stage(config), config))
    epoch = bench.submit(text=TEXT, text_closed=True, sampling=SamplingParams(seed=3))
    bench.run()
    np.testing.assert_array_equal(bench.heard[epoch].pcm, shape.pcm(codes))
    assert len(bench.heard[epoch].chunks) >= 3


def test_pages_grow_with_the_speech_and_all_come_back() -> None:
    stage = FakeSlicedDecodeStage(2)
    slot = stage.reserve()
    assert slot is not None
    for token in range(90):
        stage.feed(slot, [token])
    while stage.busy:
        stage.step({slot: 0.0})
    assert len(stage.flows[slot].pages) == 4
    stage.release(slot)
    stage.release_quarantined()
    assert stage.pages.num_free == stage.pages.num_blocks
    assert stage.slots.num_free == stage.slots.num_slots
