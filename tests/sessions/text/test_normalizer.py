"""Normalizing: what is spoken for what is written, however it is cut; its blocks, numbers and spans."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sessions.text.acronyms import code_digits, roman_value
from sessions.text.block_splitter import (
    WHITE_SPACE,
    BlockEvent,
    BlockLimits,
    BlockSplitter,
    BlockStart,
    LineBreak,
    TextBlock,
)
from sessions.text.normalizer import IncrementalNormalizer, NormalizerSettings, normalize
from sessions.text.numbers import MAX_CARDINAL_DIGITS, ONES, cardinal, digits, grouped_digits, number, ordinal, year
from sessions.text.spans import EMPTY, SourceSpan, SpannedText
from tests.sessions.text.texts import cut, places
from tests.vectors import read_lines

# Kind, written, spoken.
CASES = read_lines("text/normalizer.jsonl")
# Of a whole text. In pieces a space may go ahead of a word that turns out to have no sound.
OUTPUT = re.compile(r"(?:[A-Za-z]+(?:['-][A-Za-z]+)*[.,?!;:]?(?: (?=[A-Za-z])|$))*")
fragments = st.sampled_from(
    """
    a I the word Word WORD API NASA Mr. Dr. St. U.S. etc. e.g. J. May Jan. March 5 5. 3, 2024 10:30 a.m. pm $ $5 €3.50
    % 12% km 1/2 3-4 - – — -- + = ... … ( ) [ ] ](u) [x]( <b> </b> <a <!-- --> ` ``` ** * _ __ # - 1. | |---| & &amp; @
    a@b.co www.x.org https://x.y/z 555-1234 +1 007 1st 2x 4K B12 '90s II Henry 😀 👍🏽 今天 é \u0301 ½ ² ° °C ; : ! ? "
    ' ’s
    """.split()
)
spaces = st.sampled_from([" ", " ", " ", "\n", "\n\n", "", "\t", "  "])
texts = st.one_of(
    st.lists(st.tuples(fragments, spaces), max_size=25).map(lambda parts: "".join(a + b for a, b in parts)),
    st.text(max_size=80),
    st.text(alphabet="0123456789.,:/-$%x aAM", max_size=40),
)
TINY = NormalizerSettings(blocks=BlockLimits(max_word_chars=8, max_block_words=3, max_block_chars=20))


def said(parts: list[str], settings: NormalizerSettings | None = None) -> SpannedText:
    normalizer = IncrementalNormalizer(settings)
    pieces = [normalizer.push(part) for part in parts]
    return SpannedText.join([*pieces, normalizer.finish()])


@pytest.mark.parametrize(("raw", "spoken"), [pytest.param(*case, id=f"{kind}: {case[0]}") for kind, *case in CASES])
def test_written_text_is_normalized_as_its_case(raw: str, spoken: str) -> None:
    assert normalize(raw) == spoken


@settings(max_examples=200)
@given(text=texts, at=places)
@example(text="5 km", at=[1])
@example(text="x" * 500, at=[199, 200, 201])
def test_any_cutting_is_the_whole_text(text: str, at: list[int]) -> None:
    assert said(cut(text, at)) == said([text])


@settings(max_examples=120)
@given(text=texts, at=places)
def test_any_cutting_is_the_whole_text_at_the_limits(text: str, at: list[int]) -> None:
    assert said(cut(text, at), TINY) == said([text], TINY)


@settings(max_examples=200)
@given(text=texts)
@example(text="\ud800 a\udfff")
@example(text="a https:// b https://. c")
@example(text="\x00\x1b[31m\u200b\ufeff")
def test_output_holds_words_and_marks_alone(text: str) -> None:
    assert OUTPUT.fullmatch(normalize(text))


@settings(max_examples=120)
@given(text=texts, at=places)
def test_spans_cover_the_output_and_stay_within_the_raw_text(text: str, at: list[int]) -> None:
    normalizer = IncrementalNormalizer()
    spoken = SpannedText.join(piece for part in cut(text, at) for piece in (normalizer.push(part), normalizer.flush()))
    assert sum(span.num_chars for span in spoken.spans) == len(spoken.text)
    edges = [edge for span in spoken.spans for edge in (span.raw_start, span.raw_end)]
    assert edges == sorted(edges)
    assert all(0 <= edge <= len(text) for edge in edges)


def test_spans_lead_back_to_the_raw_words() -> None:
    raw = "I have **21** cats (see 5 km)."
    spoken = said([raw])
    found = {}
    place = 0
    for span in spoken.spans:
        found[spoken.text[place : place + span.num_chars]] = raw[span.raw_start : span.raw_end]
        place += span.num_chars
    assert found["I have "] == "I have "
    assert found["twenty-one cats"] == "**21** cats"
    assert found["five kilometers."] == "5 km)."


@given(words=st.lists(st.sampled_from("the quick fox don't jumps, over; a lazy Dog".split()), min_size=1))
def test_plain_words_pass_as_they_are(words: list[str]) -> None:
    text = " ".join(words)
    assert said([text]) == SpannedText.from_raw(text, 0)


def test_normalized_text_stays_as_it_is() -> None:
    for _, _, spoken in CASES:
        if not re.search(r"[A-Z]", spoken):
            assert normalize(spoken) == spoken


def test_word_is_emitted_when_white_space_follows() -> None:
    normalizer = IncrementalNormalizer()
    assert normalizer.push("Hello,").text == ""
    assert normalizer.push(" ").text == "Hello,"
    assert normalizer.push("wor").text == " "
    assert normalizer.push("ld ").text == "world"


def test_a_space_waits_for_a_letter_for_a_dash_would_be_a_comma() -> None:
    normalizer = IncrementalNormalizer()
    assert normalizer.push("one ").text == "one"
    assert normalizer.push("— ").text == ""
    assert normalizer.push("two ").text == ", two"


def test_a_number_waits_for_its_unit() -> None:
    normalizer = IncrementalNormalizer()
    assert normalizer.push("It is 5 ").text == "It is"
    assert normalizer.push("km ").text == " five kilometers"


def test_flush_emits_held_text() -> None:
    normalizer = IncrementalNormalizer()
    normalizer.push("It is 5")
    assert normalizer.flush().text == " five"
    assert normalizer.push("km away").text == " km "


@pytest.mark.parametrize("unit", ["x", "1", "A", "<", "[", "今", "\u0301", "$", "&", "<a ", "1/", "May ", "😀"])
def test_what_is_held_back_is_bounded(unit: str) -> None:
    normalizer = IncrementalNormalizer()
    held_chars = [0]
    for character in (unit * 5000)[:5000]:
        before = normalizer.num_chars_held
        normalizer.push(character)
        held_chars.append(max(before, normalizer.num_chars_held))
    limits = BlockLimits()
    assert max(held_chars) <= limits.max_block_chars + limits.max_word_chars


def speakable(text: str) -> str:
    normalizer = IncrementalNormalizer()
    return "".join(part.text for part in (normalizer.push(text), normalizer.finish())).strip()


@pytest.mark.parametrize("text", ["", " \n ", "😀", "!?", "...", "今天", "***", "```\ncode\n```", "<br/>", "[](x)"])
def test_nothing_speakable(text: str) -> None:
    assert not speakable(text)


@pytest.mark.parametrize("text", ["a", "5", "😀 ok", "é", "%"])
def test_something_speakable(text: str) -> None:
    assert speakable(text)


def test_code_blocks_are_spoken_on_request() -> None:
    text = "Look:\n```python\nx = 1\n```\nDone"
    assert normalize(text) == "Look: Done"
    assert normalize(text, NormalizerSettings(speak_code_blocks=True)) == "Look: x equals one Done"


TENS = {
    word: 10 * place for place, word in enumerate("_ _ twenty thirty forty fifty sixty seventy eighty ninety".split())
}
SCALES = {
    word: 1000 ** (place + 1) for place, word in enumerate("thousand million billion trillion quadrillion".split())
}


def value_of(words: str) -> int:
    """Reads a cardinal back, word by word."""
    total = group = 0
    for word in words.replace("-", " ").split():
        if word in SCALES:
            total, group = total + group * SCALES[word], 0
        elif word == "hundred":
            group *= 100
        else:
            group += TENS[word] if word in TENS else ONES.index(word)
    return total + group


@given(st.one_of(st.integers(0, 10**MAX_CARDINAL_DIGITS - 1), st.integers(0, 2000)))
def test_a_cardinal_reads_back(value: int) -> None:
    assert value_of(cardinal(value)) == value


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_different_numbers_sound_different(one: int, other: int) -> None:
    assert (ordinal(one) == ordinal(other)) == (one == other)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "zeroth"), (1, "first"), (12, "twelfth"), (20, "twentieth"), (21, "twenty-first"), (105, "one hundred fifth")],
)
def test_ordinals(value: int, expected: str) -> None:
    assert ordinal(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1000, "one thousand"),
        (1066, "ten sixty-six"),
        (1100, "eleven hundred"),
        (1905, "nineteen oh five"),
        (1999, "nineteen ninety-nine"),
        (2000, "two thousand"),
        (2005, "two thousand five"),
        (2010, "twenty ten"),
        (2100, "twenty-one hundred"),
    ],
)
def test_years(value: int, expected: str) -> None:
    assert year(value) == expected


@given(st.text(alphabet="0123456789", min_size=1, max_size=40))
def test_grouped_digits_are_the_digits_in_groups_of_3_to_5(run: str) -> None:
    spoken = grouped_digits(run)
    assert spoken.replace(",", "") == digits(run)
    if len(run) > 5:
        assert all(3 <= len(group.split()) <= 4 for group in spoken.split(","))


@given(st.from_regex(r"[0-9]{1,40}(\.[0-9]{1,10})?", fullmatch=True))
def test_any_written_number_is_spoken(text: str) -> None:
    assert set(number(text)) <= set("abcdefghijklmnopqrstuvwxyz- ")


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ("4", "four"),
        ("20", "twenty"),
        ("100", "one hundred"),
        ("320", "three twenty"),
        ("305", "three oh five"),
        ("1000", "one thousand"),
        ("1500", "fifteen hundred"),
        ("2490", "twenty-four ninety"),
        ("007", "zero zero seven"),
        ("12345", "one two three four five"),
    ],
)
def test_digits_inside_a_name(run: str, expected: str) -> None:
    assert code_digits(run) == expected


def test_roman_numerals_below_forty_are_known_and_nothing_else() -> None:
    tens, ones = ("", "X", "XX", "XXX"), ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")
    written = {ten + one: 10 * place + value for place, ten in enumerate(tens) for value, one in enumerate(ones)}
    assert all(roman_value(text) == value for text, value in written.items())
    assert [roman_value(text) for text in ("IIII", "VV", "IC", "XXXX", "hello", "VX")] == [0] * 6


TINY_LIMITS = BlockLimits(max_word_chars=6, max_block_words=3, max_block_chars=12)
block_texts = st.text(alphabet="ab+ \n\t\u3000", max_size=60)


def ends_in_plus(words: Sequence[str]) -> bool:
    return words[-1].endswith("+")


def parts_of(pieces: list[str]) -> list[BlockEvent]:
    splitter = BlockSplitter(ends_in_plus, TINY_LIMITS)
    parts = [part for piece in pieces for part in splitter.push(piece)]
    return parts + list(splitter.flush())


@given(text=block_texts, at=places)
def test_any_cut_gives_the_same_blocks(text: str, at: list[int]) -> None:
    assert parts_of(cut(text, at)) == parts_of([text])


@given(text=block_texts)
def test_a_block_is_what_stands_at_its_place(text: str) -> None:
    for part in parts_of([text]):
        if isinstance(part, TextBlock):
            assert text[part.raw_start : part.raw_end].split() == part.text.split(" ")
            begins_word = part.raw_start == 0 or text[part.raw_start - 1] in WHITE_SPACE
            assert part.no_space_before is not begins_word
        else:
            assert text[part.raw_start] == ("\n" if isinstance(part, LineBreak) else part.character)


@given(text=block_texts)
def test_start_of_each_block_comes_first(text: str) -> None:
    parts = [part for part in parts_of([text]) if not isinstance(part, LineBreak)]
    for before, part in pairwise(parts):
        if isinstance(part, TextBlock):
            assert part.no_space_before or before == BlockStart(part.text[0], part.raw_start)
        else:
            assert isinstance(before, TextBlock)


@given(text=block_texts)
def test_every_visible_character_is_in_one_block(text: str) -> None:
    blocks = [part for part in parts_of([text]) if isinstance(part, TextBlock)]
    assert "".join(block.text for block in blocks).replace(" ", "") == "".join(text.split())


def test_a_word_that_wants_more_waits_for_the_next() -> None:
    assert [part.text for part in parts_of(["a+ b c"]) if isinstance(part, TextBlock)] == ["a+ b", "c"]


def test_a_line_break_ends_a_block() -> None:
    parts = parts_of(["a+\nb"])
    assert parts == [BlockStart("a", 0), TextBlock("a+", 0, 2), LineBreak(2), BlockStart("b", 3), TextBlock("b", 3, 4)]


def test_a_block_is_cut_at_its_limits() -> None:
    assert [part.text for part in parts_of(["a+ a+ a+ a+ b"]) if isinstance(part, TextBlock)] == ["a+ a+ a+", "a+ b"]
    assert [part.text for part in parts_of(["abcdefghij"]) if isinstance(part, TextBlock)] == ["abcdef", "ghij"]


piece_lists = st.lists(st.tuples(st.text(max_size=6), st.integers(0, 6), st.integers(0, 3)), max_size=8)


def rewritten(parts: list[tuple[str, int, int]]) -> SpannedText:
    """Pieces that stand for so many raw characters, with so many raw characters skipped before each."""
    pieces = []
    position = 0
    for text, num_raw, num_skipped in parts:
        position += num_skipped
        pieces.append(SpannedText.from_raw(text, position, position + num_raw))
        position += num_raw
    return SpannedText.join(pieces)


def test_number_in_words_maps_to_its_digits() -> None:
    spoken = SpannedText.join(
        [SpannedText.from_raw("I have ", 0), SpannedText.from_raw("twenty-one", 7, 9), SpannedText.from_raw(" cats", 9)]
    )
    assert spoken.text == "I have twenty-one cats"
    assert spoken.spans == (SourceSpan(7, 0, 7), SourceSpan(10, 7, 9), SourceSpan(5, 9, 14))
    assert (spoken.raw_start, spoken.raw_end) == (0, 14)


def test_verbatim_neighbours_become_one_span() -> None:
    assert SpannedText.join([SpannedText.from_raw("ab", 0), SpannedText.from_raw("cd", 2)]) == SpannedText.from_raw(
        "abcd", 0
    )
    assert len(SpannedText.join([SpannedText.from_raw("ab", 0), SpannedText.from_raw("cd", 3)]).spans) == 2


def test_no_text_is_no_span() -> None:
    assert SpannedText.from_raw("", 5) == EMPTY
    assert SpannedText.join([]) == EMPTY


@given(parts=piece_lists)
def test_spans_cover_the_text_and_never_go_back(parts: list[tuple[str, int, int]]) -> None:
    spanned = rewritten(parts)
    assert sum(span.num_chars for span in spanned.spans) == len(spanned.text)
    edges = [edge for span in spanned.spans for edge in (span.raw_start, span.raw_end)]
    assert edges == sorted(edges)


@given(parts=piece_lists, at=places)
def test_cut_and_joined_text_covers_the_same_raw_range(parts: list[tuple[str, int, int]], at: list[int]) -> None:
    spanned = rewritten(parts)
    lengths = [len(piece) for piece in cut(spanned.text, at)]
    ranges = [(sum(lengths[:number]), sum(lengths[: number + 1])) for number in range(len(lengths))]
    pieces = spanned.cut_all(ranges)
    joined = SpannedText.join(pieces)
    assert joined.text == spanned.text
    assert all(sum(span.num_chars for span in piece.spans) == len(piece.text) for piece in pieces)
    edges = [edge for span in joined.spans for edge in (span.raw_start, span.raw_end)]
    assert edges == sorted(edges)
    if spanned.text:
        assert (joined.raw_start, joined.raw_end) == (spanned.raw_start, spanned.raw_end)
