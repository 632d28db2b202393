"""What was heard is a prefix of the client's own text, ends at a word, and grows with what was played."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.alignment.uniform_aligner import TYPICAL_S_PER_CHAR, UniformAligner
from sessions.text.spans import SpannedText
from sessions.timeline import ResponseTimeline, SegmentTimeline

RATE = 24_000


def spoken(*segments: tuple[str, int], complete: bool = True) -> ResponseTimeline:
    """Segments of (text, seconds), each spoken as written and evenly."""
    told, position, start = ResponseTimeline(RATE, UniformAligner), 0, 0
    for text, seconds in segments:
        told.append_text(text)
        segment = told.begin_segment(position)
        segment.add_text(SpannedText.from_raw(text, position))
        position += len(text)
        segment.start_sample = start
        segment.push(np.zeros(seconds * RATE, np.float32))
        start += seconds * RATE
        if complete:
            segment.finish()
    return told


@given(st.lists(st.tuples(st.text(max_size=30), st.integers(0, 5)), max_size=4), st.floats(0, 30), st.booleans())
def test_heard_and_remaining_make_up_the_text_and_the_cut_is_no_word_s_middle(segments, played_s, complete):
    told = spoken(*segments, complete=complete)
    text = "".join(text for text, _ in segments)
    heard = told.heard_text(int(played_s * RATE))
    assert heard.text + heard.remaining == text
    assert heard.text == "" or not heard.text[-1].isspace()


@given(st.lists(st.tuples(st.text("ab c", max_size=30), st.integers(0, 5)), max_size=4), st.lists(st.floats(0, 30)))
def test_more_played_is_never_less_heard(segments, moments):
    told = spoken(*segments)
    lengths = [len(told.heard_text(int(moment * RATE)).text) for moment in sorted(moments)]
    assert lengths == sorted(lengths)


def test_a_word_counts_as_heard_once_its_last_sound_is_over_with_the_marks_on_it():
    told = spoken(("one, two... ten", 15))
    assert told.heard_text(3 * RATE - 1).text == ""
    assert told.heard_text(3 * RATE).text == "one,"
    assert told.heard_text(8 * RATE).text == "one, two..."
    assert told.heard_text(15 * RATE).text == "one, two... ten"


def test_each_segment_counts_for_itself():
    told = spoken(("slow one. ", 10), ("quick and long one.", 2))
    assert told.heard_text(8 * RATE).text == "slow one."
    assert told.heard_text(int(10.7 * RATE)).text == "slow one. quick"


def test_chinese_is_heard_by_the_character():
    told = spoken(("你好世界。", 5))
    assert told.heard_text(2 * RATE).text == "你好"


def test_what_is_known_of_a_segment_that_is_stopped_stays_known():
    text = "and here go some more of them"
    told = spoken((text, 1), complete=False)
    played = int(3.5 * TYPICAL_S_PER_CHAR * RATE)
    assert told.heard_text(played).text == "and"
    told.stop()
    told.segments[0].push(np.zeros(20 * RATE, np.float32))
    assert told.heard_text(played).text == "and"


def test_what_the_normaliser_wrote_counts_as_spoken_and_the_clients_words_are_told():
    told = ResponseTimeline(RATE, UniformAligner)
    told.append_text("It cost $1,250 in May.")
    segment = told.begin_segment(0)
    segment.add_text(SpannedText.from_raw("It cost ", 0))
    segment.add_text(SpannedText.from_raw("one thousand two hundred and fifty dollars", 8, 14))
    segment.add_text(SpannedText.from_raw(" in May.", 14))
    segment.start_sample = 0
    segment.push(np.zeros(58 * RATE, np.float32))
    segment.finish()
    assert told.heard_text(45 * RATE).text == "It cost"
    assert told.heard_text(51 * RATE).text == "It cost $1,250"
    assert told.heard_text(54 * RATE).text == "It cost $1,250 in"
    assert [(word.text, word.start_ms, word.end_ms) for word in told.new_words()] == [
        ("It", 0, 2_000),
        ("cost", 3_000, 7_000),
        ("$1,250", 8_000, 50_000),
        ("in", 51_000, 53_000),
        ("May.", 54_000, 57_000),
    ]
    assert told.new_words() == []


def test_words_of_a_segment_wait_until_the_one_before_is_told():
    told = spoken(("one two ", 1), ("three", 1), complete=False)
    told.segments[1].finish()
    assert told.new_words() == []
    told.segments[0].finish()
    words = told.new_words()
    assert [(word.text, word.segment, word.segment_start_ms) for word in words] == [
        ("one", 0, 0),
        ("two", 0, 0),
        ("three", 1, 1_000),
    ]


def test_only_the_segment_that_is_being_heard_is_looked_into(monkeypatch: pytest.MonkeyPatch):
    told = spoken(*[("one two six ten. ", 4)] * 10)
    asked = []
    raw_position = SegmentTimeline.raw_position
    monkeypatch.setattr(SegmentTimeline, "raw_position", lambda one, *at: asked.append(one) or raw_position(one, *at))
    assert told.heard_text(38 * RATE).text == "one two six ten. " * 9 + "one two"
    assert asked == [told.segments[-1]]
