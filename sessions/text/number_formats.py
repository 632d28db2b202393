"""Figures without a unit in one block of text: versions, sums, fractions, ratios, ordinals, decades, bare numbers."""

from __future__ import annotations

import re

from sessions.text.lexicon import FRACTION_SIGNS
from sessions.text.numbers import cardinal, digits, grouped_digits, number, ordinal, plural, year
from sessions.text.rules import NUMBER, Rule, alternation, apply_rules

# Digits from which a number without commas that is not round is read digit by digit.
MIN_CODE_DIGITS = 5

# Lakhs and crores: 1,00,000
_INDIAN = re.compile(r"(?<![\w.,])\d{1,2}(?:,\d{2})+,\d{3}(?![\d,])")
_FRACTION_SIGN = re.compile(alternation(FRACTION_SIGNS))
_DOTTED = re.compile(r"(?<![\w.])(?P<lead>[vV]?)(?P<parts>\d{1,6}(?:\.\d{1,6}){2,})(?!\w)")
_SCIENTIFIC = re.compile(r"(?<![\w.])(\d(?:\.\d+)?)[eE]([-+]?\d{1,3})(?!\w)")
_DECADE = re.compile(r"(?<![\w.,])'?(?P<year>[2-9]0|1\d\d0|20\d0|2000)'?s(?!\w)")
_MINUS = re.compile(r"(?<=\d)\s?[-–−]\s?(?=\d)")
_LENGTH = r"\s?(?:ft|in|cm|mm|m|feet|inch|inches|meters)"
_DIMENSION = re.compile(
    rf"(?<=\d)\s?[x×]\s?(?={NUMBER}{_LENGTH}\b)|(?:(?<=ft)|(?<=[^a-z]in)|(?<=cm)|(?<=mm))\s?[x×]\s?(?=\d)"
)
_BY = re.compile(r"(?<=\d)(?<!\b0)x(?=\d)")
_TIMES = re.compile(r"(?<=\d)\s?[×*]\s?(?=\d)|(?<=\d) x (?=\d)")
_FOLD = re.compile(rf"(?<![\w.,])({NUMBER})\s?[x×](?!\w)")
_POWER = re.compile(r"(?<=[\w)])\s?\^\s?(-?)(\d+)")
# Behind a number, a bracket or a single letter; behind a word it is a note's.
_RAISED = re.compile(r"(?<![A-Za-z]{2})(?<=[\w)])(⁻?)([⁰¹²³⁴⁵⁶⁷⁸⁹]+)")
_RAISED_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
_MIXED = re.compile(r"(?<![\w.,/])(\d+)(?: +|-)(\d{1,2})/(\d{1,2})(?![\w/])")
_RATING = re.compile(r"(?<![\w.,/])(\d+\.\d+|[2-9](?=\s?/\s?10)|[1-9]\d(?=\s?/\s?10))\s?/\s?(5|10|100)(?![\w/]|\.\d)")
_FRACTION = re.compile(r"(?<![\w.,/])(\d{1,6})\s?[/⁄]\s?(\d{1,6})(?![\w/]|\.\d)")
_RATIO = re.compile(r"(?<![\w.:])(\d{1,6}):(\d{1,6})(?![\w:])")
_ORDINAL = re.compile(r"(?<![\w.,])(\d{1,3}(?:,\d{3}){1,4}|\d{1,15})(?:st|nd|rd|th|ST|ND|RD|TH)(?!\w)")
_ORDINAL_RANGE = re.compile(r"(?<=\dst|\dnd|\drd|\dth)\s?[-–]\s?(?=\d{1,3}(?:st|nd|rd|th))")
_VERSION = re.compile(r"(?<!\w)[vV](?=\d+(?:\.\d+)*(?!\w))")
_COMPOUND = re.compile(r"(?<![\w.,])(\d[\d,]*(?:\.\d+)?)-(?=[A-Za-z]{2,})")
_YEAR = re.compile(r"(?<![\w.,])(1[1-9]\d\d|20\d\d)(?!\w|[.,]\d)")
_BARE = re.compile(rf"(?<!\w){NUMBER}")

