"""Words that are not said as they are written: abbreviations, initials, acronyms, Roman numerals, codes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sessions.text.lexicon import (
    ABBREVIATIONS,
    CLOSING_ABBREVIATIONS,
    COMMON_WORDS,
    MIXED_CASE_WORDS,
    NUMBERED_ABBREVIATIONS,
    READ_AS_WORDS,
    ROMAN_CARDINAL_AFTER,
    ROMAN_ORDINAL_AFTER,
    SAINT_PLACES,
    SPELLED,
    SPOKEN_ACRONYMS,
)
from sessions.text.numbers import cardinal, ordinal
from sessions.text.quantities import say_code

_MIN_WORD_LETTERS = 6
"""Capitals of this length are read as a word."""


def _any_of(words: Mapping[str, str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


_ABBREVIATION = re.compile(rf"(?<![\w.])(?:{_any_of(ABBREVIATIONS)})(?![\w])")
_CLOSING = re.compile(rf"(?<![\w.])({_any_of(CLOSING_ABBREVIATIONS)})(?![\w])")
_NUMBERED = re.compile(rf"(?<![\w.])({_any_of(NUMBERED_ABBREVIATIONS)})\s?(?=\d)")
_DOCTOR = re.compile(r"(?<![\w.])Dr\.(?P<next>\s[A-Z])?")
_SAINT = re.compile(r"(?<![\w.])St\.(?P<next>\s[A-Z])?")
_INITIALS = re.compile(r"(?<![\w.])(?:[A-Za-z]\.){2,}")
_INITIAL = re.compile(r"(?<![\w.'])[A-HJ-Z]\.(?=\s(?P<next>[A-Z][\w'’]*))")
_TWO_INITIALS = re.compile(r"(?<![\w.'])([A-Z])\.(?=\s[A-Z]\.)")
_SHARP = re.compile(r"(?<!\w)([CFJ])#(?!\w)")
_PLUS_PLUS = re.compile(r"(?<!\w)([CGg])\+\+")
_HASH = re.compile(r"#\s?(?=\d)")
_HASHTAG = re.compile(r"#(?=[A-Za-z_])")
_ELLIPSIS = re.compile(r"(?:\.\s?){2,}\.|\.\.|…")
_PLURAL_IN_BRACKETS = re.compile(r"(?<=[A-Za-z])\(e?s\)")
_ROMAN = re.compile(r"(?<![\w.'-])([IVX]{1,6})(?![\w'-])")
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10}

_CODE = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]+(?![A-Za-z0-9])")
_NAME_NUMBER = re.compile(r"(?<=[A-Za-z])-(?=\d)")
_CODE_PARTS = re.compile(r"[A-Za-z]+|\d+")
_MAX_CODE_PARTS = 3
_WORD = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)*")
_CAPITALS = re.compile(r"[A-Z]{2,}")
_TRAILING_CAPITALS = re.compile(r"([A-Z]?[a-z]{2,})([A-Z]{2,})(s?)")


def say_abbreviations(text: str, previous_word: str) -> str:
    """``previous_word`` is the raw word in front of this text; empty at the beginning."""
    text = _ELLIPSIS.sub(_ellipsis, text)
    text = _PLURAL_IN_BRACKETS.sub("s", text)
    text = _NUMBERED.sub(lambda match: f"{NUMBERED_ABBREVIATIONS[match[1]]} ", text)
    text = _ABBREVIATION.sub(lambda match: ABBREVIATIONS[match[0]], text)
    text = _CLOSING.sub(_closing, text)
    text = _DOCTOR.sub(lambda match: _title(match, "Doctor", "Drive"), text)
    text = _SAINT.sub(lambda match: _saint(match, previous_word), text)
    text = _INITIALS.sub(_initials, text)
    text = _TWO_INITIALS.sub(r"\1", text)
    text = _INITIAL.sub(_initial, text)
    text = _PLUS_PLUS.sub(r"\1 plus plus", _SHARP.sub(r"\1 sharp", text))
    return _HASHTAG.sub(" hashtag ", _HASH.sub(" number ", text))


def say_names(text: str, previous_word: str) -> str:
    """Codes, Roman numerals and capitals; digits that stand alone stay."""
    text = _roman(text, previous_word)
    text = _CODE.sub(_code, _NAME_NUMBER.sub(" ", text))
    return _WORD.sub(lambda match: say_word(match[0]), text)


def say_word(word: str) -> str:
    """One word of letters: spelled, read, or as it is."""
    if word in MIXED_CASE_WORDS:
        return MIXED_CASE_WORDS[word]
    if word.islower() or word.istitle():
        return word
    base, suffix = _without_suffix(word)
    if _CAPITALS.fullmatch(base):
        return _capitals(base) + suffix
    if match := _TRAILING_CAPITALS.fullmatch(word):
        return f"{match[1]} {_capitals(match[2])}{_plural_s(match[3])}"
    return word


def _without_suffix(word: str) -> tuple[str, str]:
    """Plural and genitive of an acronym: "APIs", "NASA's"."""
    if word.endswith("'s"):
        return word[:-2], "'s"
    if word.endswith("s"):
        return word[:-1], _plural_s("s")
    return word, ""


def _plural_s(suffix: str) -> str:
    return f"'{suffix}" if suffix else ""


def _capitals(word: str) -> str:
    if word in SPOKEN_ACRONYMS:
        return SPOKEN_ACRONYMS[word]
    if word in SPELLED:
        return " ".join(word)
    if word in READ_AS_WORDS or word.lower() in COMMON_WORDS or _reads_as_word(word):
        return word.lower() if word.lower() in COMMON_WORDS else word.capitalize()
    return " ".join(word)


def _reads_as_word(word: str) -> bool:
    return len(word) >= _MIN_WORD_LETTERS and any(letter in "AEIOUY" for letter in word)


def _ellipsis(match: re.Match[str]) -> str:
    """A pause where the sentence goes on, which a small letter tells, and its end where it does not."""
    rest = match.string[match.end() :].lstrip()
    return ", " if rest[:1].islower() else ". "


def _closing(match: re.Match[str]) -> str:
    written = match[1]
    rest = match.string[match.end() :].lstrip()
    next_word = re.match(r"[A-Za-z']*", rest)
    ends = not rest or (rest[0].isupper() and (written == "etc." or _is_common(next_word)))
    return CLOSING_ABBREVIATIONS[written] + ("." if ends else "")


def _is_common(word: re.Match[str] | None) -> bool:
    return bool(word) and word[0].lower() in COMMON_WORDS if word else False


def _title(match: re.Match[str], before_name: str, after_name: str) -> str:
    if match["next"]:
        return before_name + match["next"]
    return f"{after_name}." if match.end() == len(match.string) else after_name


def _saint(match: re.Match[str], previous_word: str) -> str:
    before = match.string[: match.start()].split()
    previous = before[-1] if before else previous_word
    is_street = previous[:1].isupper() and previous[-1:].isalpha() and previous not in SAINT_PLACES
    if match["next"] and not (is_street and before and before[0][:1].isdigit()):
        return "Saint" + match["next"]
    return _title(match, "Street", "Street")


def _initials(match: re.Match[str]) -> str:
    letters = " ".join(match[0].replace(".", "").upper())
    rest = match.string[match.end() :].lstrip()
    ends = not rest or (rest[0].isupper() and _is_common(re.match(r"[A-Za-z']*", rest)))
    return f"{letters}." if ends else letters


def _initial(match: re.Match[str]) -> str:
    """The dot of "J. Smith" goes, that of "vitamin C. It" stays."""
    return match[0] if match["next"].lower() in COMMON_WORDS else match[0][0]


def _roman(text: str, previous_word: str) -> str:
    def say(match: re.Match[str]) -> str:
        before = text[: match.start()].split()
        previous = before[-1] if before else previous_word
        value = roman_value(match[1])
        if value and previous.lower() in ROMAN_CARDINAL_AFTER:
            return cardinal(value)
        if value and previous in ROMAN_ORDINAL_AFTER and (len(match[1]) > 1 or match[1] != "I"):
            return f"the {ordinal(value)}"
        return match[0]

    return _ROMAN.sub(say, text)


def roman_value(text: str) -> int:
    """0 for what is no Roman numeral below 40."""
    if not re.fullmatch(r"X{0,3}(?:IX|IV|V?I{0,3})", text):
        return 0
    values = [_ROMAN_VALUES[letter] for letter in text]
    later = [*values[1:], 0]
    return sum(-value if value < after else value for value, after in zip(values, later, strict=True))


def _code(match: re.Match[str]) -> str:
    parts = _CODE_PARTS.findall(match[0])
    if len(parts) > _MAX_CODE_PARTS:
        return " ".join(" ".join(part.upper()) if part.isalpha() else say_code(part) for part in parts)
    return " ".join(_code_word(part) if part.isalpha() else say_code(part) for part in parts)


def _code_word(part: str) -> str:
    return part.upper() if len(part) == 1 else say_word(part)
