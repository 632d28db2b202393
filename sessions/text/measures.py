"""Verbalize sums of money, and amounts with a unit: lengths, weights, percentages, ranges."""

from __future__ import annotations

import re

from sessions.text.lexicon import (
    CURRENCY_CODES,
    CURRENCY_SIGNS,
    INVARIABLE,
    IRREGULAR_PLURALS,
    LOCATION_NOUNS,
    MAGNITUDES,
    PER_UNITS,
    STREETS,
    UNITS,
)
from sessions.text.numbers import cardinal, number
from sessions.text.rules import DASH, NUMBER, Rule, alternation, apply_rules

_SCALES = {**MAGNITUDES, "m": "million"}
_SCALE = r"(?:\s?(?P<scale>thousand|million|billion|trillion|bn|[kKmMBT])(?![A-Za-z]))?"
_SIGN = alternation(CURRENCY_SIGNS)
_CODE = alternation(CURRENCY_CODES)

_RANGE = re.compile(rf"(?P<sign>{_SIGN})\s?(?P<lower>{NUMBER}){_SCALE}{DASH}(?:{_SIGN})?(?=\.?\d)")
_SIGN_FIRST = re.compile(rf"(?P<minus>(?<!\w)[-−])?(?P<sign>{_SIGN})\s?(?P<amount>{NUMBER}){_SCALE}")
_CODE_FIRST = re.compile(rf"(?<!\w)(?P<sign>{_CODE}) ?(?P<amount>{NUMBER}){_SCALE}")
_SIGN_LAST = re.compile(rf"(?<![\w.,])(?P<amount>{NUMBER}){_SCALE}\s?(?P<sign>[€£¥₹]|(?:{_CODE})(?!\w))")
_NUM_CENT_DIGITS = 2


def verbalize_money(text: str) -> str:
    return apply_rules(_RULES, text)


def _sum(match: re.Match[str]) -> str:
    found = match.groupdict()
    unit, part = CURRENCY_SIGNS.get(found["sign"]) or CURRENCY_CODES[found["sign"]]
    minus = " minus " if found.get("minus") else ""
    if found["scale"]:
        return f"{minus}{number(found['amount'])}{_scale(match)} {in_plural(unit)} "
    return minus + _whole_and_part(found["amount"], unit, part)


def _scale(match: re.Match[str]) -> str:
    scale = match["scale"]
    return f" {_SCALES.get(scale, scale)}" if scale else ""


def _whole_and_part(amount: str, unit: str, part: str) -> str:
    whole, _, cents = amount.replace(",", "").partition(".")
    if len(cents) != _NUM_CENT_DIGITS:
        return f"{number(amount)} {counted(unit, amount)} "
    spoken_part = f"{cardinal(int(cents))} {counted(part, str(int(cents)))} "
    if int(cents) and not int(whole or "0"):
        return spoken_part
    spoken_whole = f"{number(whole or '0')} {counted(unit, whole)} "
    return f"{spoken_whole}and {spoken_part}" if int(cents) else spoken_whole


_RULES: list[Rule] = [
    (_RANGE, lambda match: f"{number(match['lower'])}{_scale(match)} to {match['sign']}"),
    (_SIGN_FIRST, _sum),
    (_CODE_FIRST, _sum),
    (_SIGN_LAST, _sum),
]


_UNIT = rf"(?P<unit>{alternation(UNITS)})(?![\w/²³])"
# The dot of "lbs." goes if the sentence goes on.
_UNIT_DOT = r"(?:\.(?=\s[a-z\d]))?"

