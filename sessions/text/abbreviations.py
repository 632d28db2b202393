"""Abbreviations, initials and ellipses in one block of text: said in full, and their dot kept only where it ends."""

from __future__ import annotations

import re

from sessions.text.lexicon import (
    ABBREVIATIONS,
    CLOSING_ABBREVIATIONS,
    COMMON_WORDS,
    NUMBERED_ABBREVIATIONS,
    SPELLED_UNLESS_SHOUTING,
)
from sessions.text.rules import Rule, alternation, apply_rules

# Expansion before a name, and after one.
_TITLES = {"Dr.": ("Doctor", "Drive"), "St.": ("Saint", "Street")}

_WORD = re.compile(r"[A-Za-z']+")
_FRONT = r"(?<![\w.])"


def verbalize_abbreviations(text: str) -> str:
    return apply_rules(_RULES, text)


def is_common_word(word: str) -> bool:
    return word.lower() in COMMON_WORDS or word.upper() in SPELLED_UNLESS_SHOUTING


def _rest(match: re.Match[str]) -> str:
    return match.string[match.end() :].lstrip(" \"'()[]*_")


def _next_word(match: re.Match[str]) -> str:
    found = _WORD.match(_rest(match))
    return found[0] if found else ""


def _ends_sentence(match: re.Match[str]) -> bool:
    """Return whether the dot of an abbreviation also ends the sentence: nothing follows, or a word that is no name."""
    next_word = _next_word(match)
    return not _rest(match) or (next_word[:1].isupper() and is_common_word(next_word))


def _ellipsis(match: re.Match[str]) -> str:
    """Verbalize as a pause before a lower-case letter, where the sentence continues, and as its end elsewhere."""
    next_word = _next_word(match)
    return ", " if next_word[:1].islower() or next_word in ("I", "I'm", "I'll", "I've", "I'd") else ". "


def _closing(match: re.Match[str]) -> str:
    ends = _ends_sentence(match) or (match[0] == "etc." and _rest(match)[0].isupper())
    return CLOSING_ABBREVIATIONS[match[0]] + ("." if ends else "")


def _title(match: re.Match[str]) -> str:
    before_name, after_name = _TITLES[match[0]]
    if _ends_sentence(match):
        return f"{after_name}."
    return before_name if _next_word(match)[:1].isupper() else after_name


def _initials(match: re.Match[str]) -> str:
    letters = " ".join(match[0].replace(".", "").upper())
    return f"{letters}." if _ends_sentence(match) else letters


def _initial(match: re.Match[str]) -> str:
    """The dot of "J. Smith" goes, that of "vitamin C. It" stays."""
    return match[0] if is_common_word(match["next"]) else match[0][0]


_RULES: list[Rule] = [
    (re.compile(r"(?:\.\s?){2,}\.|\.\.|…"), _ellipsis),
    (re.compile(r"(?<!\w)(Mrs?|Ms|Dr|Prof)\.(?=[A-Z])"), r"\1. "),
    (re.compile(r"(?<=[A-Za-z])\(e?s\)"), "s"),
    (
        re.compile(r"(?<!\w)([A-Z]{1,3})&([A-Z]{1,3})(?!\w)"),
        lambda match: f"{' '.join(match[1])} and {' '.join(match[2])}",
    ),
    (re.compile(r"(?<=\b[Hh]e)/(?=she\b)|(?<=\b[Hh]is|\b[Hh]im)/(?=hers?\b)|(?<=\b[Ss]he)/(?=he\b)"), " or "),
    (
        re.compile(rf"{_FRONT}({alternation(NUMBERED_ABBREVIATIONS)})\s?(?=\d|[IVX]{{2,}}\b|[VX]\b)"),
        lambda match: f"{NUMBERED_ABBREVIATIONS[match[1]]} ",
    ),
    (re.compile(rf"{_FRONT}(?:{alternation(ABBREVIATIONS)})(?!\w)"), lambda match: ABBREVIATIONS[match[0]]),
    (re.compile(rf"{_FRONT}(?:{alternation(CLOSING_ABBREVIATIONS)})(?!\w)"), _closing),
    (re.compile(rf"{_FRONT}(?:{alternation(_TITLES)})(?!\w)"), _title),
    (re.compile(rf"{_FRONT}(?:[A-Z]\.){{2,}}"), _initials),
    (re.compile(r"(?<!\w)([A-Z])\.(?=\d)"), r"\1 "),
    (re.compile(r"(?<![\w.'])([A-Z])\.(?=\s[A-Z]\.)"), r"\1"),
    (re.compile(r"(?<![\w.'])(?<![AP] )[A-HJ-Z]\.(?=\s(?P<next>[A-Z][\w']*))"), _initial),
    (re.compile(r"(?<!\w)([CFJ])#(?!\w)"), r"\1 sharp"),
    (re.compile(r"(?<!\w)([CGg])\+\+"), r"\1 plus plus"),
    (re.compile(r"#\s?(?=\d|[A-Za-z]{1,3}[-\d])"), " number "),
    (re.compile(r"#(?=[A-Za-z_]{2})"), " hashtag "),
]
