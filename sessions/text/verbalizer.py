"""Applies the rules that turn a block of text into its spoken form."""

from __future__ import annotations

import re
import unicodedata

from sessions.text.abbreviations import verbalize_abbreviations
from sessions.text.acronyms import verbalize_acronyms
from sessions.text.addresses import verbalize_links, verbalize_phone_numbers
from sessions.text.dates import verbalize_dates
from sessions.text.lexicon import (
    ABBREVIATIONS,
    CLOSING_ABBREVIATIONS,
    LATIN_LETTERS,
    MIXED_CASE_WORDS,
    MONTH_ABBREVIATIONS,
    SYMBOLS,
    WEEKDAYS,
)
from sessions.text.markup import strip_markup
from sessions.text.measures import verbalize_measures, verbalize_money
from sessions.text.number_formats import verbalize_before_units, verbalize_number_formats, verbalize_numbers
from sessions.text.rules import alternation

_PLAIN = re.compile(r"(?:[A-Z]?[a-z]+|I)(?:'[a-z]+)?[,.;:!?]?")
_NEVER_PLAIN = frozenset(
    [*ABBREVIATIONS, *CLOSING_ABBREVIATIONS, *MIXED_CASE_WORDS, "Dr.", "St."]
    + [f"{short}." for short in (*MONTH_ABBREVIATIONS, *WEEKDAYS)]
)
_QUOTES = str.maketrans("‘’‛ʼ′“”„«»″‑‐", "'" * 5 + '"' * 6 + "--", "\xad")
_SYMBOL = re.compile(alternation(SYMBOLS))
_EMOTICON = re.compile(r"(?<!\S)(?:[:;=8][-o^']?[)(DPp\]\[|/\\*]+|<3+|\^_+\^)(?=[.,!?]*(?:\s|$))")
_REPEATED = re.compile(r"([^\w\s.,;:!?\-¦])\1+")
_LATIN = re.compile("|".join(LATIN_LETTERS))
_BRACKETS = re.compile(r"[()\[\]{}]")
_NO_ARGUMENTS = re.compile(r"(?<=\w)\(\)")
_OPENING = re.compile(r"(?<!\S)\(")
_CLOSING = re.compile(r"\)(?!\w)")
_DASHES = re.compile(r"--+|(?<!\S)-+(?!\S)")
_SLASH = re.compile(r"(?<!\w)/(?=\w)")
_INNER_DOT = re.compile(r"(?<=[a-z])\.(?=[a-z])")
_INNER_MARK = re.compile(r"(?<=[A-Za-z])([.?!,;:])(?=[A-Za-z])")


def verbalize(text: str, previous_word: str) -> str:
    """Verbalize a block to words and punctuation; other characters are dropped."""
    if _PLAIN.fullmatch(text) and text not in _NEVER_PLAIN and text.rstrip(".,;:!?") not in _NEVER_PLAIN:
        return text
    if text == ">" and previous_word[:1].isupper():
        return "¦"
    text = _EMOTICON.sub("", text)
    text = strip_markup(_plain_digits(text.translate(_QUOTES)))
    text = verbalize_phone_numbers(verbalize_dates(verbalize_links(text)))
    text = verbalize_money(verbalize_before_units(text))
    text = verbalize_number_formats(verbalize_measures(text, previous_word))
    text = verbalize_abbreviations(text)
    text = verbalize_symbols(_fold(text))
    text = verbalize_acronyms(text, previous_word)
    return verbalize_numbers(text)


def verbalize_symbols(text: str) -> str:
    text = _REPEATED.sub(lambda match: match[1] if len(match[0]) == 2 else " ", text)
    text = _SYMBOL.sub(lambda match: SYMBOLS[match[0]], text)
    text = _DASHES.sub(" ¦ ", text)
    text = _CLOSING.sub(" ¦ ", _OPENING.sub(" ¦ ", _NO_ARGUMENTS.sub("", text)))
    text = _SLASH.sub(" slash ", _BRACKETS.sub(" ", text))
    return _INNER_MARK.sub(r"\1 ", _INNER_DOT.sub(" dot ", text))


def _plain_digits(text: str) -> str:
    """Digits of every script as 0 to 9."""
    if text.isascii():
        return text
    return "".join(str(unicodedata.decimal(character, character)) for character in text)


def _fold(text: str) -> str:
    """Letters with marks, wide forms and the like as plain Latin letters, as far as there are any."""
    if text.isascii():
        return text
    text = _SYMBOL.sub(lambda match: SYMBOLS[match[0]], _LATIN.sub(lambda match: LATIN_LETTERS[match[0]], text))
    return "".join(
        character for character in unicodedata.normalize("NFKD", text) if not unicodedata.combining(character)
    )
