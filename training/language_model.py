"""A bigram language model of a few sentences, in the ARPA format that recognisers read."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

START, END = "<s>", "</s>"
DISCOUNT = 0.3


def bigram_arpa(sentences: Sequence[Sequence[str]]) -> str:
    """Absolute discounting: DISCOUNT of each follower's count goes to all words by their own frequency."""
    singles, pairs = Counter[str](), defaultdict[str, Counter[str]](Counter)
    for words in sentences:
        padded = [START, *words, END]
        singles.update(padded[1:])
        for left, right in pairwise(padded):
            pairs[left][right] += 1
    total = singles.total()
    chance = {word: count / total for word, count in singles.items()}
    lines = [f"\\data\\\nngram 1={len(chance) + 1}\nngram 2={sum(map(len, pairs.values()))}\n\n\\1-grams:"]
    for word in [START, *sorted(chance)]:
        own = math.log10(chance[word]) if word in chance else -99.0
        lines.append(f"{own:.4f} {word} {math.log10(_backoff_mass(pairs[word])):.4f}")
    lines.append("\n\\2-grams:")
    for left in sorted(pairs):
        for right, count in sorted(pairs[left].items()):
            seen = (count - DISCOUNT) / pairs[left].total() + _backoff_mass(pairs[left]) * chance[right]
            lines.append(f"{math.log10(seen):.4f} {left} {right}")
    return "\n".join([*lines, "\n\\end\\\n"])


def _backoff_mass(followers: Counter[str]) -> float:
    """The share of chance left to followers never seen."""
    return DISCOUNT * len(followers) / followers.total() if followers else 1.0
