"""The word list: American English words with parts of speech and how often they are used.

Built by ``training/corpus/build.py`` from SCOWL and WordNet; ``training/corpus/LICENSES.md`` holds their notices.
"""

from __future__ import annotations

import lzma
from functools import cache
from itertools import accumulate
from pathlib import Path
from random import Random

CORPUS = Path(__file__).parent / "corpus"
SLOT_TAGS = {
    "noun": "n",
    "nouns": "p",
    "verb": "v",
    "verbs": "s",
    "verbed": "d",
    "verbing": "g",
    "adjective": "a",
    "adverb": "r",
    "proper": "N",
}
FAMILIARITY_EXPONENT = 0.8
RARE_SHARE = 0.4


class WordList:
    """Words of one kind: most draws favour familiar words, the rest give every word the same chance."""

    def __init__(self, words: list[str], counts: list[int], rare_share: float = RARE_SHARE) -> None:
        self.words = words
        self._cumulative = list(accumulate(count**FAMILIARITY_EXPONENT for count in counts))
        self._rare_share = rare_share

    def draw(self, random: Random) -> str:
        if random.random() < self._rare_share:
            return self.words[int(random.random() * len(self.words))]
        return random.choices(self.words, cum_weights=self._cumulative)[0]


class Lexicon:
    def __init__(self, path: Path = CORPUS / "lexicon.txt.xz") -> None:
        entries = [line.split(" ") for line in lzma.decompress(path.read_bytes()).decode().splitlines()]
        self.words = [entry[0] for entry in entries]
        tagged: dict[str, list[tuple[str, int]]] = {}
        for word, *tags in entries:
            for tag in filter(None, tags):
                tagged.setdefault(tag[0], []).append((word, int(tag[1:])))
        self._slots = {
            slot: WordList([word for word, _ in tagged[tag]], [count for _, count in tagged[tag]])
            for slot, tag in SLOT_TAGS.items()
        }

    def draw(self, slot: str, random: Random) -> str:
        """A word for ``slot``, one of SLOT_TAGS."""
        return self._slots[slot].draw(random)

    def any_word(self, random: Random) -> str:
        """Any word at all, each with the same chance."""
        return self.words[int(random.random() * len(self.words))]


@cache
def default_lexicon() -> Lexicon:
    return Lexicon()
