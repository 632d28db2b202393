"""Words stand in the client's text as it is, in order, each once, and know what is spoken for them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.alignment.word_spans import WordSpan, WordSpanTracker, last_word_boundary
from sessions.alignment.word_times import to_word_time
from sessions.text.normalizer import IncrementalNormalizer
from sessions.text.spans import SpannedText
from tests.sessions.text.texts import cut, places


def words_of(raw: str, *texts: SpannedText) -> list[WordSpan]:
    words, found = WordSpanTracker(0, lambda: raw), []
    for text in texts:
        words.add(text)
    while word := words.next_word(complete=True):
        found.append(word)
        words.consume(word)
    return found


def normalized(raw: str) -> list[WordSpan]:
    normalizer = IncrementalNormalizer()
    return words_of(raw, normalizer.push(raw), normalizer.finish())


def said(words: list[WordSpan]) -> list[tuple[str, str]]:
    return [(word.text, word.spoken) for word in words]


def test_words_keep_their_marks():
    raw = 'Well, "this" (is it) - no?'
    words = words_of(raw, SpannedText.from_raw(raw, 0))
    assert said(words) == [(word, word) for word in ["Well,", '"this"', "(is", "it)", "no?"]]


def test_what_was_written_out_belongs_to_the_word_it_stands_for():
    assert said(normalized("It cost $3.50 **today**, ok 😀 ?")) == [
        ("It", "It"),
        ("cost", "cost"),
        ("$3.50", "three dollars and fifty cents"),
        ("**today**,", "today,"),
        ("ok", "okay"),
    ]


def test_each_chinese_character_is_a_word_with_its_marks():
    raw = "「你好」,Bob 世界。"
    assert [word.text for word in words_of(raw, SpannedText.from_raw(raw, 0))] == ["「你", "好」,", "Bob", "世", "界。"]


@given(st.text("ab 1$.,\n好*", max_size=60), places)
def test_any_cut_of_the_text_gives_the_same_words(raw, at_places):
    pieces = cut(raw, at_places)
    normalizer, words, found, at = IncrementalNormalizer(), WordSpanTracker(0, lambda: raw[:at]), [], 0
    for piece in [*pieces, None]:
        at += len(piece or "")
        text = normalizer.finish() if piece is None else normalizer.push(piece)
        if text.text:
            words.add(text)
        while word := words.next_word(complete=piece is None):
            found.append(word)
            words.consume(word)
    assert found == normalized(raw)


@given(st.text("ab 1$.,\n好*", max_size=60))
def test_words_follow_each_other_and_cover_what_sounds(raw):
    words = normalized(raw)
    ends = [0, *(word.raw_end for word in words)]
    assert all(word.raw_start >= end for word, end in zip(words, ends, strict=False))
    assert all(raw[word.raw_start : word.raw_end] == word.text and not re.search(r"\s", word.text) for word in words)


def test_times_of_a_word_and_its_characters():
    raw = "a $5 x"
    words = words_of(
        raw, SpannedText.from_raw("a ", 0), SpannedText.from_raw("five dollars", 2, 4), SpannedText.from_raw(" x", 4)
    )
    bounds = [100 * number for number in range(len("a five dollars x") + 1)]
    word = to_word_time(words[1], bounds, segment=3, start_sample=1_000, sample_rate=1_000, floor_ms=0)
    assert (word.text, word.raw_start, word.raw_end, word.spoken) == ("$5", 2, 4, "five dollars")
    assert (word.segment, word.segment_start_ms, word.start_ms, word.end_ms) == (3, 1_000, 1_200, 2_400)
    assert word.char_ends_ms == (1_800, 2_400)
    assert [(char.character, char.start_ms) for char in word.characters()] == [("$", 1_200), ("5", 1_800)]
    assert word.spoken_ends_ms == tuple(range(1_300, 2_401, 100))


def test_marks_take_no_time():
    raw = '"Hi!" '
    word = to_word_time(words_of(raw, SpannedText.from_raw(raw, 0))[0], [0, 10, 20, 30, 90, 95, 99], 0, 0, 1_000, 0)
    assert [(char.start_ms, char.end_ms) for char in word.characters()] == [
        (10, 10),
        (10, 20),
        (20, 30),
        (30, 30),
        (30, 30),
    ]


@pytest.mark.parametrize(("position", "end"), [(0, 0), (2.9, 0), (3, 3), (6.9, 3), (7, 7), (99, 7)])
def test_word_cut(position, end):
    assert last_word_boundary("one six", position) == end


def word_cut_word_by_word(text: str, position: float) -> int:
    end = 0
    for word in re.finditer(r"[^\s\w]*[好][^\s\w]*|[^\s好]+", text):
        if word.end() > position:
            break
        end = word.end()
    return end


@given(st.text("ab \n\x1f\xa0\u3000é好.", max_size=40), st.floats(0, 50))
def test_the_cut_is_where_reading_word_by_word_finds_it(text, position):
    assert last_word_boundary(text, position) == word_cut_word_by_word(text, position)


def test_long_run_without_white_space_is_several_words():
    """What one event does of it stays bounded; signs without a sound are no words."""
    raw = "a" + "(" * 5_000 + " " + "b" * 500
    words = WordSpanTracker(0, lambda: raw)
    words.add(SpannedText.from_raw(raw, 0))
    found = []
    while word := words.next_word(complete=True):
        words.consume(word)
        found.append((len(word.text), word.text[:1]))
    assert found == [(200, "a"), (200, "b"), (200, "b"), (100, "b")]
