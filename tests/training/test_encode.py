"""Speech in memory and its codes: growth in any cut gives the same, offsets only move what is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.checkpoints import write_tokenizer
from training.codec import Codec
from training.encode import EncodedSpeech, _batches, offset_pieces
from training.flite import Speech as Spoken
from training.settings import LABELS_PER_FRAME, TOY
from training.shards import ShardWriter
from training.spectral import to_24_khz
from training.speech import LABEL_SAMPLES, Speech
from training.tokenizer import load_tokenizer

NUM_SAMPLES = (1_700, 4_000, 2_560, 3_333)


def spoken(number: int) -> Spoken:
    num_samples = NUM_SAMPLES[number]
    pcm = np.random.default_rng(number).integers(-9_000, 9_000, num_samples).astype(np.int16)
    half = num_samples // 2
    return Spoken(pcm, np.array([0, 5 + number], np.uint8), np.array([half, num_samples], np.int32))


def write(writer: ShardWriter, numbers: range) -> None:
    for number in numbers:
        writer.append(number, number % 2, f"text number {number}", spoken(number))


@pytest.mark.parametrize("cut", [0, 1, 3, 4])
def test_growing_in_any_cut_gives_the_same(tmp_path: Path, cut: int) -> None:
    with ShardWriter(tmp_path, 0) as writer:
        write(writer, range(cut))
        speech = Speech(tmp_path, 0.01, "cpu")
        write(writer, range(cut, 4))
        assert speech.grow() == 4 - cut
    whole = Speech(tmp_path, 0.01, "cpu")
    assert (
        (speech.texts, speech.voices)
        == (whole.texts, whole.voices)
        == ([f"text number {i}" for i in range(4)], [0, 1] * 2)
    )
    assert (speech.label_starts, speech.label_counts) == (whole.label_starts, whole.label_counts)
    assert torch.equal(speech.audio, whole.audio)
    assert torch.equal(speech.phones, whole.phones)
    for number, start in enumerate(whole.label_starts):
        at = start * LABEL_SAMPLES
        assert torch.equal(whole.audio[at : at + NUM_SAMPLES[number]], torch.from_numpy(spoken(number).pcm))


def test_a_full_buffer_takes_no_more(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, 0) as writer:
        write(writer, range(4))
    assert len(Speech(tmp_path, 2 / 3600, "cpu").texts) == 4
    assert len(Speech(tmp_path, 0.4 / 3600, "cpu").texts) == 2


@pytest.fixture
def speech(tmp_path: Path) -> Speech:
    with ShardWriter(tmp_path, 0) as writer:
        write(writer, range(4))
    return Speech(tmp_path, 0.01, "cpu")


@pytest.mark.parametrize("offset", [0, 3, 7])
def test_an_offset_puts_silence_in_front(speech: Speech, offset: int) -> None:
    start, count = torch.tensor(speech.label_starts[1:2]), torch.tensor(speech.label_counts[1:2])
    audio, labels = offset_pieces(speech, start, count, torch.tensor([offset]), 5)
    said = np.zeros(5 * LABELS_PER_FRAME * LABEL_SAMPLES, np.float32)
    said[offset * LABEL_SAMPLES :][: NUM_SAMPLES[1]] = spoken(1).pcm / 32_768
    torch.testing.assert_close(audio, to_24_khz(torch.from_numpy(said)[None]))
    first_sound = offset + -(-(NUM_SAMPLES[1] // 2) // LABEL_SAMPLES)
    assert (labels[0, : first_sound - 1] == 0).all()
    assert (labels[0, first_sound : offset + NUM_SAMPLES[1] // LABEL_SAMPLES] == 6).all()


def test_items_point_at_their_own_codes_text_and_voice(speech: Speech, tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    encoded = EncodedSpeech(speech, Codec(TOY.sizes), max_offset_labels=8)
    for _ in range(2):
        encoded.add(0, 4, tokenizer)
    assert encoded.items.shape == (8, 5)
    assert len(encoded.codes) == len(encoded.labels) == encoded.items[:, 1].sum()
    found = []
    for _, num_frames, first_text, num_text, voice in encoded.items.tolist():
        ids = encoded.text[first_text : first_text + num_text].tolist()
        number = next(i for i in range(4) if tokenizer.encode(f"text number {i}").ids == ids)
        assert voice == number % 2
        assert 0 <= num_frames * LABELS_PER_FRAME * LABEL_SAMPLES - NUM_SAMPLES[number] < 2 * 1_280
        found.append(number)
    assert sorted(found) == [0, 0, 1, 1, 2, 2, 3, 3]


@settings(max_examples=30)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 120))
def test_batches_hold_every_item_once_within_the_limit(lengths: list[int], limit: int) -> None:
    frames = torch.tensor(lengths)
    found = list(_batches(frames.argsort(), frames, limit))
    assert sorted(torch.cat(found).tolist()) == list(range(len(lengths)))
    assert all(len(b) == 1 or len(b) * int(frames[b].max()) <= limit for b in found)