_PARTS = {2: "half", 3: "third", 4: "quarter", 100: "hundredth", 1000: "thousandth"}
_MAX_SPOKEN_DENOMINATOR = 16
_FIXED_PHRASES = {
    ("24", "7"): "twenty-four seven",
    ("9", "11"): "nine eleven",
    ("50", "50"): "fifty-fifty",
    ("20", "20"): "twenty twenty",
}
_READ_AS_DIGITS = {"911": "nine one one", "404": "four oh four"}


def verbalize_before_units(text: str) -> str:
    """Rewrites what the rules for units would misread: ½, versions and IP addresses, "the 1990s"."""
    return apply_rules(_BEFORE_UNITS, text)


def verbalize_number_formats(text: str) -> str:
    """Verbalize numbers with a format: dates, times, money, units."""
    if "=" in text:
        text = _MINUS.sub(" minus ", text)
    return apply_rules(_FIGURES, text)


def verbalize_numbers(text: str) -> str:
    """Verbalize every remaining digit."""
    return apply_rules(_NUMBERS, text)


def _dotted(match: re.Match[str]) -> str:
    """Versions ("three point eleven point two") and IP addresses ("one nine two dot ...")."""
    parts = match["parts"].split(".")
    if len(parts) == 4 and not match["lead"]:
        return " dot ".join(digits(part) for part in parts)
    return ("version " if match["lead"] else "") + " point ".join(number(part) for part in parts)


def _decade(match: re.Match[str]) -> str:
    value = int(match["year"])
    return plural(cardinal(value) if value < 100 else year(value))


def _raised(match: re.Match[str]) -> str:
    """Return the form with ``^``; a lone ² or ³ may be a unit's."""
    if match[0] in ("²", "³"):
        return match[0]
    return f"^{'-' if match[1] else ''}{match[2].translate(_RAISED_DIGITS)}"


def _power(match: re.Match[str]) -> str:
    sign, exponent = match[1], match[2]
    if not sign and exponent in ("2", "3"):
        return " squared " if exponent == "2" else " cubed "
    return f" to the power of {'minus ' if sign else ''}{exponent} "


def _fraction(above: str, below: str) -> str:
    if (above, below) in _FIXED_PHRASES:
        return _FIXED_PHRASES[above, below]
    count, size = int(above), int(below)
    part = _PARTS.get(size) or (ordinal(size) if 2 < size <= _MAX_SPOKEN_DENOMINATOR else "")
    if not part or not 0 < count < size:
        return f"{above} over {below}"
    return f"one {part}" if count == 1 else f"{cardinal(count)} {part}s"


def _bare(match: re.Match[str]) -> str:
    written = match[0]
    if len(written) >= MIN_CODE_DIGITS and written.isdigit() and not written.endswith("00"):
        return f" {grouped_digits(written)} "
    return f" {_READ_AS_DIGITS.get(written) or number(written)} "


_BEFORE_UNITS: list[Rule] = [
    (_INDIAN, lambda match: f"{int(match[0].replace(',', '')):,}"),
    (_RAISED, _raised),
    (_FRACTION_SIGN, lambda match: f" {FRACTION_SIGNS[match[0]]} "),
    (_DOTTED, _dotted),
    (_DECADE, _decade),
    (_DIMENSION, " by "),
]
_FIGURES: list[Rule] = [
    (_SCIENTIFIC, r"\1 times ten to the power of \2"),
    (_TIMES, " times "),
    (_BY, " by "),
    (_FOLD, r"\1 times"),
    (_POWER, _power),
    (_MIXED, lambda match: f"{match[1]} and {_fraction(match[2], match[3])}"),
    (_RATING, r"\1 out of \2"),
    (_FRACTION, lambda match: _fraction(match[1], match[2])),
    (_RATIO, r"\1 to \2"),
    (_ORDINAL_RANGE, " to "),
    (_ORDINAL, lambda match: ordinal(int(match[1].replace(",", "")))),
    (_VERSION, "version "),
]
_NUMBERS: list[Rule] = [
    (re.compile(r"(?<![\w)\]^])[-−](?=\.?\d)"), " minus "),
    (_COMPOUND, r"\1 "),
    (_YEAR, lambda match: f" {year(int(match[0]))} "),
    (_BARE, _bare),
]
