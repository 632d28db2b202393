"""The ear hears the same however PCM is cut, as many steps as there are, at any level and rate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions.alignment.acoustic_model import STEP_MS, AcousticModel
from sessions.alignment.weights import load_weights
from tests.sessions.audio.signals import speech_like


def heard(pcm: np.ndarray, rate: int, cuts: list[int]) -> np.ndarray:
    ear, at, blocks = AcousticModel(load_weights().acoustic, rate), 0, []
    for size in [*cuts, len(pcm)]:
        blocks += ear.push(pcm[at : at + size])
        at += size
    return np.concatenate([np.zeros((0, 41), np.float32), *blocks, *ear.finish()])


@given(st.lists(st.integers(0, 5_000), max_size=8), st.integers(0, 30_000), st.sampled_from([8_000, 16_000, 24_000]))
@settings(deadline=None, max_examples=30)
def test_any_cut_sounds_the_same_to_the_bit(cuts, num_samples, rate):
    pcm = speech_like(30_000, 24_000, 1)[:num_samples]
    whole = heard(pcm, rate, [])
    assert np.array_equal(heard(pcm, rate, cuts), whole)
    assert len(whole) == -(-num_samples * 1000 // (rate * STEP_MS))


def test_the_level_of_a_voice_hardly_matters():
    pcm = speech_like(30_000, 24_000, 1)
    loud, soft = (heard(pcm * gain, 24_000, [])[20:] for gain in (1.0, 0.25))
    assert np.corrcoef(loud.ravel(), soft.ravel())[0, 1] > 0.9


def test_silence_is_heard_as_a_pause():
    scores = heard(np.zeros(24_000, np.float32), 24_000, [])
    assert (scores.argmax(1) == 0).mean() > 0.9
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("value", [1.0, -1.0])
def test_what_is_no_speech_gives_finite_scores(value):
    assert np.isfinite(heard(np.full(5_000, value, np.float32), 24_000, [])).all()
