from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sessions.text.spans import EMPTY, SourceSpan, SpannedText
from tests.sessions.text.splits import cut, places

words = st.lists(st.tuples(st.text(max_size=6), st.integers(0, 6), st.integers(0, 3)), max_size=8)


def rewritten(parts: list[tuple[str, int, int]]) -> SpannedText:
    """Pieces that stand for so many raw characters, with so many raw characters skipped before each."""
    pieces = []
    position = 0
    for text, num_raw, num_skipped in parts:
        position += num_skipped
        pieces.append(SpannedText.from_raw(text, position, position + num_raw))
        position += num_raw
    return SpannedText.join(pieces)


def test_a_number_said_in_words_stands_for_its_digits() -> None:
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


@given(parts=words)
def test_spans_cover_the_text_and_never_go_back(parts: list[tuple[str, int, int]]) -> None:
    spanned = rewritten(parts)
    assert sum(span.num_chars for span in spanned.spans) == len(spanned.text)
    edges = [edge for span in spanned.spans for edge in (span.raw_start, span.raw_end)]
    assert edges == sorted(edges)


@given(parts=words, at=places)
def test_cut_and_joined_it_is_the_same_text_over_the_same_raw_range(
    parts: list[tuple[str, int, int]], at: list[int]
) -> None:
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