_PLACE = re.compile(rf"\b(?P<place>{alternation(LOCATION_NOUNS)}) (?P<number>\d{{1,4}})(?P<letter>[A-Z])(?!\w)")
# A word of a street's name: in headlines others begin with a capital, too.
_NAME = r"(?!(?:And|At|By|For|From|In|Of|On|To|With)\b)[A-Z\d][\w'.-]*"
_HOUSE = re.compile(rf"(?<![\w.,])(\d{{1,5}})([A-Z])(?=(?: {_NAME}){{1,3}}? (?:{alternation(STREETS)})(?!\w))")
_PER = re.compile(rf"(?<=[a-z])\s?/\s?(?P<unit>{alternation(PER_UNITS)})\b")
_FEET_INCHES = re.compile(r"""(?<![\w.])(\d{1,2})' ?(\d{1,2})(?:["″]|''|(?![\w']))""")
_INCHES = re.compile(rf"""(?<![\w.,])(?P<amount>{NUMBER})(?:["″]|in(?!\w)|\sin(?=\.)){_UNIT_DOT}""")
_RANGE = re.compile(rf"(?<![\w.,/#-])({NUMBER}){DASH}(?={NUMBER}(?![\w/-]*[-/]\d)(?:[^\d]|$))")
_RANGE_BELOW_ZERO = re.compile(r"(?<=\d)\s?[–—]\s?(?=[-−]\d)")
_DEGREE_RANGE = re.compile(rf"(?<=\d)\s?°\s?[CF]?{DASH}(?=[-−]?{NUMBER}\s?°)")
_PERCENT_RANGE = re.compile(rf"(?<=\d)\s?%{DASH}(?=\d)")
_DASH_AS_MINUS = re.compile(rf"(?<![^\s(\"'])–(?={NUMBER}\s?[°%])")
_PERCENT = re.compile(rf"({NUMBER})\s?%")
_PART = re.compile(rf"(?<![\w,/])(?P<whole>\d{{1,3}} +)?(?P<part>\d{{1,3}}/\d{{1,3}})\s*{_UNIT}{_UNIT_DOT}")
_AMOUNT = re.compile(rf"(?<![\w,/])(?P<amount>{NUMBER})[\s-]?{_UNIT}{_UNIT_DOT}")
_SCREEN = re.compile(r"(?<![\w.])([48])K(?!\w)")
_MAGNITUDE = re.compile(rf"(?<![\w.,#])({NUMBER})(bn|[kKMBT])(?!\w)")


def verbalize_measures(text: str, previous_word: str) -> str:
    """``previous_word`` distinguishes "gate 5B" from five billion."""
    text = _PLACE.sub(r"\g<place> \g<number> \g<letter>", f"{previous_word} {text}")[len(previous_word) + 1 :]
    text = _HOUSE.sub(lambda match: f"{number(match[1])} {match[2]}", text)
    text = _PER.sub(lambda match: f" per {PER_UNITS[match['unit']]}", text)
    text = apply_rules(_LENGTHS, text)
    if "=" not in text:
        text = _RANGE_BELOW_ZERO.sub(" to ", _RANGE.sub(r"\1 to ", text))
    return apply_rules(_AMOUNTS, text)


def counted(unit: str, amount: str) -> str:
    return unit if amount == "1" else in_plural(unit)


def in_plural(unit: str) -> str:
    """ "kilometers per hour" for "kilometer per hour", "degrees Celsius" for "degree Celsius"."""
    head, *tail = re.split(r"(?= per | Celsius| Fahrenheit)", unit)
    front, space, last = head.rpartition(" ")
    if last not in INVARIABLE and not last.isupper():
        last = IRREGULAR_PLURALS.get(last, f"{last}s")
    return "".join([front, space, last, *tail])


def _part(match: re.Match[str]) -> str:
    """ "1/2 cup", "2 1/2 cups": the fraction itself is said later."""
    unit = UNITS[match["unit"]]
    whole = match["whole"] or ""
    return f"{whole}{match['part']} {in_plural(unit) if whole else unit}"


_LENGTHS: list[Rule] = [
    (_FEET_INCHES, r"\1 foot \2 "),
    (_INCHES, lambda match: f"{number(match['amount'])} {counted('inch', match['amount'])}"),
]
_AMOUNTS: list[Rule] = [
    (_DEGREE_RANGE, " to "),
    (_DASH_AS_MINUS, " minus "),
    (_PERCENT_RANGE, " percent to "),
    (re.compile(r"(?<![\w)\]^])[-−](?=\.?\d)"), " minus "),
    (_PERCENT, lambda match: f"{number(match[1])} percent"),
    (_PART, _part),
    (_AMOUNT, lambda match: f"{number(match['amount'])} {counted(UNITS[match['unit']], match['amount'])}"),
    (_SCREEN, r"\1 K"),
    (_MAGNITUDE, lambda match: f"{number(match[1])} {MAGNITUDES[match[2]]}"),
]
