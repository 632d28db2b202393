from collections import Counter

import numpy as np
import pytest

pytest.importorskip("pocketsphinx", reason="the dependency group training is not installed")
pytest.importorskip("jiwer", reason="the dependency group training is not installed")

from training import flite
from training.asr_judge import (
    GROUP_SENTENCES,
    Recognizer,
    Score,
    Signal,
    Transcription,
    compare,
    group_of,
    hear_one,
    known_words,
    to_16k,
)
from training.held_out import read_sentences, words_of
from training.language_model import END, START, bigram_arpa

needs_flite = pytest.mark.skipif(not flite.available(), reason="flite (libflite1) is not installed")
SENTENCES = ["The old ferry sank in the harbor.", "Nobody answered the door.", "The door of the harbor office is old."]


def read_arpa(text: str) -> tuple[dict[str, tuple[float, float]], dict[tuple[str, str], float]]:
    singles, pairs = {}, {}
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) == 3 and fields[2][0] in "-0123456789":
            singles[fields[1]] = (10 ** float(fields[0]), 10 ** float(fields[2]))
        elif len(fields) == 3:
            pairs[fields[1], fields[2]] = 10 ** float(fields[0])
    return singles, pairs


def test_the_bigram_model_sums_to_one_after_every_word() -> None:
    singles, pairs = read_arpa(bigram_arpa([words_of(sentence) for sentence in SENTENCES]))
    followers = [word for word in singles if word != START]
    for left in singles.keys() - {END}:
        backoff = singles[left][1]
        assert sum(pairs.get((left, right), backoff * singles[right][0]) for right in followers) == pytest.approx(
            1, abs=0.01
        )


@pytest.mark.parametrize(
    ("said", "heard", "expected"),
    [
        ("One two three four.", "one two three four", (4, 0, 0, 0)),
        ("One two three four.", "one three four", (4, 1, 1, 0)),
        ("One two three four.", "one two two three four", (4, 1, 0, 1)),
        ("One two three four.", "one two six three four", (4, 1, 0, 0)),
        ("Twenty-one, don't!", "twenty one don't", (3, 0, 0, 0)),
        ("One two.", "", (2, 2, 2, 0)),
    ],
)
def test_what_was_missed_and_what_came_twice(said: str, heard: str, expected: tuple[int, ...]) -> None:
    found = compare(said, heard)
    assert (found.words, found.errors, found.missing, found.repeated) == expected


def test_rates_are_over_all_words() -> None:
    score = Score([Transcription(8, 2, 1, 0, ""), Transcription(2, 1, 0, 1, "")])
    assert (score.word_error_rate, score.missing_rate, score.repeated_rate) == (0.3, 0.1, 0.1)
    assert score.part([True, False]).word_error_rate == 0.25


def test_groups_part_the_sentences() -> None:
    sentences = read_sentences()
    groups = Counter(group_of(sentence, sentences) for sentence in sentences)
    assert [len(group) for group in groups] == list(groups.values()) == [GROUP_SENTENCES] * 5
    assert all(sentence in group_of(sentence, sentences) for sentence in sentences)


def test_the_recogniser_knows_every_word_of_the_benchmark() -> None:
    assert not {word for sentence in read_sentences() for word in words_of(sentence)} - known_words()


def test_any_rate_and_type_becomes_16_khz_float() -> None:
    tone = np.sin(2 * np.pi * 300 * np.arange(24_000) / 24_000)
    for source in (tone.astype(np.float32), np.round(tone * 32767).astype(np.int16)):
        heard = to_16k(source, 24_000)
        assert heard.dtype == np.float32
        np.testing.assert_allclose(
            heard[500:-500], np.sin(2 * np.pi * 300 * np.arange(16_000) / 16_000)[500:-500], atol=0.01
        )


def spoken(texts: list[str]) -> list[Signal]:
    return [to_16k(flite.synthesize(text, "rms").pcm, 16_000) for text in texts]


def score_of(texts: list[str], signals: list[Signal]) -> Score:
    return Score([hear_one(text, signal, SENTENCES) for text, signal in zip(texts, signals, strict=True)])


@needs_flite
def test_the_teacher_is_understood_and_shuffled_speech_is_not() -> None:
    signals = spoken(SENTENCES)
    assert score_of(SENTENCES, signals).word_error_rate == 0
    random = np.random.default_rng(0)
    shuffled = random.permutation(signals[1][: len(signals[1]) // 800 * 800].reshape(-1, 800)).reshape(-1)
    assert score_of(SENTENCES[1:2], [shuffled]).word_error_rate > 0.5


@needs_flite
def test_a_word_left_out_and_a_word_said_twice_are_found() -> None:
    left_out, twice = spoken(["The old ferry sank in harbor.", "Nobody answered answered the door."])
    score = score_of(SENTENCES[:2], [left_out, twice])
    assert (score.heard[0].missing, score.heard[1].repeated) == (1, 1)


@needs_flite
def test_words_are_heard_when_they_begin() -> None:
    """Half a second of silence in front moves all of them by as much."""
    recognizer, (signal,) = Recognizer(SENTENCES), spoken(SENTENCES[:1])
    heard = recognizer.hear_times(signal)
    later = recognizer.hear_times(np.concatenate([np.zeros(8_000, np.float32), signal]))
    assert [word for word, _ in heard] == words_of(SENTENCES[0]) == [word for word, _ in later]
    starts_s, later_s = (np.array([start_s for _, start_s in found]) for found in (heard, later))
    assert (np.diff(starts_s) > 0).all()
    assert 0 <= starts_s[0] < 0.3
    np.testing.assert_allclose(later_s - starts_s, 0.5, atol=0.05)
