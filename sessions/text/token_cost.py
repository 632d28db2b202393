"""Estimates text tokens per character without the tokenizer, which belongs to the engine.

No byte-pair tokenizer makes more tokens of a text than it has bytes in UTF-8, and of most scripts it makes that many.
Of those that models are trained on it makes fewer; for them the figures are above what is usual, rare words included.
"""

from __future__ import annotations

import unicodedata

# Costs are in tenths of a token, for whole numbers add up the same however text is cut.
TENTHS = 10
_SPACE, _LETTER, _SIGN = 2, 4, 10
_EUROPEAN, _TWO_BYTES, _WIDE = 6, 12, 12
_ACCENTED_TWICE = range(0x1E00, 0x1F00)
_PUNCTUATION = range(0x2010, 0x2060)
_CYRILLIC = range(0x400, 0x530)


def token_tenths(character: str) -> int:
    code = ord(character)
    if character.isspace():
        return _SPACE
    if code < 0x80:
        return _LETTER if character.isalpha() else _SIGN
    if code < 0x250 or code in _CYRILLIC:
        return _EUROPEAN
    if code < 0x800 or code in _ACCENTED_TWICE:
        return _TWO_BYTES
    if code in _PUNCTUATION:
        return _SIGN
    if code < 0x10000 and unicodedata.east_asian_width(character) in "WF":
        return _WIDE
    return TENTHS * len(character.encode("utf-8", "surrogatepass"))


_ASCII_TENTHS = bytes(token_tenths(chr(code)) for code in range(0x80)).ljust(0x100)


def text_tenths(text: str) -> int:
    """Return the sum over the characters of a text."""
    if text.isascii():
        return sum(text.encode().translate(_ASCII_TENTHS))
    return sum(map(token_tenths, text))
