"""The spoken form that ``<say-as>`` asks for: in English words, or character by character in any language."""

from __future__ import annotations

import re
from collections.abc import Callable

from sessions.text.acronyms import roman_value
from sessions.text.lexicon import MONTHS, SYMBOLS
from sessions.text.normalizer import normalize
from sessions.text.numbers import MAX_CARDINAL_DIGITS, ONES, cardinal, digits, grouped_digits, number, ordinal, year

_CARDINAL = re.compile(r"(?P<minus>[-−]?)\+?(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)")
_ORDINAL = re.compile(rf"(\d{{1,{MAX_CARDINAL_DIGITS}}})(?:st|nd|rd|th)?", re.IGNORECASE)
_DATE_FORMATS = frozenset("mdy dmy ymd md dm ym my d m y".split())
_COMPACT_DATE = {"ymd": (4, 2, 2), "mdy": (2, 2, 4), "dmy": (2, 2, 4), "ym": (4, 2), "my": (2, 4), "md": (2, 2)}
_COMPACT_DATE["dm"] = (2, 2)
_EXTENSION = re.compile(r"^(?P<number>.*?)\s*(?:ext\.?|x)\s*(?P<extension>\d{1,8})$", re.IGNORECASE)
# Names of signs that a text does not speak, or as a pause.
_SIGNS = {
    ".": "dot",
    ",": "comma",
    "-": "dash",
    "_": "underscore",
    "/": "slash",
    ":": "colon",
    ";": "semicolon",
    "!": "exclamation mark",
    "?": "question mark",
    "'": "apostrophe",
    '"': "quote",
    "*": "star",
    "#": "hash",
    "|": "bar",
    "(": "open bracket",
    ")": "close bracket",
}


def say_as(text: str, interpret_as: str, layout: str, is_english: bool) -> str | None:
    """Return the spoken form; ``None`` if there is none of this kind. ``layout`` is the attribute ``format``."""
    kind = interpret_as.strip().lower()
    text = " ".join(text.split())
    if kind in _BY_CHARACTER:
        return _BY_CHARACTER[kind](text, is_english)
    if not is_english or kind not in _IN_ENGLISH:
        return None
    return _IN_ENGLISH[kind](text, layout.strip().lower())


def _characters(text: str, is_english: bool) -> str | None:
    spoken = [_character(character, is_english) for character in text if not character.isspace()]
    return " ".join(filter(None, spoken)) or None


def _character(character: str, is_english: bool) -> str:
    if not is_english:
        return character.upper()
    if character in "0123456789":
        return ONES[int(character)]
    sign = _SIGNS.get(character) or SYMBOLS.get(character, "").strip(" ¦.,")
    return sign or character.upper()


def _digits(text: str, is_english: bool) -> str | None:
    found = [character for character in text if character.isdecimal()]
    if not found:
        return None
    return digits("".join(str(int(character)) for character in found)) if is_english else " ".join(found)


def _telephone(text: str, is_english: bool) -> str | None:
    match = _EXTENSION.match(text)
    written, extension = (match["number"], match["extension"]) if match else (text, "")
    groups = re.findall(r"[0-9]+", written)
    if not groups:
        return None
    plus = written.startswith("+")
    if not is_english:
        spoken = ", ".join(" ".join(group) for group in groups)
        return ("+ " if plus else "") + spoken + (f", {' '.join(extension)}" if extension else "")
    spoken = ", ".join(map(digits, groups)) if len(groups) > 1 else grouped_digits(groups[0])
    return ("plus " if plus else "") + spoken + (f", extension {digits(extension)}" if extension else "")


def _cardinal(text: str, _: str) -> str | None:
    if value := roman_value(text):
        return cardinal(value)
    match = _CARDINAL.fullmatch(text)
    return None if match is None else ("minus " if match["minus"] else "") + number(match["number"])


def _ordinal(text: str, _: str) -> str | None:
    if value := roman_value(text):
        return ordinal(value)
    match = _ORDINAL.fullmatch(text.replace(",", ""))
    return None if match is None else ordinal(int(match[1]))


def _date(text: str, layout: str) -> str | None:
    layout = layout.replace("yyyy", "y").replace("mm", "m").replace("dd", "d")
    if layout not in _DATE_FORMATS:
        return _normalized(text, layout) if not layout else None
    parts = re.findall(r"\d+", text)
    sizes = _COMPACT_DATE.get(layout, ())
    if len(parts) == 1 and len(parts[0]) == sum(sizes) and len(layout) > 1:
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        parts = [parts[0][start : start + size] for start, size in zip(starts, sizes, strict=True)]
    if len(parts) != len(layout):
        return _normalized(text, layout)
    return _date_of({field: int(part[:4]) for field, part in zip(layout, parts, strict=True)})


def _date_of(fields: dict[str, int]) -> str | None:
    month, day, year_number = fields.get("m"), fields.get("d"), fields.get("y")
    is_valid = (month is None or 1 <= month <= len(MONTHS)) and (day is None or 1 <= day <= 31)
    if not is_valid:
        return None
    words = [] if month is None else [MONTHS[month - 1]]
    if day is not None:
        words.append(ordinal(day) if month is not None else f"the {ordinal(day)}")
    spoken = " ".join(words)
    if year_number is None:
        return spoken
    in_words = year(_full_year(year_number)) if _full_year(year_number) >= 1000 else cardinal(year_number)
    return f"{spoken}{', ' if day is not None else ' '}{in_words}".strip()


def _full_year(number: int) -> int:
    if number >= 100:
        return number
    return number + (2000 if number < 70 else 1900)


def _normalized(text: str, _: str) -> str | None:
    return normalize(text).rstrip(".,") or None


_BY_CHARACTER: dict[str, Callable[[str, bool], str | None]] = {
    "characters": _characters,
    "spell-out": _characters,
    "verbatim": _characters,
    "digits": _digits,
    "telephone": _telephone,
}
_IN_ENGLISH: dict[str, Callable[[str, str], str | None]] = {
    "cardinal": _cardinal,
    "number": _cardinal,
    "ordinal": _ordinal,
    "date": _date,
    "time": _normalized,
    "currency": _normalized,
    "unit": _normalized,
    "address": _normalized,
}
INTERPRETATIONS = frozenset([*_BY_CHARACTER, *_IN_ENGLISH])
