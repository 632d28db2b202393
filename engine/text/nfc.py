"""Canonical composition (NFC) of text that arrives in pieces."""

from __future__ import annotations

import re
import unicodedata

from tokenizers.normalizers import NFC

# Unicode's White_Space property, which is fixed for good; ``str.isspace`` counts some control characters too.
WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"

# Characters that no mark composes with: they need not wait for what follows.
_INERT = frozenset(WHITE_SPACE) | {chr(code) for code in range(128) if not chr(code).isalpha()} - set("<=>")

_SURROGATE = re.compile("[\ud800-\udfff]")
_COMPOSE = NFC()


def compose(text: str) -> str:
    """NFC of a whole text; lone surrogates, which no encoder takes, become U+FFFD."""
    if text.isascii():
        return text
    return str(_COMPOSE.normalize_str(_SURROGATE.sub("\ufffd", text)))


def starts_cluster(character: str) -> bool:
    """Return whether nothing before this character can compose with it or be reordered past it."""
    if "\u1160" <= character <= "\u11ff" or "\U00016d63" <= character <= "\U00016d6a":
        return False  # Hangul and Kirat Rai vowels and finals are letters that compose
    return not unicodedata.category(character).startswith("M")


class NfcStream:
    """Holds the last cluster back, because a combining mark may follow."""

    def __init__(self) -> None:
        self._held: list[str] = []

    def push(self, text: str) -> str:
        start = _last_cluster_start(text)
        if start is None:
            self._held.append(text)
            return ""
        settled = "".join((*self._held, text[:start]))
        self._held = [text[start:]]
        return compose(settled)

    def finish(self) -> str:
        rest, self._held = "".join(self._held), []
        return compose(rest)


def _last_cluster_start(text: str) -> int | None:
    if text[-1:] in _INERT:
        return len(text)
    if text.isascii():
        return len(text) - 1 if text else None
    return next((place for place in reversed(range(len(text))) if starts_cluster(text[place])), None)
