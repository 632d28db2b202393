"""Ways of cutting a text into pieces."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

places = st.lists(st.integers(0, 400), max_size=40)


def cut(text: str, at: list[int]) -> list[str]:
    edges = sorted({place % (len(text) + 1) for place in at} | {0, len(text)})
    return [text[start:end] for start, end in pairwise(edges)]
