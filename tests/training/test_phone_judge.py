from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training import flite
from training.checkpoints import save
from training.flite import PHONEME_IDS, PHONEMES, Word, spoken_words
from training.phoneme_judge import PhoneJudge, PhonemeTranscription, align, best_path, compare
from training.phoneme_recognizer import Listener, ListenerSettings, disguise, features

needs_flite = pytest.mark.skipif(not flite.available(), reason="flite (libflite1) is not installed")
PHONES = st.lists(st.integers(1, 5), max_size=5)
WORDS = [Word("old", (1, 2, 3)), Word("ferry", (4, 5, 6, 7)), Word("a", (8,)), Word("harbor", (9, 1, 4, 2, 7))]
SAID = [phone for word in WORDS for phone in word.phonemes]


def distance(said: list[int], heard: list[int]) -> int:
    """The slow, obvious edit distance."""
    if not said or not heard:
        return len(said) + len(heard)
    return min(
        distance(said[1:], heard[1:]) + (said[0] != heard[0]),
        distance(said[1:], heard) + 1,
        distance(said, heard[1:]) + 1,
    )


@given(PHONES, PHONES)
def test_alignment_is_whole_in_order_and_cheapest(said: list[int], heard: list[int]) -> None:
    pairs = align(said, heard)
    assert [i for i, _ in pairs if i is not None] == list(range(len(said)))
    assert [j for _, j in pairs if j is not None] == list(range(len(heard)))
    assert sum(i is None or j is None or said[i] != heard[j] for i, j in pairs) == distance(said, heard)


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        (SAID, PhonemeTranscription(13, 0, 4, 0, 0)),
        (SAID[:3] + SAID[7:], PhonemeTranscription(13, 4, 4, 1, 0)),
        (SAID[:3], PhonemeTranscription(13, 10, 4, 3, 0)),
        ([], PhonemeTranscription(13, 13, 4, 4, 0)),
        (SAID[:7] + SAID[3:], PhonemeTranscription(13, 4, 4, 0, 1)),
        (SAID[:5] + SAID[6:], PhonemeTranscription(13, 1, 4, 0, 0)),
        ([5, *SAID], PhonemeTranscription(13, 1, 4, 0, 0)),
    ],
)
def test_lost_and_repeated_words_are_counted(heard: list[int], expected: PhonemeTranscription) -> None:
    assert compare(WORDS, heard) == expected


def test_the_best_path_rides_over_slips_and_leaves_silence_out() -> None:
    frames = [0] * 3 + [7] * 6 + [9] + [7] * 4 + [0] * 2 + [8] * 5
    scores = np.full((len(frames), len(PHONEMES)), -4.0, np.float32)
    scores[np.arange(len(frames)), frames] = -0.1
    assert best_path(scores) == [7, 8]
    assert best_path(scores, change_cost=0.0) == [7, 9, 7, 8]


@needs_flite
def test_words_come_with_their_phonemes() -> None:
    words = spoken_words("Two o'clock.")
    assert [[PHONEMES[phone] for phone in word.phonemes] for word in words] == (
        [["t", "uw"], ["ax", "k", "l", "aa", "k"]]
    )


def test_a_disguise_keeps_labels_beside_their_sound() -> None:
    """A beep of one phoneme between silences: wherever the disguised sound is loud, the label says so."""
    torch.manual_seed(0)
    audio, phones = torch.zeros(2, 300 * 160), torch.zeros(2, 300, dtype=torch.long)
    audio[:, 100 * 160 : 200 * 160] = 0.3 * torch.sin(torch.arange(100 * 160) * 0.3)
    phones[:, 100:200] = PHONEME_IDS["aa"]
    settings = ListenerSettings(max_colour=0.0, min_snr_db=60.0, max_snr_db=60.0)
    for _ in range(5):
        mel, labels = disguise(audio, phones, settings)
        loudest = mel[:, :, : labels.shape[1] * 2].unflatten(2, (-1, 2)).amax((1, 3))
        sounding = loudest > loudest.mean(1, keepdim=True)
        assert (sounding == (labels > 0)).float().mean() > 0.95
        assert mel.shape[2] == 2 * labels.shape[1]


def test_the_listener_learns_two_sounds(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Listener(ListenerSettings(width=16, blocks=1))
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    time = torch.arange(60 * 160) / 16_000
    audio = torch.stack([torch.sin(2 * torch.pi * hertz * time) for hertz in (300.0, 2500.0)]) * 0.3
    audio = torch.cat([audio, audio.flip(0)], 1)
    labels = torch.tensor([[1] * 30 + [2] * 30, [2] * 30 + [1] * 30])
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(model(features(audio, torch.ones(2))), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.2


def test_a_judge_reads_the_weights_that_training_saves(tmp_path: Path) -> None:
    save(Listener(), tmp_path / "listener.safetensors")
    judge = PhoneJudge(tmp_path / "listener.safetensors")
    assert all(0 < phone < len(PHONEMES) for phone in judge.hear(np.zeros(8000, np.float32)))
