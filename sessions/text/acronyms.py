"""Words of capitals and codes in one block of text: spelled, read as a word, or numbered (Henry VIII)."""

from __future__ import annotations

import re
from itertools import pairwise

from sessions.text.lexicon import (
    COMMON_WORDS,
    MIXED_CASE_WORDS,
    READ_AS_WORDS,
    ROMAN_CARDINAL_AFTER,
    ROMAN_ORDINAL_AFTER,
    SPELLED,
    SPELLED_UNLESS_SHOUTING,
    SPOKEN_ACRONYMS,
)
from sessions.text.numbers import ONES, cardinal, digits, ordinal, year

# Capitals of this length are read as a word if they hold a vowel.
_MIN_WORD_LETTERS = 5
# A code of more runs of letters and digits is spelled.
_MAX_CODE_PARTS = 3
_MAX_CODE_DIGITS = 4

_ROMAN = re.compile(r"(?<![\w.'-])[IVX]{1,6}(?![\w'-])")
_ROMAN_BELOW_40 = re.compile(r"X{0,3}(?:IX|IV|V?I{0,3})")
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10}
_PLAIN_ROMAN = frozenset("II III VII VIII XII XIII".split())
_TIME_ZONE = re.compile(r"(?<=UTC|GMT)[-−](?=\d)")
_NAME_NUMBER = re.compile(r"(?<=[A-Za-z])-(?=\d)")
_CODE = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]+")
_CODE_PARTS = re.compile(r"[A-Za-z]+|\d+")
_WORD = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)*")
_CAPITALS = re.compile(r"[A-Z]{2,}")
_TRAILING_CAPITALS = re.compile(r"([A-Z]?[a-z]{2,})([A-Z]{2,})")


def verbalize_acronyms(text: str, previous_word: str) -> str:
    """``previous_word`` is the raw word in front of this text. Digits that stand alone stay."""
    text = _ROMAN.sub(lambda match: _roman(match, previous_word), text)
    text = _NAME_NUMBER.sub(" ", _TIME_ZONE.sub(" minus ", text))
    text = _CODE.sub(_code, text)
    return _WORD.sub(lambda match: verbalize_word(match[0], _word_before(match, previous_word)), text)


def verbalize_word(word: str, previous_word: str = "") -> str:
    """Verbalize a word of letters, which may hold an apostrophe."""
    if word in MIXED_CASE_WORDS:
        return MIXED_CASE_WORDS[word]
    if word in SPELLED_UNLESS_SHOUTING and _is_shouted(previous_word):
        return SPELLED_UNLESS_SHOUTING[word]
    if word.islower() or len(word) == 1:
        return word
    if word.isupper() and "'" in word and not word.endswith("'S"):
        return word.capitalize() if word.startswith("I'") else word.lower()
    base, suffix = _without_suffix(word)
    if _CAPITALS.fullmatch(base):
        return _capitals(base) + suffix
    if match := _TRAILING_CAPITALS.fullmatch(base):
        return f"{match[1]} {_capitals(match[2])}{suffix}"
    return word


def _word_before(match: re.Match[str], previous_word: str) -> str:
    before = match.string[: match.start()].rsplit(None, 1)
    return before[-1] if before else previous_word


def _is_shouted(word: str) -> bool:
    letters = word.strip("\"'*_.,;:!?")
    return letters.isupper() and letters.lower() in COMMON_WORDS


def _without_suffix(word: str) -> tuple[str, str]:
    """Plural and genitive of an acronym: "APIs", "NASA's"."""
    base = word.removesuffix("s").removesuffix("'")
    return (base, "'s") if base != word else (word, "")


def _capitals(word: str) -> str:
    if word in SPOKEN_ACRONYMS:
        return SPOKEN_ACRONYMS[word]
    if word in READ_AS_WORDS:
        return word.capitalize()
    is_spelled = word in SPELLED or word in SPELLED_UNLESS_SHOUTING
    if not is_spelled and (word.lower() in COMMON_WORDS or _reads_as_word(word)):
        return word.lower()
    return " ".join(word)


def _reads_as_word(word: str) -> bool:
    return len(word) >= _MIN_WORD_LETTERS and any(letter in "AEIOUY" for letter in word)


def _roman(match: re.Match[str], previous_word: str) -> str:
    previous = _word_before(match, previous_word)
    value = roman_value(match[0])
    if value and previous.lower() in ROMAN_CARDINAL_AFTER:
        return cardinal(value)
    if value and previous in ROMAN_ORDINAL_AFTER and match[0] != "I":
        return f"the {ordinal(value)}"
    return cardinal(value) if match[0] in _PLAIN_ROMAN else match[0]


def roman_value(text: str) -> int:
    """0 for what is no Roman numeral below 40."""
    if not _ROMAN_BELOW_40.fullmatch(text):
        return 0
    values = [_ROMAN_VALUES[letter] for letter in text]
    return sum(-value if value < after else value for value, after in pairwise([*values, 0]))


def _code(match: re.Match[str]) -> str:
    parts = _CODE_PARTS.findall(match[0])
    is_spelled = len(parts) > _MAX_CODE_PARTS
    return " ".join(_code_letters(part, is_spelled) if part.isalpha() else code_digits(part) for part in parts)


def _code_letters(part: str, is_spelled: bool) -> str:
    if is_spelled or len(part) == 1:
        return " ".join(part.upper())
    return verbalize_word(part)


def code_digits(run: str) -> str:
    """Digits inside a name such as A320 or GPT-4: "three twenty", "four"."""
    if run.startswith("0") or len(run) > _MAX_CODE_DIGITS:
        return digits(run)
    value = int(run)
    head, rest = divmod(value, 100)
    if head == 0 or (rest == 0 and head < 10):
        return cardinal(value)
    if rest == 0:
        return year(value)
    return f"{cardinal(head)} {'oh ' + ONES[rest] if rest < 10 else cardinal(rest)}"
