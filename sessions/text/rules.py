"""Rewriting by a list of rules, applied in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]

# A number as it is written in English: 1,234.5 or 12 or .5
NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"

DASH = r"\s?[-–—]\s?"


def apply_rules(rules: Iterable[Rule], text: str) -> str:
    for pattern, replacement in rules:
        text = pattern.sub(replacement, text)
    return text


def alternation(words: Iterable[str]) -> str:
    """A pattern of these words, the longest first."""
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
