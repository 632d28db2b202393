from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sessions.text.block_splitter import BlockLimits
from sessions.text.normalizer import IncrementalNormalizer, NormalizerSettings, normalize
from sessions.text.spans import SpannedText
from tests.sessions.text.normalizer_cases import CASES
from tests.sessions.text.splits import cut, places

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


@pytest.mark.parametrize(
    ("raw", "expected"), [pytest.param(*case, id=f"{kind}: {case[0]}") for kind in CASES for case in CASES[kind]]
)
def test_what_is_said(raw: str, expected: str) -> None:
    assert normalize(raw) == expected


@settings(max_examples=500)
@given(text=texts, at=places)
@example(text="5 km", at=[1])
@example(text="x" * 500, at=[199, 200, 201])
def test_any_cutting_is_the_whole_text(text: str, at: list[int]) -> None:
    assert said(cut(text, at)) == said([text])


@settings(max_examples=300)
@given(text=texts, at=places)
def test_any_cutting_is_the_whole_text_at_the_limits(text: str, at: list[int]) -> None:
    assert said(cut(text, at), TINY) == said([text], TINY)


@settings(max_examples=500)
@given(text=texts)
@example(text="\ud800 a\udfff")
@example(text="a https:// b https://. c")
@example(text="\x00\x1b[31m\u200b\ufeff")
def test_output_holds_words_and_marks_alone(text: str) -> None:
    assert OUTPUT.fullmatch(normalize(text))


@settings(max_examples=300)
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


def test_normalised_text_stays_as_it_is() -> None:
    for cases in CASES.values():
        for _, spoken in cases:
            if not re.search(r"[A-Z]", spoken):
                assert normalize(spoken) == spoken


def test_a_word_is_said_when_white_space_follows() -> None:
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


def test_flush_says_what_is_held_back() -> None:
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


@pytest.mark.parametrize("text", ["", " \n ", "😀", "!?", "...", "今天", "***", "```\ncode\n```", "<br/>", "[](x)"])
def test_nothing_speakable(text: str) -> None:
    normalizer = IncrementalNormalizer()
    normalizer.push(text)
    normalizer.finish()
    assert not normalizer.has_speakable_text


@pytest.mark.parametrize("text", ["a", "5", "😀 ok", "é", "%"])
def test_something_speakable(text: str) -> None:
    normalizer = IncrementalNormalizer()
    normalizer.push(text)
    normalizer.finish()
    assert normalizer.has_speakable_text


def test_code_blocks_are_said_when_asked_for() -> None:
    text = "Look:\n```python\nx = 1\n```\nDone"
    assert normalize(text) == "Look: Done"
    assert normalize(text, NormalizerSettings(speak_code_blocks=True)) == "Look: x equals one Done"
