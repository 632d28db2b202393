"""Amounts in one block of text: money, percentages, units, ranges, fractions, ordinals and bare numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sessions.text.lexicon import (
    CURRENCY_CODES,
    CURRENCY_SIGNS,
    FRACTION_SIGNS,
    INVARIABLE,
    IRREGULAR_PLURALS,
    MAGNITUDES,
    UNITS,
)
from sessions.text.numbers import ONES, cardinal, digits, number, ordinal, plural, year

NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
_FRONT = r"(?<![\w.,])"
_BACK = r"(?![\w])"


def _either(words: Mapping[str, object]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


_SCALE = r"(?:\s?(?P<scale>thousand|million|billion|trillion|bn|[kKMBT])(?![A-Za-z]))?"
_SIGN_FIRST = re.compile(
    rf"(?P<minus>(?<!\w)[-−])?(?P<sign>{_either(CURRENCY_SIGNS)})\s?(?P<amount>{NUMBER})"
    rf"(?:\s?[-–—]\s?(?:{_either(CURRENCY_SIGNS)})?(?P<upper>{NUMBER}))?{_SCALE}"
)
_SIGN_LAST = re.compile(
    rf"{_FRONT}(?P<amount>{NUMBER})(?P<upper>(?!))?{_SCALE}\s?(?P<sign>[€£¥₹]|(?:{_either(CURRENCY_CODES)})(?!\w))(?P<minus>(?!))?"
)
_CODE_FIRST = re.compile(
    rf"(?<!\w)(?P<sign>{_either(CURRENCY_CODES)}) ?(?P<amount>{NUMBER})(?P<upper>(?!))?{_SCALE}(?P<minus>(?!))?"
)
_PER = re.compile(
    r"(?<=[a-z])\s?/\s?(?=(?:hour|hr|day|week|month|mo|year|yr|night|person|user|unit|min|minute|second|kg|lb|mile|km)\b)"
)
_MONTHLY = {
    "mo": "month",
    "yr": "year",
    "hr": "hour",
    "min": "minute",
    "kg": "kilogram",
    "lb": "pound",
    "km": "kilometer",
}

_FEET_INCHES = re.compile(r"""(?<![\w.])(\d{1,2})['’′] ?(\d{1,2})(?:["”″]|''|(?![\w'’]))""")
_INCHES = re.compile(rf"""{_FRONT}({NUMBER})(?:["”″]|in\.?)(?![\w])""")
_RANGE = re.compile(rf"(?<![\w.,/-])({NUMBER})(\s?)[-–—](\s?)({NUMBER})(?![\w/-]*[-/]\d)(?=[^\d]|$)")
_PERCENT = re.compile(rf"({NUMBER})\s?%")
_UNIT = re.compile(rf"(?<![\w,])({NUMBER})[\s-]?({_either(UNITS)})(?![\w/²³])")
_MAGNITUDE = re.compile(rf"{_FRONT}({NUMBER})(bn|[kKMBT])(?!\w)")
_SCREEN = re.compile(r"(?<![\w.])([48])K(?!\w)")
_TIMES = re.compile(r"(?<=\d)\s?[×*]\s?(?=\d)|(?<=\d) x (?=\d)")
_BY = re.compile(r"(?<=\d)x(?=\d)")
_FOLD = re.compile(rf"{_FRONT}({NUMBER})\s?[x×](?!\w)")
_POWER = re.compile(r"(?<=[\w)])\s?\^\s?(-?\d+)")
_ORDINAL = re.compile(rf"{_FRONT}(\d{{1,3}}(?:,\d{{3}})+|\d{{1,15}})(?:st|nd|rd|th|ST|ND|RD|TH){_BACK}")
_MIXED = re.compile(r"(?<![\w.,/])(\d+)[ -](\d{1,2})/(\d{1,2})(?![\w/])")
_FRACTION = re.compile(r"(?<![\w.,/])(\d{1,6})\s?[/⁄]\s?(\d{1,6})(?![\w/]|\.\d)")
_RATIO = re.compile(r"(?<![\w.:])(\d{1,6}):(\d{1,6})(?![\w:])")
_DECADE = re.compile(r"(?<![\w.,])['’]?(\d\d|1\d\d0|20\d0|1[1-9]00|2000)['’]?s(?!\w)")
_DOTTED = re.compile(r"(?<![\w.])[vV]?(\d{1,6}(?:\.\d{1,6}){2,})(?![\w])")
_VERSION = re.compile(r"(?<!\w)[vV](?=\d+(?:\.\d+)*(?!\w))")
_COMPOUND = re.compile(r"(?<![\w.,])(\d[\d,]*(?:\.\d+)?)-(?=[A-Za-z]{2,})")
_MINUS = re.compile(r"(?<![\w)\]])[-−](?=\.?\d)")
_SUBTRACT = re.compile(r"(?<=\d)\s?[-–−]\s?(?=\d)")
_YEAR = re.compile(r"(?<![\w.,])(1[1-9]\d\d|20\d\d)(?!\w|[.,]\d)")
_NUMBER = re.compile(rf"(?<!\w){NUMBER}")

_PARTS = {2: "half", 3: "third", 4: "quarter", 100: "hundredth", 1000: "thousandth"}
_MAX_SPOKEN_DENOMINATOR = 16
_SAYINGS = {("24", "7"): "twenty-four seven", ("9", "11"): "nine eleven", ("50", "50"): "fifty-fifty"}


def say_quantities(text: str) -> str:
    """Amounts with their units; bare digits that remain are for ``say_numbers``."""
    text = _fraction_signs(text)
    text = _DOTTED.sub(_dotted, text)
    for pattern in (_SIGN_FIRST, _CODE_FIRST, _SIGN_LAST):
        text = pattern.sub(_money, text)
    text = _PER.sub(" per ", text)
    text = re.sub(r"(?<= per )(mo|yr|hr|min|kg|lb|km)\b", lambda match: _MONTHLY[match[0]], text)
    text = _FEET_INCHES.sub(r"\1 feet \2 ", text)
    text = _INCHES.sub(lambda match: f"{match[1]} {_counted('inch', match[1])}", text)
    text = _DECADE.sub(_decade, text)
    text = _SUBTRACT.sub(" minus ", text) if "=" in text else _RANGE.sub(r"\1 to \4", text)
    text = _PERCENT.sub(r"\1 percent", text)
    text = _SCREEN.sub(r"\1 K", text)
    text = _UNIT.sub(lambda match: f"{match[1]} {_counted(UNITS[match[2]], match[1])}", text)
    text = _MAGNITUDE.sub(lambda match: f"{match[1]} {MAGNITUDES[match[2]]}", text)
    text = _BY.sub(" by ", _TIMES.sub(" times ", text))
    text = _FOLD.sub(r"\1 times", text)
    text = _POWER.sub(_power, text)
    text = _MIXED.sub(lambda match: f"{match[1]} and {_parts(match[2], match[3])}", text)
    text = _FRACTION.sub(lambda match: _parts(match[1], match[2]), text)
    text = _RATIO.sub(r"\1 to \2", text)
    text = _ORDINAL.sub(lambda match: ordinal(int(match[1].replace(",", ""))), text)
    return _VERSION.sub("version ", text)


def say_numbers(text: str) -> str:
    """Every digit that is left, in words."""
    text = _COMPOUND.sub(r"\1 ", text)
    text = _MINUS.sub(" minus ", text)
    text = _YEAR.sub(lambda match: f" {year(int(match[0]))} ", text)
    return _NUMBER.sub(lambda match: f" {number(match[0])} ", text)


def _fraction_signs(text: str) -> str:
    for sign, written in FRACTION_SIGNS.items():
        if sign in text:
            text = text.replace(sign, f" {written} ")
    return text


def _money(match: re.Match[str]) -> str:
    unit, part = CURRENCY_SIGNS.get(match["sign"]) or CURRENCY_CODES[match["sign"]]
    amount, upper, scale = match["amount"], match["upper"], match["scale"]
    minus = " minus " if match["minus"] else ""
    if upper:
        return f"{minus}{amount} to {_sum(upper, scale, unit, part)}"
    return minus + _sum(amount, scale, unit, part)


def _sum(amount: str, scale: str | None, unit: str, part: str) -> str:
    if scale:
        return f"{amount} {MAGNITUDES.get(scale, scale)} {_plural(unit)} "
    whole, _, cents = amount.replace(",", "").partition(".")
    if len(cents) != 2:
        return f"{amount} {_counted(unit, amount)} "
    spoken_cents = f"{cardinal(int(cents))} {part if int(cents) == 1 else _plural(part)} "
    if not int(whole or "0") and int(cents):
        return spoken_cents
    spoken = f"{number(whole or '0')} {_counted(unit, whole)} "
    return f"{spoken}and {spoken_cents}" if int(cents) else spoken


def _counted(unit: str, amount: str) -> str:
    return unit if amount == "1" else _plural(unit)


def _plural(unit: str) -> str:
    """ "kilometers per hour" for "kilometer per hour", "square feet" for "square foot"."""
    head, per, tail = unit.partition(" per ")
    if " Celsius" in head or " Fahrenheit" in head:
        return head.replace("degree", "degrees")
    *front, last = head.split(" ")
    if last not in INVARIABLE and not last.isupper():
        last = IRREGULAR_PLURALS.get(last, f"{last}s")
    return " ".join([*front, last]) + per + tail


def _decade(match: re.Match[str]) -> str:
    value = int(match[1])
    if value % 10 and value % 100:
        return match[0]
    if value < 100:
        return plural(cardinal(value)) if value >= 20 else match[0]
    return plural(year(value))


def _dotted(match: re.Match[str]) -> str:
    parts = match[1].split(".")
    lead = "version " if match[0][0] in "vV" else ""
    if len(parts) == 4 and not lead:
        return " dot ".join(digits(part) for part in parts)
    return lead + " point ".join(number(part) for part in parts)


def _power(match: re.Match[str]) -> str:
    exponent = {"2": " squared ", "3": " cubed "}.get(match[1])
    return exponent or f" to the power of {match[1].replace('-', 'minus ')} "


def _parts(above: str, below: str) -> str:
    if (above, below) in _SAYINGS:
        return _SAYINGS[above, below]
    count, size = int(above), int(below)
    spoken_size = _PARTS.get(size) or (ordinal(size) if 2 < size <= _MAX_SPOKEN_DENOMINATOR else "")
    if not spoken_size or not 0 < count < size:
        return f"{above} over {below}"
    if count == 1:
        return f"one {spoken_size}"
    return f"{cardinal(count)} {'halves' if size == 2 else spoken_size + 's'}"


def say_code(digits_text: str) -> str:
    """Digits inside a name such as A320 or GPT-4: "three twenty", "four"."""
    if digits_text.startswith("0") or len(digits_text) > 4:
        return digits(digits_text)
    value = int(digits_text)
    if value < 100 or value % 100 == 0:
        return cardinal(value) if value < 1000 else year(value)
    head, rest = divmod(value, 100)
    return f"{cardinal(head)} {'oh ' + ONES[rest] if rest < 10 else cardinal(rest)}"
