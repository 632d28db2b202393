"""Texts for tests: kinds that cost the most to read, and ways of cutting a text into pieces."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

KINDS = {
    "words": "word ",
    "brackets": "( ) ",
    "Arabic": "م ",
    "combining marks": "a\u0301\u0302 ",
    "marks alone": "\u0301\u0327",
    "emoji": "😀 ",
    "joined emoji": "👨\u200d👩\u200d👧",
    "joiners": "a\u200d ",
    "nested quotes": "\"'“‘ ",
    "digits": "7",
    "long numbers": "1234567890123456789 ",
    "sums": "$1 ",
    "units": "5 km/h ",
    "addresses": "https://www.example.com/a/b?c=d ",
    "abbreviations": "Dr. e.g. U.S. ",
    "Chinese without stops": "今天天气很好",
    "control characters": "\x01 ",
    "mixed scripts": "aяא今ह ",
    "a long token": "a",
    "line breaks": "a\n",
    "ellipses": "... ",
    "expanding compositions": "\u1e9b\u0323\ufdfa ",
    "raised digits": "x⁹",
    "fractions": "½",
    "open tags": "<a",
    "e-mail": "a@b.",
}


def text_of(unit: str, num_chars: int = 50_000) -> str:
    return (unit * (num_chars // len(unit) + 1))[:num_chars]


places = st.lists(st.integers(0, 400), max_size=40)


def cut(text: str, at: list[int]) -> list[str]:
    edges = sorted({place % (len(text) + 1) for place in at} | {0, len(text)})
    return [text[start:end] for start, end in pairwise(edges)]
