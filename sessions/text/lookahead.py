"""Which words belong to the next one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sessions.text.lexicon import (
    CLOSING_ABBREVIATIONS,
    CURRENCY_CODES,
    CURRENCY_SIGNS,
    MONTH_ABBREVIATIONS,
    MONTHS,
    NUMBERED_ABBREVIATIONS,
    STREETS,
    UNITS,
    WEEKDAYS,
)
from sessions.text.markup import is_open

_HAS_DIGIT = re.compile(r"[\d½⅓⅔¼¾]")
_ENDS_CLAUSE = re.compile(r"[.,;:!?](?:[)\]}\"'”’*_]*)$")
_OPERATOR = re.compile(r"[-–—+×x*/=<>~&%^]")
_MONTH_DAY = re.compile(rf"(?:{'|'.join(MONTHS)}|(?:{'|'.join(MONTH_ABBREVIATIONS)})\.?) \d{{1,2}}(?:st|nd|rd|th)?,")
# The number of a house and the name of a street, or an amount: "221B Baker", "7B Llama".
_HOUSE = re.compile(r"\d{1,5}[A-Z](?: [A-Z][\w.'-]*){0,2} [A-Z][\w'-]*")
_NEEDS_NEXT = frozenset(
    [*MONTHS, *MONTH_ABBREVIATIONS, *(f"{month}." for month in MONTH_ABBREVIATIONS)]
    + [*CLOSING_ABBREVIATIONS, *NUMBERED_ABBREVIATIONS, *CURRENCY_SIGNS, *CURRENCY_CODES]
    + [f"{day}{mark}" for day in WEEKDAYS for mark in (",", ".,", ".", "")]
    + ["Dr.", "St.", "#", "a.m.", "p.m.", "A.M.", "P.M.", "am.", "pm.", "+", "-", "~", "sq"]
)
_DOTTED_UNITS = frozenset(["in.", *(f"{unit}." for unit in UNITS)])
_INITIALS = re.compile(r"[\"'(*_]*(?:[A-HJ-Z]\.|(?:[A-Za-z]\.){2,})$")
_ELLIPSIS = re.compile(r"(?:\.\.|…)[)\]}\"'”’*_]*$")


def needs_next_word(words: Sequence[str]) -> bool:
    """Return whether the pronunciation of the last word may depend on the next one."""
    last = words[-1]
    text = " ".join(words)
    if is_open(text) or last in _NEEDS_NEXT or _INITIALS.match(last) or _ELLIPSIS.search(last):
        return True
    if _HAS_DIGIT.search(last):
        return not _ENDS_CLAUSE.search(last) or bool(_MONTH_DAY.fullmatch(" ".join(words[-2:])))
    if _HOUSE.fullmatch(text) and last not in STREETS:
        return True
    return bool(_HAS_DIGIT.search(text)) and (last in _DOTTED_UNITS or bool(_OPERATOR.fullmatch(last)))
