"""Which texts the training data holds: the normaliser's output, as sentences of 3 to 300 characters."""

from __future__ import annotations

import re

MIN_CHARACTERS, MAX_CHARACTERS = 3, 300
SENTENCE = re.compile(
    r"[A-Za-z]"  # begins with a letter
    r"(?:[A-Za-z]|'(?=[A-Za-z ,.?!;:])|-(?=[A-Za-z])|[,;:](?= )|[.?!](?= )| (?=[A-Za-z-]))*"
    r"[.?!,;:]?"
)


def is_speakable(text: str) -> bool:
    """Letters, spaces and ``. , ? ! ; : ' -`` alone, single spaces, marks only where prose has them."""
    return MIN_CHARACTERS <= len(text) <= MAX_CHARACTERS and SENTENCE.fullmatch(text) is not None
