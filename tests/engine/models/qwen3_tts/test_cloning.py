"""Rows of cloned voices: by the speaker's vector, and in context, where text waits for the recording (spec 3.5)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import ClonedVoice, SamplingParams, SpeechRequest, TextLayout
from engine.memory import lru_cache
from engine.memory.lru_cache import voice_key
from engine.models.base import AwaitText, TalkerInputs, TokenQueue
from engine.models.qwen3_tts.load import load_model
from engine.models.qwen3_tts.model import Qwen3TTS
from engine.models.qwen3_tts.prompt import PromptPosition, QwenSequence
from engine.models.qwen3_tts.voice import QwenVoiceCache
from tests.fakes.checkpoints import TINY, write_checkpoint

BOOKS, WIDTH = TINY["books"], TINY["talker"]["hidden"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Qwen3TTS:
    folder: Path = write_checkpoint(tmp_path_factory.mktemp("base"), TINY, task="base")
    return load_model(folder, torch.float32, torch.device("cpu"), max_voices=2)


def voice(num_frames: int = 0, transcript: str = "", number: int = 0) -> ClonedVoice:
    codes = np.arange(num_frames * BOOKS, dtype=np.int16) % TINY["codes"]
    embedding = np.full(WIDTH, 0.1 * number, np.float32)
    return ClonedVoice(embedding=embedding.tobytes(), codes=codes.tobytes(), num_codebooks=BOOKS, transcript=transcript)


def new_row(model: Qwen3TTS, cloned: ClonedVoice, layout: TextLayout, **fields: object) -> QwenSequence:
    return model.new_sequence(SpeechRequest(request_id="r", voice=cloned, layout=layout, **fields), 0)  # type: ignore[arg-type]


def fetch(model: Qwen3TTS, row: QwenSequence) -> TalkerInputs | None:
    found = model.next_input(row)
    if isinstance(found, AwaitText):
        return None
    row.inputs += found.inputs
    return found


def spoken_rows(model: Qwen3TTS, row: QwenSequence, text: list[int], num_frames: int) -> list[PromptPosition]:
    """All inputs of a row whose text comes one id at a time and then closes."""
    rows: list[PromptPosition] = []
    waiting = [*text]
    while len(row.codes) < num_frames:
        found = fetch(model, row)
        if found is not None:
            rows += found.inputs
            row.sampled_codes.extend([0] * BOOKS * found.sample)
        elif waiting:
            row.text.ids.append(waiting.pop(0))
        else:
            row.text.closed = True
    return rows


def expected_rows(
    model: Qwen3TTS, cloned: ClonedVoice, layout: TextLayout, text: list[int], num_frames: int
) -> list[PromptPosition]:
    """The rules of the specification, written out for a text that is known as a whole."""
    ids, control = model.config.text, model.config.talker.control
    transcript = model.tokenizer.encode(cloned.transcript)
    num_codes = len(cloned.codes) // (2 * BOOKS)
    track = [*transcript, *text, ids.tts_eos]
    codes = [dict(codec=control.bos), *(dict(reference=i) for i in range(num_codes))]
    rows = model.prompts.prefix(None, "auto", (), cloned=True)
    if layout is TextLayout.FULL:
        rows += [PromptPosition(i, control.pad) for i in track] + [
            PromptPosition(ids.tts_pad, **code) for code in codes
        ]
        track = []
    else:
        padded = track + [ids.tts_pad] * len(codes)
        rows += [PromptPosition(i, **code) for i, code in zip(padded, codes, strict=False)]
        track = track[len(codes) :]
    return rows + [
        PromptPosition(i, frame=f) for f, i in zip(range(num_frames - 1), track + [ids.tts_pad] * 99, strict=False)
    ]


@given(
    num_codes=st.integers(1, 12),
    transcript=st.sampled_from(["a", "the dog", "Hello, world! How are you today?"]),
    text=st.lists(st.integers(5, 50), min_size=1, max_size=12),
    layout=st.sampled_from([TextLayout.STREAMING, TextLayout.FULL]),
)
@settings(max_examples=60, deadline=None)
def test_in_context_rows_are_exact_with_late_text(
    model: Qwen3TTS, num_codes: int, transcript: str, text: list[int], layout: TextLayout
) -> None:
    cloned = voice(num_codes, transcript)
    row = new_row(model, cloned, layout)
    assert spoken_rows(model, row, text, 6) == expected_rows(model, cloned, layout, text, 6)


@given(num_codes=st.integers(1, 30), num_words=st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_live_text_waits_while_recording_exceeds_transcript(model: Qwen3TTS, num_codes: int, num_words: int) -> None:
    cloned = voice(num_codes, "dog " * num_words)
    needed = max(1, num_codes + 1 - len(model.tokenizer.encode(cloned.transcript.strip())))
    row = new_row(model, cloned, TextLayout.STREAMING)
    fetch(model, row)
    assert row.num_prompt_tokens == needed
    for number in range(needed):
        assert fetch(model, row) is None, f"sampled with {number} of {needed} tokens"
        row.text.ids.append(7)
    found = fetch(model, row)
    assert found is not None
    assert found.sample


@pytest.mark.parametrize("layout", [TextLayout.STREAMING, TextLayout.FULL])
def test_rows_without_text_form_one_prefix(model: Qwen3TTS, layout: TextLayout) -> None:
    cloned = voice(9, "the dog")
    transcript = model.tokenizer.encode("the dog")
    row = new_row(model, cloned, layout)
    first = fetch(model, row)
    assert first is not None
    assert (len(first.inputs), first.sample) == (row.num_prefix, False)
    assert [item.text for item in first.inputs[-len(transcript) :]] == transcript
    row.text.ids, row.text.closed = [5, 6], True
    prompt = fetch(model, row)
    assert prompt is not None
    ends = 2
    assert row.num_prefix + len(prompt.inputs) <= row.num_prefix + row.num_reserved + len(row.text.ids) + ends


def test_by_its_vector_alone_a_voice_waits_for_one_token(model: Qwen3TTS) -> None:
    row = new_row(model, voice(), TextLayout.STREAMING)
    assert (row.num_prompt_tokens, row.reference, row.num_reserved) == (1, None, 0)
    rows = spoken_rows(model, row, [5], 2)
    assert [item.speaker for item in rows].count(True) == 1
    assert rows[-3].codec == model.config.talker.control.pad
    assert rows[-2] == PromptPosition(5, model.config.talker.control.bos)


def test_cloned_voices_stream_as_in_the_official_code(model: Qwen3TTS) -> None:
    row = new_row(model, voice(), TextLayout.AUTO, text="hi", text_closed=True)
    assert row.layout is TextLayout.STREAMING


def test_voices_are_distinguished_by_content(model: Qwen3TTS) -> None:
    voices = [voice(), voice(number=1), voice(3, "a"), voice(4, "a"), voice(3, "b")]
    keys = [model.prefix_key(new_row(model, one, TextLayout.STREAMING)) for one in voices]
    assert len(set(keys)) == len(voices)
    assert voice_key(voice(transcript="ignored without codes")) == voice_key(voice())


def test_the_shelf_keeps_the_voices_that_were_used_last() -> None:
    encoded: list[str] = []

    def encode(text: str) -> list[int]:
        encoded.append(text)
        return [1]

    shelf = QwenVoiceCache(BOOKS, torch.bfloat16, torch.device("cpu"), encode, max_voices=2)
    one, two, three = (voice(2, "t", number) for number in range(3))
    assert shelf.get(one).embedding.dtype is torch.bfloat16
    shelf.get(two)
    shelf.get(one)
    shelf.get(three)
    shelf.get(one)
    assert (len(shelf), len(encoded)) == (2, 3)
    shelf.get(two)
    assert len(encoded) == 4


def test_a_voice_before_is_not_digested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    digested: list[ClonedVoice] = []

    def key_noted(cloned: ClonedVoice) -> bytes:
        digested.append(cloned)
        return voice_key(cloned)

    monkeypatch.setattr(lru_cache, "voice_key", key_noted)
    shelf = QwenVoiceCache(BOOKS, torch.float32, torch.device("cpu"), lambda text: [1], max_voices=1)
    for number in (0, 0, 1, 1, 0):
        shelf.get(voice(2, "t", number))
    assert digested == [voice(2, "t", number) for number in (0, 1, 0)], "no more of them are kept than voices"


@given(
    codes=st.lists(st.integers(0, 5), min_size=1, max_size=30),
    window=st.none() | st.integers(1, 8),
)
def test_the_penalty_looks_back_on_the_window_alone(codes: list[int], window: int | None) -> None:
    unseen = torch.zeros(8, dtype=torch.bool)
    row = QwenSequence(text=TokenQueue(), num_codes=2, seen=unseen, repetition_window=window)
    for code in codes:
        row.record_frame([code, 0])
    remembered = codes if window is None else codes[-window:]
    assert row.seen.nonzero().flatten().tolist() == sorted(set(remembered))
    assert not unseen.any()  # other sequences have it, too


def test_the_mask_of_other_sequences_stays_whoever_recorded_the_first_frame() -> None:
    unseen = torch.zeros(8, dtype=torch.bool)
    row = QwenSequence(text=TokenQueue(), num_codes=2, seen=unseen)
    row.codes.add_bytes(np.array([3, 0], np.int16).tobytes())
    row.record_frame([5, 0])
    assert not unseen.any()


@pytest.mark.parametrize(
    ("sampling", "greedy"),
    [
        (SamplingParams(do_sample=False, temperature=1.0), (True, False)),
        (SamplingParams(predictor_do_sample=False), (False, True)),
        (SamplingParams(do_sample=True, predictor_do_sample=True), (False, False)),
        (SamplingParams(temperature=0.0), (True, False)),
    ],
)
def test_either_kind_of_codes_can_be_taken_greedily(
    model: Qwen3TTS, sampling: SamplingParams, greedy: tuple[bool, bool]
) -> None:
    row = new_row(model, voice(), TextLayout.STREAMING, sampling=sampling)
    assert (row.code0.temperature == 0, row.residual.temperature == 0) == greedy
