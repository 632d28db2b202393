"""Voices as both stages read them: kept by what they hold, and cut for the flow so that sound can leave early."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.models.base import TokenQueue
from engine.models.cosyvoice3.prompt import CosySequence, RasParams
from engine.models.cosyvoice3.voice import (
    BLOCK_TOKENS,
    FLOW_REST,
    MIN_TRIMMED_TOKENS,
    CosyVoiceCache,
    trimmed_tokens,
    voice_key,
)
from tests.engine.models.cosyvoice3.voices import cloned


def shelf(max_voices: int = 2, trims: bool = True) -> CosyVoiceCache:
    return CosyVoiceCache(80, lambda text: [len(word) for word in text.split()], max_voices, trims)


def test_a_voice_is_made_ready_once_and_so_many_are_kept() -> None:
    kept = shelf()
    first = kept.get(cloned(seed=1))
    assert kept.get(cloned(seed=1)) is first
    for seed in (2, 1, 3):
        kept.get(cloned(seed=seed))
    assert len(kept) == 2
    assert kept.get(cloned(seed=1)) is first, "it was used after the one that had to go"
    assert shelf(max_voices=0).get(cloned()).tokens.shape == (40,)


def test_equal_keys_are_equal_voices() -> None:
    voice = cloned()
    others = [
        msgspec.structs.replace(voice, transcript="hello"),
        msgspec.structs.replace(voice, codes=voice.codes[::-1]),
        msgspec.structs.replace(voice, mel=voice.mel[::-1]),
        msgspec.structs.replace(voice, embedding=voice.embedding[::-1]),
    ]
    assert len({voice_key(one) for one in (voice, cloned(), *others)}) == 5
    assert shelf(trims=True).get(voice).key != shelf(trims=False).get(voice).key, "what the flow hears differs"


@given(num_tokens=st.integers(0, 800))
def test_a_trimmed_recording_leaves_the_first_block_ten_tokens(num_tokens: int) -> None:
    kept = trimmed_tokens(num_tokens)
    assert num_tokens - BLOCK_TOKENS < kept <= num_tokens
    if kept < num_tokens:
        assert kept % BLOCK_TOKENS == FLOW_REST
        assert kept >= MIN_TRIMMED_TOKENS


def test_the_beginning_is_cut_and_the_talker_is_told_all() -> None:
    voice = cloned(num_tokens=75)
    codes, mel = np.frombuffer(voice.codes, np.int16), np.frombuffer(voice.mel, np.float32).reshape(-1, 80)
    prompt = shelf().get(voice)
    assert prompt.speech_ids == tuple(codes.tolist())
    assert prompt.tokens.tolist() == codes[10:].tolist()
    assert torch.equal(prompt.mel, torch.from_numpy(mel[20:].copy()))
    whole = shelf(trims=False).get(voice)
    assert whole.tokens.tolist() == codes.tolist()
    assert len(whole.mel) == 150


@pytest.mark.parametrize("num_tokens", [0, 40])
def test_words_go_only_with_their_recording(num_tokens: int) -> None:
    assert shelf().get(cloned(num_tokens=num_tokens)).has_transcript is bool(num_tokens)


def test_an_instruction_in_front_of_a_transcript_is_no_part_of_what_was_said() -> None:
    """The official code wants one there, and who comes from it brings one along."""
    wrapped = msgspec.structs.replace(cloned(), transcript="You are a helpful assistant.<|endofprompt|>hello you")
    assert shelf().get(wrapped).transcript_ids == (5, 3)


def test_a_row_remembers_the_last_ids_in_order() -> None:
    row = CosySequence(text=TokenQueue(), ras=RasParams(window=3))
    for token in range(7):
        row.record_token(token)
    assert row.history == [4, 5, 6]
    assert row.draw_key.frame == 7
