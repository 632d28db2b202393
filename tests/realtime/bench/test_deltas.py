from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.bench.plan import CORPUS, MAX_PIECE_CHARS, endless, first_word_is_final_at, pieces, read_corpus


@given(st.text("ab ,.\n"))
def test_pieces_are_the_text_without_its_last_white_space(text: str) -> None:
    found = pieces(text)
    assert "".join(found) == text.rstrip()
    assert all(0 < len(piece) <= MAX_PIECE_CHARS for piece in found)


def test_words_begin_pieces() -> None:
    assert pieces("Hello there, you.") == ["Hell", "o", " the", "re,", " you", "."]


@pytest.mark.parametrize(
    ("text", "index"), [("Hello there", 2), ("Hi you", 1), ("Hello", 2), ("Hi", 1), (" Hi you", 1), ("", 0)]
)
def test_the_first_word_is_final_when_the_next_begins(text: str, index: int) -> None:
    assert first_word_is_final_at(pieces(text)) == index


def test_the_corpus_reads_like_an_agent() -> None:
    texts = read_corpus(CORPUS)
    assert len(texts) >= 20
    assert all(text.isascii() and 40 <= len(text) <= 300 and text[-1] in ".?!" for text in texts)


def test_a_corpus_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(ValueError, match=r"empty\.txt holds no text"):
        read_corpus(tmp_path / "empty.txt")


def test_every_text_comes_once_in_each_round() -> None:
    texts = ["a", "b", "c"]
    first = list(itertools.islice(endless(texts, seed=1), 6))
    assert sorted(first[:3]) == sorted(first[3:]) == texts
    assert first == list(itertools.islice(endless(texts, seed=1), 6))
