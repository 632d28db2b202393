from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sessions.text.block_splitter import (
    WHITE_SPACE,
    BlockEvent,
    BlockLimits,
    BlockSplitter,
    BlockStart,
    LineBreak,
    TextBlock,
)
from tests.sessions.text.splits import cut, places

LIMITS = BlockLimits(max_word_chars=6, max_block_words=3, max_block_chars=12)
texts = st.text(alphabet="ab+ \n\t\u3000", max_size=60)


def ends_in_plus(words: Sequence[str]) -> bool:
    return words[-1].endswith("+")


def parts_of(pieces: list[str]) -> list[BlockEvent]:
    splitter = BlockSplitter(ends_in_plus, LIMITS)
    parts = [part for piece in pieces for part in splitter.push(piece)]
    return parts + list(splitter.flush())


@given(text=texts, at=places)
def test_any_cutting_gives_the_same_blocks(text: str, at: list[int]) -> None:
    assert parts_of(cut(text, at)) == parts_of([text])


@given(text=texts)
def test_a_block_is_what_stands_at_its_place(text: str) -> None:
    for part in parts_of([text]):
        if isinstance(part, TextBlock):
            assert text[part.raw_start : part.raw_end].split() == part.text.split(" ")
            begins_word = part.raw_start == 0 or text[part.raw_start - 1] in WHITE_SPACE
            assert part.no_space_before is not begins_word
        else:
            assert text[part.raw_start] == ("\n" if isinstance(part, LineBreak) else part.character)


@given(text=texts)
def test_the_start_of_each_block_is_told_first(text: str) -> None:
    parts = [part for part in parts_of([text]) if not isinstance(part, LineBreak)]
    for before, part in pairwise(parts):
        if isinstance(part, TextBlock):
            assert part.no_space_before or before == BlockStart(part.text[0], part.raw_start)
        else:
            assert isinstance(before, TextBlock)


@given(text=texts)
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
