"""What was heard is a prefix of the client's own text, ends at a word, and grows with what was played."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.heard import MEMORY_CHARS, TYPICAL_S_PER_CHAR, SpeakingPace, SpokenSegment, SpokenText, word_cut
from sessions.text.spans import SpannedText

RATE = 24_000


def spoken(*segments: tuple[str, int], complete: bool = True) -> SpokenText:
    """Segments of (text, seconds), each spoken as written."""
    told, position, start = SpokenText(RATE), 0, 0
    for text, seconds in segments:
        told.write(text)
        segment = told.begin_segment(position)
        segment.add_text(SpannedText.of(text, position))
        position += len(text)
        segment.start_sample, segment.num_samples = start, seconds * RATE
        start += segment.num_samples
        segment.complete = complete
    return told


@given(st.lists(st.tuples(st.text(max_size=30), st.integers(0, 5)), max_size=4), st.floats(0, 30), st.booleans())
def test_heard_and_remaining_make_up_the_text_and_the_cut_is_no_word_s_middle(segments, played_s, complete):
    told = spoken(*segments, complete=complete)
    text = "".join(text for text, _ in segments)
    heard = told.heard(int(played_s * RATE))
    assert heard.text + heard.remaining == text
    assert heard.text == "" or not heard.text[-1].isspace()
    assert heard.remaining == "" or heard.text == "" or heard.remaining[0].isspace()


@given(st.lists(st.tuples(st.text("ab c", max_size=30), st.integers(0, 5)), max_size=4), st.lists(st.floats(0, 30)))
def test_more_played_is_never_less_heard(segments, moments):
    told = spoken(*segments)
    lengths = [len(told.heard(int(moment * RATE)).text) for moment in sorted(moments)]
    assert lengths == sorted(lengths)


def test_half_of_the_audio_is_half_of_the_words():
    told = spoken(("one two six ten", 4))
    assert told.heard(2 * RATE).text == "one two"
    assert told.heard(4 * RATE).text == "one two six ten"


def test_each_segment_counts_for_itself():
    told = spoken(("slow one. ", 10), ("quick and long one.", 2))
    assert told.heard(8 * RATE).text == "slow"
    assert told.heard(int(10.7 * RATE)).text == "slow one. quick"


def test_a_segment_still_being_made_is_reckoned_by_the_pace_of_its_voice():
    told = SpokenText(RATE, s_per_char=0.25)
    told.write("and here go some more of them")
    segment = told.begin_segment(0)
    segment.add_text(SpannedText.of("and here go some more of them", 0))
    segment.start_sample, segment.num_samples = 0, RATE
    assert told.heard(1 * RATE).text == "and"
    assert told.heard(2 * RATE).text == "and here"
    segment.num_samples = 29 * RATE
    assert told.heard(2 * RATE).text == ""


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(0.03, 0.2)), min_size=1, max_size=60))
def test_the_pace_of_a_voice_lies_within_what_it_has_done(spoken_so_far: list[tuple[int, float]]):
    pace = SpeakingPace()
    assert pace.s_per_char("ada") == TYPICAL_S_PER_CHAR
    for num_chars, s_per_char in spoken_so_far:
        pace.note("ada", num_chars * s_per_char, num_chars)
    paces = [s_per_char for _, s_per_char in spoken_so_far]
    assert min(paces) - 1e-9 <= pace.s_per_char("ada") <= max(paces) + 1e-9
    assert pace.s_per_char("ben") == TYPICAL_S_PER_CHAR


def test_the_pace_of_a_voice_follows_it():
    pace = SpeakingPace()
    pace.note("ada", 0.2 * MEMORY_CHARS * 100, MEMORY_CHARS * 100)
    for _ in range(100):
        pace.note("ada", 0.1 * MEMORY_CHARS / 10, MEMORY_CHARS // 10)
    assert pace.s_per_char("ada") == pytest.approx(0.1, rel=0.05)


def test_what_the_normaliser_wrote_counts_as_spoken_and_the_clients_words_are_told():
    told = SpokenText(RATE)
    told.write("It cost $1,250 in May.")
    segment = told.begin_segment(0)
    segment.add_text(SpannedText.of("It cost ", 0))
    segment.add_text(SpannedText.of("one thousand two hundred and fifty dollars", 8, 14))
    segment.add_text(SpannedText.of(" in May.", 14))
    segment.start_sample, segment.num_samples, segment.complete = 0, 58 * RATE, True
    assert told.heard(45 * RATE).text == "It cost"
    assert told.heard(51 * RATE).text == "It cost $1,250"
    assert told.heard(54 * RATE).text == "It cost $1,250 in"


@pytest.mark.parametrize(("position", "cut"), [(0, 0), (2.9, 0), (3, 3), (6.9, 3), (7, 7), (99, 7)])
def test_word_cut(position, cut):
    assert word_cut("one six", position) == cut


def word_cut_word_by_word(text: str, position: float) -> int:
    cut = 0
    for word in re.finditer(r"\S+", text):
        if word.end() > position:
            break
        cut = word.end()
    return cut


@given(st.text("ab \n\x1f\xa0\u3000é", max_size=40) | st.text(max_size=40), st.floats(0, 50))
def test_the_cut_is_where_reading_word_by_word_finds_it(text, position):
    assert word_cut(text, position) == word_cut_word_by_word(text, position)


def test_only_the_segment_that_is_being_heard_is_looked_into(monkeypatch: pytest.MonkeyPatch):
    told = spoken(*[("one two six ten. ", 4)] * 10)
    asked = []
    raw_position = SpokenSegment.raw_position
    monkeypatch.setattr(SpokenSegment, "raw_position", lambda one, at: asked.append(one) or raw_position(one, at))
    assert told.heard(38 * RATE).text == "one two six ten. " * 9 + "one two"
    assert asked == [told.segments[-1]]
