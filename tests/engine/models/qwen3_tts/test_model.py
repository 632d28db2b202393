"""What a row is fed and how its codes are drawn, row by row against the spec (3.6, 3.7, 4.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.api import SamplingParams, SpeechRequest, TextLayout
from engine.errors import UnknownLanguage, UnknownVoice
from engine.layers.transformer import CausalContext
from engine.models.base import AwaitText, FailedOutcome, FrameOutcome, Outcome, TalkerInputs
from engine.models.qwen3_tts.model import Qwen3TTS
from engine.models.qwen3_tts.prompt import PromptPosition, QwenSequence
from engine.models.qwen3_tts.talker import Talker

SEED = 11
LoadModel = Callable[..., Qwen3TTS]


@pytest.fixture
def model(load_model: LoadModel) -> Qwen3TTS:
    return load_model()


def new_row(model: Qwen3TTS, layout: TextLayout = TextLayout.STREAMING, **fields: Any) -> QwenSequence:
    return model.new_sequence(SpeechRequest(request_id="r", layout=layout, **fields), SEED)


def fetch(model: Qwen3TTS, row: QwenSequence) -> list[PromptPosition] | None:
    """The next inputs, taken as computed; a sampled one is answered with a frame. None when the row parks."""
    found = model.next_input(row)
    if isinstance(found, AwaitText):
        return None
    row.inputs += found.inputs
    if found.sample:
        row.codes.append([len(row.codes)] * 4)
    return list(found.inputs)


def fetch_all(model: Qwen3TTS, row: QwenSequence, num_frames: int = 99) -> list[PromptPosition]:
    rows: list[PromptPosition] = []
    while len(row.codes) < num_frames and (found := fetch(model, row)) is not None:
        rows += found
    return rows


# -- the text track ----------------------------------------------------------------------------------------------


def test_streaming_layout_feeds_text_then_end_then_padding(model: Qwen3TTS) -> None:
    row, ids, control = new_row(model), model.config.text, model.config.talker.control
    row.text.ids, row.text.closed = [5, 6, 7], True
    prefix = model.prompts.prefix("ada", "auto")
    assert fetch_all(model, row, num_frames=6) == [
        *prefix,
        PromptPosition(5, control.bos),
        PromptPosition(6, frame=0),
        PromptPosition(7, frame=1),
        PromptPosition(ids.tts_eos, frame=2),
        PromptPosition(ids.tts_pad, frame=3),
        PromptPosition(ids.tts_pad, frame=4),
    ]


def test_full_layout_feeds_text_in_the_prompt_then_padding(model: Qwen3TTS) -> None:
    row, ids = new_row(model, TextLayout.FULL), model.config.text
    row.text.ids, row.text.closed = [5, 6, 7], True
    prefix, tail = model.prompts.prefix("ada", "auto"), model.prompts.full_tail([5, 6, 7])
    expected = [*prefix, *tail, PromptPosition(ids.tts_pad, frame=0), PromptPosition(ids.tts_pad, frame=1)]
    assert fetch_all(model, row, num_frames=3) == expected


def test_full_layout_waits_for_the_close_of_the_text(model: Qwen3TTS) -> None:
    row = new_row(model, TextLayout.FULL)
    fetch(model, row)
    row.text.ids = [5, 6]
    assert fetch(model, row) is None
    row.text.closed = True
    assert fetch(model, row) == model.prompts.full_tail([5, 6])


def test_auto_is_full_when_the_text_is_closed_at_submit(model: Qwen3TTS) -> None:
    for closed, layout in ((True, TextLayout.FULL), (False, TextLayout.STREAMING)):
        row = new_row(model, TextLayout.AUTO, text="hi", text_closed=closed)
        assert row.layout is layout


def test_the_prefix_does_not_wait_for_text(model: Qwen3TTS) -> None:
    row = new_row(model)
    assert model.next_input(row) == TalkerInputs(row.prefix, sample=False)
    assert row.num_prefix == len(row.prefix)


arrivals = st.lists(st.one_of(st.integers(0, 4), st.just("frame")), max_size=30)


@given(arrivals)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_text_is_fed_in_order_and_padding_after_its_end(model: Qwen3TTS, arrivals: list[int | str]) -> None:
    row, ids = new_row(model), model.config.text
    fed = fetch(model, row) or []
    for event in arrivals:
        if event == "frame":
            has_text = row.text.num_waiting > 0
            found = fetch(model, row)
            assert (found is not None) == has_text
            fed += found or []
        else:
            row.text.ids += [20 + len(row.text.ids)] * int(event)
    text = [item.text for item in fed[row.num_prefix :]]
    assert text == row.text.ids[: len(text)]
    assert ids.tts_pad not in text
    assert ids.tts_eos not in text
    row.text.ids += [9]
    row.text.closed = True
    text += [item.text for item in fetch_all(model, row, len(row.text.ids) + 3)]
    assert text == [*row.text.ids, ids.tts_eos, ids.tts_pad, ids.tts_pad]


def test_rows_of_one_voice_share_a_key_and_others_do_not(model: Qwen3TTS) -> None:
    keys = [
        model.prefix_key(new_row(model, voice=voice, language=language, instruct=instruct))
        for voice, language, instruct in [
            ("ada", "auto", ""),
            ("ADA", "Auto", ""),
            ("bo", "auto", ""),
            ("ada", "english", ""),
            ("ada", "auto", "whisper"),
        ]
    ]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4


def test_the_first_voice_speaks_when_none_is_named(model: Qwen3TTS) -> None:
    assert new_row(model).prefix == new_row(model, voice="ada").prefix


def test_unknown_voice_and_language_are_refused(model: Qwen3TTS) -> None:
    with pytest.raises(UnknownVoice):
        new_row(model, voice="nobody")
    with pytest.raises(UnknownLanguage):
        new_row(model, language="klingon")
    assert "beijing_dialect" not in model.languages


def test_inputs_are_sums_of_their_sides(load_model: LoadModel, any_folder: Any, plain_talker: Talker) -> None:
    model = load_model(any_folder)
    row = new_row(model)
    row.text.ids, row.text.closed = [5, 6, 7], True
    fetch_all(model, row, num_frames=5)

    def by_hand(item: PromptPosition) -> torch.Tensor:
        x = plain_talker.embed_text(torch.tensor(item.text))
        if item.codec >= 0:
            x = x + plain_talker.embed_codec(torch.tensor(item.codec))
        if item.frame >= 0:
            x = x + plain_talker.embed_frame(torch.tensor([row.codes[item.frame]]))[0]
        return x

    positions = torch.arange(len(row.inputs))[None]
    x = torch.stack([by_hand(item) for item in row.inputs])[None]
    expected = plain_talker(x, positions, CausalContext())
    found = model.forward([row], [row.inputs], positions, CausalContext())
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


# -- code 0 ------------------------------------------------------------------------------------------------------


def set_logits(model: Qwen3TTS, logits: dict[int, float]) -> None:
    """Let the head answer ``sample`` below with these logits, and -1 for ids that are not named."""
    weight = model.talker.codec_head.weight
    weight.zero_()
    weight[:, 0] = -1.0
    for index, value in logits.items():
        weight[index, 0] = value


def code0s(model: Qwen3TTS, row: QwenSequence, count: int = 1) -> list[int | str]:
    """Code 0 of the next frames, or what came instead."""
    found: list[int | str] = []
    for _ in range(count):
        outcome = sample(model, row)
        found.append(outcome.codes[0] if isinstance(outcome, FrameOutcome) else type(outcome).__name__)
    return found


def sample(model: Qwen3TTS, row: QwenSequence) -> Outcome:
    return model.sample([row], torch.eye(1, model.talker.codec_head.in_features))[0]


def speaking(model: Qwen3TTS, eos_fed: bool = True, **sampling: Any) -> QwenSequence:
    greedy = dict(temperature=0, predictor_temperature=0)
    row = new_row(model, sampling=SamplingParams(**(greedy | sampling)))
    row.eos_fed = eos_fed
    return row


def test_end_of_speech_is_banned_before_the_end_of_text(model: Qwen3TTS) -> None:
    eos = model.config.talker.control.eos
    set_logits(model, {eos: 9.0, 7: 5.0})
    row = speaking(model, eos_fed=False, min_new_tokens=0)
    assert code0s(model, row, 3) == [7, 7, 7]
    row.eos_fed = True
    assert code0s(model, row) == ["StopOutcome"]


def test_without_the_guard_the_model_may_end_when_it_likes(load_model: LoadModel) -> None:
    model = load_model(guard_eos=False)
    set_logits(model, {model.config.talker.control.eos: 9.0})
    assert code0s(model, speaking(model, eos_fed=False, min_new_tokens=0)) == ["StopOutcome"]


@pytest.mark.parametrize("minimum", [0, 2, 5])
def test_no_end_of_speech_before_the_minimum(model: Qwen3TTS, minimum: int) -> None:
    set_logits(model, {model.config.talker.control.eos: 9.0, 7: 5.0})
    row = speaking(model, min_new_tokens=minimum)
    assert code0s(model, row, minimum + 1) == [7] * minimum + ["StopOutcome"]


def test_control_ids_are_never_drawn_and_code_0_may_be(model: Qwen3TTS) -> None:
    num_codes = model.config.talker.num_codes
    controls = dict.fromkeys(range(num_codes, model.config.talker.vocab_size), 9.0)
    del controls[model.config.talker.control.eos]
    set_logits(model, {**controls, 0: 1.0})
    assert code0s(model, speaking(model), 2) == [0, 0]


def test_the_penalty_counts_an_id_once_however_often_it_came(model: Qwen3TTS) -> None:
    """3.0 / 1.5 = 2.0 stays above 1.9 for ever; were it applied again it would fall to 1.33."""
    set_logits(model, {7: 3.0, 8: 1.9})
    assert code0s(model, speaking(model, repetition_penalty=1.5), 4) == [7, 7, 7, 7]
    set_logits(model, {7: 3.0, 8: 2.1})
    assert code0s(model, speaking(model, repetition_penalty=1.5), 4) == [7, 8, 7, 7]


def test_the_penalty_comes_before_the_bans_and_is_off_at_one(model: Qwen3TTS) -> None:
    set_logits(model, {7: 3.0, 8: 2.9})
    assert code0s(model, speaking(model, repetition_penalty=1.0), 3) == [7, 7, 7]


def test_caller_overrides_defaults_of_the_checkpoint(model: Qwen3TTS) -> None:
    defaults = model.config.generation
    row = new_row(model)
    assert (row.code0.temperature, row.code0.top_k, row.penalty) == (
        defaults.temperature,
        defaults.top_k,
        defaults.repetition_penalty,
    )
    assert row.residual.top_k == defaults.predictor_top_k
    given = SamplingParams(
        temperature=0.5, top_k=0, top_p=0.9, repetition_penalty=1.0, predictor_temperature=0.0, predictor_top_p=0.2
    )
    row = new_row(model, sampling=given)
    assert (row.code0.temperature, row.code0.top_k, row.code0.top_p, row.penalty) == (0.5, 0, 0.9, 1.0)
    assert (row.residual.temperature, row.residual.top_p) == (0.0, 0.2)


# -- outcomes ----------------------------------------------------------------------------------------------------


def test_non_finite_row_fails_alone(model: Qwen3TTS) -> None:
    rows = [new_row(model) for _ in range(3)]
    hidden = torch.randn(3, model.talker.codec_head.in_features)
    expected = model.sample([new_row(model) for _ in range(3)], hidden)
    hidden[1, 4] = torch.nan
    found = model.sample(rows, hidden)
    assert isinstance(found[1], FailedOutcome)
    assert [found[0], found[2]] == [expected[0], expected[2]]
    assert not rows[1].codes


def test_padding_rows_are_not_answered(model: Qwen3TTS) -> None:
    hidden = torch.randn(5, model.talker.codec_head.in_features)
    assert len(model.sample([new_row(model), new_row(model)], hidden)) == 2


def test_seed_segment_and_frame_key_the_noise(model: Qwen3TTS) -> None:
    hidden = torch.randn(1, model.talker.codec_head.in_features)

    def said(seed: int = SEED, segment: int = 0, skipped: int = 0) -> Outcome:
        row = model.new_sequence(SpeechRequest(request_id="r", segment=segment), seed)
        row.sampled_codes.extend([0] * 4 * skipped)
        return model.sample([row], hidden)[0]

    assert said() == said()
    assert len({str(said()), str(said(seed=12)), str(said(segment=1)), str(said(skipped=1))}) == 4
