"""The acoustic model and the aligner: words are found where they are spoken, however text and speech are cut."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions.alignment.acoustic_model import BLOCK_STEPS, STEP_MS, AcousticModel
from sessions.alignment.aligner import FINALIZE_DELAY_STEPS, Aligner, ForcedAligner
from sessions.alignment.uniform_aligner import UniformAligner
from sessions.alignment.weights import load_weights
from sessions.audio.resampler import Resampler
from tests.sessions.audio.signals import noise, pieces, speech_like
from tests.sessions.text.texts import cut, places
from tests.vectors import VECTORS


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


RATE = 16_000
SPOKEN = np.load(VECTORS / "alignment" / "sentence.npz")
TEXT = str(SPOKEN["text"])
PCM = SPOKEN["pcm"].astype(np.float32) / 32768
# A character is settled when so much more has been pushed.
LATEST_MS = FINALIZE_DELAY_STEPS * STEP_MS + 2 * BLOCK_STEPS * STEP_MS + 60


def aligned(texts: list[str], pcm: list[np.ndarray], rate: int = RATE) -> Aligner:
    aligner = ForcedAligner(rate)
    for text in texts:
        aligner.add_text(text)
    aligner.end_text()
    for piece in pcm:
        aligner.push(piece)
    aligner.finish()
    return aligner


@cache
def whole() -> list[int]:
    return aligned([TEXT], [PCM]).bounds


def word_bounds(bounds: list[int], rate: int = RATE) -> np.ndarray:
    """Start and end of each word, in ms."""
    return np.array([[bounds[start], bounds[end]] for start, end in SPOKEN["words"]]) * 1000 / rate


def test_words_are_found_where_they_are_spoken():
    errors_ms = np.abs(word_bounds(whole()) - SPOKEN["times_ms"])
    assert np.median(errors_ms) < 20
    assert errors_ms.max() < 100


@pytest.mark.parametrize("rate", [8_000, 22_050, 24_000, 48_000])
def test_at_any_rate(rate):
    resampler = Resampler(RATE, rate)
    pcm = np.concatenate([resampler.push(PCM), resampler.flush()])
    assert np.median(np.abs(word_bounds(aligned([TEXT], [pcm], rate).bounds, rate) - SPOKEN["times_ms"])) < 30


def test_noise_and_level_do_little_harm():
    hiss = noise(PCM.size) * 0.003
    assert np.median(np.abs(word_bounds(aligned([TEXT], [0.2 * PCM + hiss]).bounds) - SPOKEN["times_ms"])) < 30


@given(pieces(PCM), places)
@settings(deadline=None, max_examples=25)
def test_any_cut_of_speech_and_text_gives_the_same_times(speech, text_places):
    assert aligned(cut(TEXT, text_places), speech).bounds == whole()


def test_reported_words_stay_and_follow_speech_soon():
    aligner, told = ForcedAligner(RATE), []
    aligner.add_text(TEXT)
    aligner.end_text()
    for at in range(0, PCM.size, 160):
        aligner.push(PCM[at : at + 160])
        bounds, estimate = aligner.bounds, aligner.estimate()
        assert bounds[: len(told)] == told
        assert estimate[: len(bounds)] == bounds
        assert estimate == sorted(estimate)
        told = bounds
        late = [bound for bound in whole()[len(told) :] if bound < at - LATEST_MS * RATE // 1000]
        assert not late
    aligner.finish()
    assert aligner.bounds[: len(told)] == told
    assert len(aligner.bounds) == len(TEXT) + 1


def test_text_just_in_time_gives_nearly_the_same():
    aligner, words = ForcedAligner(RATE), SPOKEN["words"]
    cuts = [start for start, _ in words[1:]]
    texts = [TEXT[start:end] for start, end in zip([0, *cuts], [*cuts, len(TEXT)], strict=True)]
    due = [start_ms - 150 for start_ms, _ in SPOKEN["times_ms"]]
    for at in range(0, PCM.size, 320):
        while texts and due[-len(texts)] <= 1000 * at / RATE:
            aligner.add_text(texts.pop(0))
        aligner.push(PCM[at : at + 320])
    aligner.end_text()
    aligner.finish()
    assert np.median(np.abs(word_bounds(aligner.bounds) - SPOKEN["times_ms"])) < 30


@pytest.mark.parametrize("make", [ForcedAligner, UniformAligner])
@pytest.mark.parametrize(
    ("text", "num_samples"),
    [
        ("", 0),
        ("", 20_000),
        ("a word", 0),
        ("a word", 37),
        ("far more text than anybody can say in so short a time, " * 5, 4_000),
        ("short", 160_000),
        ("你好,世界。 12 😀 ñandú Straße", 40_000),
        ("x" * 300, 40_000),
        ("... --- ' ", 20_000),
    ],
)
def test_every_text_and_every_sound_gets_rising_times(make, text, num_samples):
    aligner = make(RATE)
    aligner.add_text(text)
    aligner.end_text()
    aligner.push(noise(num_samples) * 0.2)
    aligner.finish()
    bounds = aligner.bounds
    assert len(bounds) == len(text) + 1
    assert bounds == sorted(bounds)
    assert 0 <= bounds[0] <= bounds[-1] <= num_samples


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_what_is_no_sound_at_all_gives_rising_times_too(value):
    broken = PCM.copy()
    broken[10_000:12_000] = value
    with np.errstate(all="ignore"):
        bounds = aligned([TEXT], [broken]).bounds
    assert len(bounds) == len(TEXT) + 1
    assert bounds == sorted(bounds)
