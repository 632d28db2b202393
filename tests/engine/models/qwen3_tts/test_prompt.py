"""Prompt rows, and the log of a row's frames."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidRequest, UnknownLanguage, UnknownVoice
from engine.models.qwen3_tts.config import ControlIds, Qwen3TTSConfig
from engine.models.qwen3_tts.prompt import FrameLog, PromptBuilder, PromptPosition
from engine.text.tokenizer_files import SpecialIds

LANGUAGES = {"english": 2050, "chinese": 2055, "sichuan_dialect": 2062, "beijing_dialect": 2074}
SPEAKERS = {"ryan": 3061, "eric": 2875, "dylan": 2878}
DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
ROLE = [PromptPosition(151644), PromptPosition(77091), PromptPosition(198)]


@pytest.fixture
def prompts(config: Qwen3TTSConfig) -> PromptBuilder:
    talker = replace(
        config.talker,
        control=ControlIds(pad=2148, bos=2149, eos=2150, think=2154, nothink=2155, think_bos=2156, think_eos=2157),
        languages=LANGUAGES,
        speakers=SPEAKERS,
        dialects=DIALECTS,
    )
    text = SpecialIds(im_start=151644, im_end=151645, assistant=77091, tts_pad=151671, tts_bos=151672, tts_eos=151673)
    return PromptBuilder(replace(config, talker=talker, text=text), [151644, 77091, 198])


def tags(*ids: int) -> list[PromptPosition]:
    return [PromptPosition(151671, i) for i in ids]


def test_the_worked_example(prompts: PromptBuilder) -> None:
    assert prompts.prefix("ryan", "English") == [
        *ROLE,
        *tags(2154, 2156, 2050, 2157, 3061),
        PromptPosition(151672, 2148),
    ]


def test_auto_has_no_language_row(prompts: PromptBuilder) -> None:
    assert prompts.prefix("ryan", "auto") == [*ROLE, *tags(2155, 2156, 2157, 3061), PromptPosition(151672, 2148)]


def test_a_designed_voice_has_no_speaker_row(prompts: PromptBuilder) -> None:
    assert prompts.prefix(None, "auto") == [*ROLE, *tags(2155, 2156, 2157), PromptPosition(151672, 2148)]


def test_an_instruction_stands_in_front_of_everything(prompts: PromptBuilder) -> None:
    turn = [151644, 872, 198, 9, 9, 151645, 198]
    assert prompts.prefix("ryan", "auto", turn)[:10] == [*(PromptPosition(i) for i in turn), *ROLE]


@pytest.mark.parametrize(
    ("speaker", "language", "tag"),
    [
        ("dylan", "auto", 2074),
        ("dylan", "Chinese", 2074),
        ("dylan", "english", 2050),
        ("eric", "AUTO", 2062),
        ("ryan", "chinese", 2055),
        ("ryan", "auto", None),
        (None, "chinese", 2055),
    ],
)
def test_a_dialect_overrides_auto_and_chinese_alone(
    prompts: PromptBuilder, speaker: str | None, language: str, tag: int | None
) -> None:
    assert prompts.language_tag(speaker, language) == tag
    ids = [row.codec for row in prompts.prefix(speaker, language)]
    assert (2154 in ids) == (tag is not None)
    assert (2155 in ids) == (tag is None)


def test_unknown_language_or_voice_error_lists_known_ones(prompts: PromptBuilder) -> None:
    with pytest.raises(UnknownLanguage, match="language is 'Klingon'; this checkpoint knows auto, beijing") as caught:
        prompts.prefix("ryan", "Klingon")
    assert caught.value.param == "language"
    with pytest.raises(UnknownVoice, match="voice is 'bob'; this checkpoint has dylan, eric, ryan") as caught_voice:
        prompts.prefix("bob", "auto")
    assert caught_voice.value.param == "voice"


def test_the_streaming_tail_is_one_row(prompts: PromptBuilder) -> None:
    assert prompts.streaming_tail(7) == [PromptPosition(7, 2149)]


def test_full_tail_holds_text_its_end_and_speech_start(prompts: PromptBuilder) -> None:
    assert prompts.full_tail([7, 8, 9]) == [
        PromptPosition(7, 2148),
        PromptPosition(8, 2148),
        PromptPosition(9, 2148),
        PromptPosition(151673, 2148),
        PromptPosition(151671, 2149),
    ]


def test_a_prompt_without_text_is_refused(prompts: PromptBuilder) -> None:
    with pytest.raises(InvalidRequest, match="nothing that can be spoken"):
        prompts.full_tail([])


frames = st.lists(st.lists(st.integers(0, 3071), min_size=3, max_size=3), max_size=20)


@given(frames, st.slices(20))
def test_it_reads_like_a_list_of_frames(wanted: list[list[int]], part: slice) -> None:
    log = FrameLog(3)
    for number, frame in enumerate(wanted):
        if number % 2:
            log.append(frame)
        else:
            log.add_bytes(np.array(frame, np.int16).tobytes())
    assert [list(frame) for frame in log] == wanted
    assert [list(frame) for frame in log[part]] == wanted[part]
    assert len(log) == len(wanted)


@pytest.mark.parametrize("index", [2, -3])
def test_there_is_nothing_beyond_its_ends(index: int) -> None:
    log = FrameLog(2)
    log.append([1, 2])
    log.append([3, 4])
    assert list(log[-1]) == [3, 4]
    with pytest.raises(IndexError):
        log[index]
