"""Segments: where they end however the text is cut, and when dead air closes one early."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from sessions.text.block_splitter import WHITE_SPACE
from sessions.text.dead_air import DeadAirRule, TextStats
from sessions.text.segmenter import SegmentEnd, Segmenter, SegmenterSettings, SegmentEvent, SegmentText
from sessions.text.spans import SpannedText
from sessions.text.token_cost import TENTHS, token_tenths
from tests.sessions.text.texts import cut, places

TINY = SegmenterSettings(
    sentence_end_after_chars=6, clause_end_after_chars=15, word_end_after_chars=25, max_segment_chars=40
)


def events_of(parts: list[str], settings: SegmenterSettings = TINY) -> list[SegmentEvent]:
    segmenter = Segmenter(settings)
    events: list[SegmentEvent] = []
    position = 0
    for part in parts:
        events += segmenter.push(SpannedText.from_raw(part, position))
        position += len(part)
    return events + segmenter.flush()


def segments(parts: list[str], settings: SegmenterSettings = TINY) -> list[SpannedText]:
    events = events_of(parts, settings)
    num_segments = sum(isinstance(event, SegmentEnd) for event in events)
    found: list[list[SpannedText]] = [[] for _ in range(num_segments)]
    for event in events:
        if isinstance(event, SegmentText):
            found[event.index].append(event.text)
    return [SpannedText.join(pieces) for pieces in found]


def texts(text: str, settings: SegmenterSettings = TINY) -> list[str]:
    return [segment.text for segment in segments([text], settings)]


pieces = st.sampled_from(
    'Word word a I Mr. e.g. J. U.S. 3.5 3. 1. . ! ? ... … , ; : — " ” ) ( 。 ！ ， 」 今 天 है । ؟ \u0301 👍🏽'.split()
)
spaces = st.sampled_from([" ", " ", "", "\n", "\n\n", "   ", "\t", "\r\n", "\u3000"])
raw_texts = st.one_of(
    st.lists(st.tuples(pieces, spaces), max_size=40).map(lambda parts: "".join(a + b for a, b in parts)),
    st.text(max_size=120),
)


@settings(max_examples=200)
@given(text=raw_texts, at=places)
def test_any_cutting_gives_the_same_segments(text: str, at: list[int]) -> None:
    assert segments(cut(text, at)) == segments([text])


SHORT = SegmenterSettings(
    sentence_end_after_chars=60, clause_end_after_chars=90, word_end_after_chars=120, max_segment_chars=150
)
words = st.sampled_from(["and", "Word.", "two,", "Mr.", "Äther", "“so”", "x" * 25, "12.", "[AH0]", "今", "then\n", " "])


@pytest.mark.parametrize("max_tokens", [None, 50])
@example(text="word " * 11 + "12. Next")
@example(text="word " * 11 + "end. Next words follow here")
@example(text="word " * 11 + " ab. Next words follow here")
@example(text="x" * 28 + " " + "!" * 15 + ", Next")
@example(text="(((((((, " * 8)
@given(text=st.lists(words, min_size=8, max_size=60).map(" ".join))
def test_words_at_once_make_the_segments_of_characters_one_by_one(text: str, max_tokens: int | None) -> None:
    lengths = replace(SHORT, max_segment_tokens=max_tokens)
    assert segments([text], lengths) == segments(list(text), lengths)


@pytest.mark.parametrize(
    "lengths",
    [
        SegmenterSettings(clause_end_after_chars=8),
        SegmenterSettings(word_end_after_chars=8),
        SegmenterSettings(max_segment_chars=8),
        SegmenterSettings(max_segment_tokens=10, word_end_at_share=0.1),
        SegmenterSettings(max_segment_tokens=10, end_at_share=0.1),
    ],
)
def test_length_below_that_of_a_sentence_ends_a_segment(lengths: SegmenterSettings) -> None:
    found = texts("One two, three four.", lengths)
    assert "".join(found).replace(" ", "") == "Onetwo,threefour."
    assert len(found[0]) <= len("One two, ")


@settings(max_examples=120)
@given(text=raw_texts)
def test_nothing_but_white_space_between_segments_is_lost(text: str) -> None:
    found = segments([text])
    position = 0
    for segment in found:
        start = text.index(segment.text, position)
        assert text[position:start].strip(WHITE_SPACE) == ""
        assert (segment.raw_start, segment.raw_end) == (start, start + len(segment.text))
        position = start + len(segment.text)
    assert text[position:].strip(WHITE_SPACE) == ""


@given(text=raw_texts)
def test_segment_begins_with_a_visible_character_and_is_bounded(text: str) -> None:
    for segment in texts(text):
        assert segment[0] not in WHITE_SPACE
        visible = [character for character in segment if character not in WHITE_SPACE]
        assert len(visible) <= 2 * TINY.max_segment_chars


@given(text=raw_texts, at=places)
def test_a_segment_ends_once_and_before_the_next_begins(text: str, at: list[int]) -> None:
    open_index: int | None = None
    ended = -1
    for event in events_of(cut(text, at)):
        if isinstance(event, SegmentEnd):
            assert event.index == open_index
            ended, open_index = event.index, None
        else:
            assert event.index == ended + 1
            open_index = event.index
    assert open_index is None


SENTENCES = [
    ("A first one here. And two.", ["A first one here.", "And two."]),
    ("A first one here! And two.", ["A first one here!", "And two."]),
    ("A first one here?! And two.", ["A first one here?!", "And two."]),
    ('He said "here." And two.', ['He said "here."', "And two."]),
    ("He said (here.) And two.", ["He said (here.)", "And two."]),
    ("A first one… And two.", ["A first one…", "And two."]),
    ("A first one... And two.", ["A first one...", "And two."]),
    ("A first... one.", ["A first... one."]),
    ("It is 3.5 pm.", ["It is 3.5 pm."]),
    ("We met Mr. X. He left.", ["We met Mr. X. He left."]),
    ("Things, e.g. Apples.", ["Things, e.g. Apples."]),
    ("The U.S. Army won", ["The U.S. Army won"]),
    ("So did I. And two.", ["So did I.", "And two."]),
    ("Say no. 5 today", ["Say no. 5 today"]),
    ("Really? he said", ["Really? he said"]),
    ("Lines one\n\nLines two", ["Lines one", "Lines two"]),
    ("1. Preheat it", ["1. Preheat it"]),
    ("In 2024. Then on", ["In 2024.", "Then on"]),
    ("你好吗？我很好。", ["你好吗？", "我很好。"]),
    ("他说：「好的。」然后走。", ["他说：「好的。」", "然后走。"]),
    ("यह अच्छा है। वह भी", ["यह अच्छा है।", "वह भी"]),
    ("كيف حالك؟ أنا بخير", ["كيف حالك؟", "أنا بخير"]),
    ("no mark at all", ["no mark at all"]),
    ("   ", []),
    ("", []),
]


@pytest.mark.parametrize(("text", "expected"), SENTENCES)
def test_sentence_ends(text: str, expected: list[str]) -> None:
    sentences_only = SegmenterSettings(
        sentence_end_after_chars=6, clause_end_after_chars=500, word_end_after_chars=500, max_segment_chars=500
    )
    assert texts(text, sentences_only) == expected


def test_a_clause_ends_a_long_segment() -> None:
    assert texts("One two three four, five six, seven eight") == ["One two three four,", "five six, seven eight"]


def test_a_small_letter_after_a_full_stop_ends_a_clause() -> None:
    assert texts("one two three four. five six") == ["one two three four.", "five six"]


def test_without_marks_white_space_ends_a_segment() -> None:
    assert texts("one two three four five six seven eight nine") == ["one two three four five six", "seven eight nine"]


def test_without_white_space_the_limit_ends_it() -> None:
    assert [len(segment) for segment in texts("x" * 100)] == [40, 40, 20]


def test_a_sign_of_several_characters_stays_whole() -> None:
    assert texts("x" * 39 + "e\u0301" + "yy") == ["x" * 39 + "e\u0301", "yy"]
    assert texts("x" * 37 + "👩\u200d👩\u200d👧" + "yy") == ["x" * 37 + "👩\u200d👩\u200d👧", "yy"]


def test_endless_combining_marks_are_cut_too() -> None:
    assert max(len(segment) for segment in texts("e" + "\u0301" * 1000)) <= 2 * TINY.max_segment_chars


def test_default_lengths() -> None:
    sentence = "This is a sentence of exactly fifty characters ok. "
    assert [len(text.strip()) for text in texts(sentence * 7, SegmenterSettings())] == [152, 152, 50]


def test_text_is_passed_on_before_its_segment_ends() -> None:
    segmenter = Segmenter()
    assert segmenter.push(SpannedText.from_raw("Hello ", 0)) == [SegmentText(0, SpannedText.from_raw("Hello ", 0))]


def test_a_mark_decides_when_the_next_visible_character_comes() -> None:
    segmenter = Segmenter(TINY)
    segmenter.push(SpannedText.from_raw("Some words.", 0))
    assert segmenter.push(SpannedText.from_raw("  ", 11)) == []
    assert segmenter.push(SpannedText.from_raw("Next", 13)) == [
        SegmentEnd(0),
        SegmentText(1, SpannedText.from_raw("Next", 13)),
    ]


def test_flush_ends_what_is_open_and_nothing_else() -> None:
    segmenter = Segmenter()
    assert segmenter.flush() == []
    segmenter.push(SpannedText.from_raw("Hi", 0))
    assert segmenter.flush() == [SegmentEnd(0)]
    assert segmenter.flush() == []
    assert segmenter.push(SpannedText.from_raw(" you", 2)) == [SegmentText(1, SpannedText.from_raw("you", 3))]


def test_digits_count_as_their_spoken_length() -> None:
    """So that no segment has more of them than models take tokens."""
    found = texts("0123456789" * 100, SegmenterSettings())
    assert [len(text) for text in found] == [200] * 5


FEW_TOKENS = SegmenterSettings(max_segment_tokens=40)
LONG_TEXTS = {
    "Thai": "วันนี้อากาศดีมากเราจะไปเดินเล่นที่สวนสาธารณะกันไหมครับ " * 12,
    "Burmese": "ဒီနေ့ရာသီဥတုသာယာတယ်ပန်းခြံကိုသွားကြရအောင်" * 12,
    "Hindi": "आज मौसम बहुत अच्छा है और हम पार्क में घूमने चलते हैं " * 12,
    "Amharic": "ዛሬ አየሩ በጣም ጥሩ ነው ወደ መናፈሻው እንሂድ " * 20,
    "emoji": "😀👍🏽👩‍👩‍👧" * 60,
}


def cost(text: str) -> float:
    return sum(map(token_tenths, text)) / TENTHS


@pytest.mark.parametrize("text", LONG_TEXTS.values(), ids=LONG_TEXTS)
def test_scripts_of_many_tokens_make_short_segments(text: str) -> None:
    found = texts(text, SegmenterSettings(max_segment_tokens=200))
    assert "".join(found).replace(" ", "") == text.replace(" ", "")
    assert max(len(segment.encode()) - segment.count(" ") for segment in found) <= 200


def test_common_scripts_are_cut_as_without_a_token_limit() -> None:
    for text in ("One may say, and many do, that this is so. " * 30, "今天天气很好，我们去公园散步吧。" * 30):
        assert texts(text, SegmenterSettings(max_segment_tokens=200)) == texts(text, SegmenterSettings())


def test_word_unknown_to_tokenizer_makes_short_segments() -> None:
    found = texts("b" * 600, SegmenterSettings(max_segment_tokens=200))
    assert sum(map(len, found)) == 600
    assert max(map(len, found)) <= 200


@given(text=raw_texts, at=places)
def test_any_cutting_gives_the_same_segments_by_tokens(text: str, at: list[int]) -> None:
    assert segments(cut(text, at), FEW_TOKENS) == segments([text], FEW_TOKENS)


@given(text=raw_texts)
def test_no_segment_costs_more_tokens_than_allowed(text: str) -> None:
    assert all(cost(segment) <= 40 for segment in texts(text, FEW_TOKENS))


PHONEMES = replace(FEW_TOKENS, reads_phonemes=True)
A_PHONEME = re.compile(r"\[[A-Z]{1,2}[012]?\]")
phoneme_texts = st.lists(
    st.sampled_from([*"[T] [AH0] [M] [EY1] [AH [ ] [[ [ah0] AH0] word Word. 3 \u0301 今".split(), " "]), max_size=80
).map("".join)


def test_phonemes_are_one_token_each_and_stay_whole() -> None:
    tomatoes = "[T][AH0][M][EY1][T][OW0]" * 10
    assert texts(tomatoes, replace(PHONEMES, max_segment_tokens=200)) == [tomatoes]
    found = texts("a word " * 8 + tomatoes, PHONEMES)
    assert [len(A_PHONEME.findall(segment)) for segment in found] == [16, 36, 8]
    assert "".join(A_PHONEME.sub("", segment) for segment in found) == "a word " * 8


@pytest.mark.parametrize("text", ["[AH ", "[AH 0] ", "[AHx "])
def test_what_does_not_become_a_phoneme_counts_as_text(text: str) -> None:
    assert texts(text * 60, PHONEMES) == texts(text * 60, FEW_TOKENS)


def test_flush_within_a_phoneme_ends_it() -> None:
    segmenter = Segmenter(PHONEMES)
    segmenter.push(SpannedText.from_raw("[A", 0))
    assert segmenter.flush() == [SegmentEnd(0)]
    segmenter.push(SpannedText.from_raw("H]", 2))
    assert segmenter.flush() == [SegmentEnd(1)]


@given(text=phoneme_texts, at=places)
def test_any_cutting_splits_no_phoneme(text: str, at: list[int]) -> None:
    found = texts(text, PHONEMES)
    assert [segment.text for segment in segments(cut(text, at), PHONEMES)] == found
    assert [phoneme for segment in found for phoneme in A_PHONEME.findall(segment)] == A_PHONEME.findall(text)
    assert all(cost(A_PHONEME.sub("[", segment)) <= 40 for segment in found)


@given(text=raw_texts | phoneme_texts.map(str.lower))
def test_text_without_phonemes_is_cut_as_for_other_models(text: str) -> None:
    assume(not re.search(r"\[[A-Z]", text))
    assert texts(text, PHONEMES) == texts(text, FEW_TOKENS)


ON = DeadAirRule()
OFF = DeadAirRule(enabled=False)
NOW_S, STALLED_S = 100.0, 100.5
NEVER_S = math.inf
CLOSE_EARLY = [
    # text so far, left to play (ms), rule, moment of the close
    ("one two three four five six", 299, ON, STALLED_S),
    ("one two three four five six", 1000, ON, 100.7),
    ("one two three four five", 299, ON, NEVER_S),
    ("well,", 299, ON, STALLED_S),
    ("Yes.", 0, ON, STALLED_S),
    ("at 3.5", 0, ON, NEVER_S),
    ("", 0, ON, NEVER_S),
    ("one", 0, ON, NEVER_S),
    ("它今天很好吗", 0, ON, STALLED_S),
    ("今天", 0, ON, NEVER_S),
    ("don't it's we're", 0, ON, NEVER_S),
    ("one two three four five six", 0, OFF, NEVER_S),
    ("one two three, four", 1000, ON, 100.7),
]
BEGIN_NEXT = [
    # text gathered, left to play (ms), rule, moment of the beginning
    ("and then", 400, ON, NOW_S),
    ("and then", 1000, ON, 100.6),
    ("and then.", 5000, ON, NOW_S),
    ("and then. We", 5000, ON, NOW_S),
    ("and 3.5", 1000, ON, 100.6),
    ("and Dr. No", 1000, ON, 100.6),
    ("好。", 5000, ON, NOW_S),
    ("and then,", 1000, ON, 100.6),
    ("", 0, ON, NEVER_S),
    (" ... ", 0, ON, NEVER_S),
    ("and", 5000, OFF, NOW_S),
    ("", 0, OFF, NEVER_S),
]


@pytest.mark.parametrize(("text", "left_ms", "rule", "expected_s"), CLOSE_EARLY)
def test_early_close_is_at_the_moment(text: str, left_ms: float, rule: DeadAirRule, expected_s: float) -> None:
    assert rule.close_early_s(TextStats.from_text(text), left_ms, STALLED_S, NOW_S) == pytest.approx(expected_s)


@pytest.mark.parametrize(("text", "left_ms", "rule", "expected_s"), BEGIN_NEXT)
def test_next_segment_begins_at_the_moment(text: str, left_ms: float, rule: DeadAirRule, expected_s: float) -> None:
    assert rule.begin_next_s(TextStats.from_text(text), left_ms, NOW_S) == pytest.approx(expected_s)
