"""Sums of money in one block of text."""

from __future__ import annotations

import re

from sessions.text.lexicon import CURRENCY_CODES, CURRENCY_SIGNS, MAGNITUDES
from sessions.text.measures import counted, in_plural
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
