"""Keeps the benchmark's sentences, and sentences much like them, out of the training text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

SENTENCES = Path(__file__).parents[1] / "benchmarks" / "voice_sentences.txt"
# So many equal words in a row make a sentence too near to a held-out one.
SHARED_RUN_WORDS = 5


def words_of(text: str) -> list[str]:
    return re.findall("[a-z']+", text.lower().replace("-", " "))


def read_sentences(path: Path = SENTENCES) -> list[str]:
    lines = path.read_text().splitlines()
    return [line for line in lines if line and not line.startswith(("#", "["))]


class HeldOut:
    def __init__(self, sentences: Iterable[str]) -> None:
        spoken = [words_of(sentence) for sentence in sentences]
        self._whole = {tuple(words) for words in spoken}
        self._runs = {run for words in spoken for run in _runs(words)}

    def too_near(self, text: str) -> bool:
        """Whether ``text`` is a held-out sentence but for case and marks, or shares a run of words with one."""
        words = words_of(text)
        return tuple(words) in self._whole or any(run in self._runs for run in _runs(words))


def _runs(words: list[str]) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(SHARED_RUN_WORDS)), strict=False)
