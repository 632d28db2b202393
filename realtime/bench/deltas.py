"""Text as a language model writes it: word pieces of at most four characters."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus.txt")
MAX_PIECE_CHARS = 4


def read_corpus(path: Path) -> list[str]:
    """One utterance a line. Raises ``OSError``, or ``ValueError`` when there is none."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    texts = [line for line in lines if line]
    if not texts:
        raise ValueError(f"{path} holds no text")
    return texts


def pieces(text: str) -> list[str]:
    """The text cut before each word, and longer words cut again."""
    words = re.findall(r"\s*\S+", text)
    return [word[at : at + MAX_PIECE_CHARS] for word in words for at in range(0, len(word), MAX_PIECE_CHARS)]


def first_word_is_final_at(deltas: Sequence[str]) -> int:
    """The index of the delta that begins the second word; the number of deltas when there is none (then the end of the
    text makes the first word final)."""
    seen = False
    for index, delta in enumerate(deltas):
        if seen and delta[:1].isspace():
            return index
        seen = seen or not delta.isspace()
    return len(deltas)


def endless(texts: Sequence[str], seed: int) -> Iterator[str]:
    """All texts in random order, again and again."""
    rng = random.Random(seed)
    while True:
        yield from rng.sample(texts, len(texts))
