"""Dates and times of day in one block of text."""

from __future__ import annotations

import re

from sessions.text.lexicon import MONTH_ABBREVIATIONS, MONTHS, WEEKDAYS
from sessions.text.numbers import ONES, cardinal, ordinal, year

_MONTH = rf"(?P<month>{'|'.join(MONTHS)}|(?:{'|'.join(MONTH_ABBREVIATIONS)})\.?)"
_DAY = r"(?P<day>[0-3]?\d)(?:st|nd|rd|th)?"
_YEAR = r"(?:,?\s(?P<year>[12]\d{3})(?![\w:%]))?"

_ISO = re.compile(
    r"(?<![\w-])(?P<year>[12]\d{3})[-/](?P<month>[01]?\d)[-/](?P<day>[0-3]?\d)(?![\d-])(?P<time>T(?=\d\d:\d\d))?"
)
_SLASHED = re.compile(r"(?<![\w/.-])(?P<first>[0-3]?\d)/(?P<second>[0-3]?\d)/(?P<year>(?:[12]\d)?\d\d)(?![\w/])")
_POINTED = re.compile(r"(?<![\w.])(?P<second>[0-3]?\d)\.(?P<first>[01]?\d)\.(?P<year>[12]\d{3})(?!\w)")
_SHORT = re.compile(r"(?<![\w/.,-])(?P<month>0?[1-9]|1[0-2])/(?P<day>1[789]|2\d|3[01])(?![\w/%]|\.\d)")
_MONTH_DAY = re.compile(
    rf"\b{_MONTH}\s{_DAY}(?:\s?[-–—]\s?(?P<last>[0-3]?\d)(?:st|nd|rd|th)?)?(?![\w:%/]|[.,]\d){_YEAR}"
)
_DAY_MONTH = re.compile(rf"(?<![\w.,:/-]){_DAY}(?P<of>\sof)?\s{_MONTH}(?!\w){_YEAR}")
_MONTH_YEAR = re.compile(rf"\b{_MONTH}(?=,? [12]\d{{3}}(?!\d))")
_MONTH_DOT = re.compile(rf"\b({'|'.join(MONTH_ABBREVIATIONS)})\.(?=\s|$)")
_WEEKDAY = re.compile(rf"\b({'|'.join(WEEKDAYS)})\.?,?(?=\s(?:{'|'.join(MONTHS)}|{'|'.join(MONTH_ABBREVIATIONS)}|\d))")
_WEEKDAY_DOT = re.compile(r"\b(Mon|Tues?|Wed|Thurs?|Thu|Fri)\.(?=\s|$)")
_WEEKDAYS = re.compile(rf"\b({'|'.join(WEEKDAYS)})\.?\s?[-–—]\s?({'|'.join(WEEKDAYS)})\b\.?")

_HALF = r"(?P<half>[AaPp])\.?\s?[Mm](?![A-Za-z])(?P<dot>\.?)"
_CLOCK = re.compile(
    rf"(?<![\w:.,])(?P<hour>[01]?\d|2[0-4]):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?(?:\.\d+)?(?![\d:])(?:\s?{_HALF}|Z\b)?"
)
_HOUR = re.compile(rf"(?<![\w:.,])(?P<hour>1[0-2]|0?[1-9])\s?{_HALF}")
_HOUR_RANGE = re.compile(
    rf"(?<![\w:.,])(?P<hour>1[0-2]|0?[1-9])(?P<to>\s?[-–—]\s?)(?=(?:1[0-2]|0?[1-9])(?::[0-5]\d)?\s?{_HALF})"
)
_TO = re.compile(r"(?<=[\dMm.])\s?[-–—]\s?(?=\d{1,2}(?::\d\d|\s?[AaPp]\.?[Mm]))")


def verbalize_dates(text: str) -> str:
    """Digits of years that stand alone stay: they are numbers like others."""
    text = _ISO.sub(_written_date, text)
    text = _SLASHED.sub(_slashed_date, text)
    text = _POINTED.sub(_slashed_date, text)
    text = _SHORT.sub(lambda match: f"{MONTHS[int(match['month']) - 1]} {ordinal(int(match['day']))}", text)
    text = _WEEKDAYS.sub(lambda match: f"{WEEKDAYS[match[1]]} to {WEEKDAYS[match[2]]}", text)
    text = _WEEKDAY.sub(lambda match: f"{WEEKDAYS[match[1]]},", text)
    text = _WEEKDAY_DOT.sub(lambda match: WEEKDAYS[match[1]], text)
    text = _MONTH_DAY.sub(_month_day, text)
    text = _DAY_MONTH.sub(_day_month, text)
    text = _MONTH_YEAR.sub(lambda match: _full_month(match["month"]), text)
    text = _MONTH_DOT.sub(lambda match: MONTH_ABBREVIATIONS[match[1]], text)
    return _verbalize_times(text)


def _verbalize_times(text: str) -> str:
    text = _TO.sub(" to ", text)
    text = _HOUR_RANGE.sub(lambda match: f"{cardinal(int(match['hour']))} to ", text)
    text = _CLOCK.sub(_clock, text)
    return _HOUR.sub(lambda match: f"{cardinal(int(match['hour']))} {_half(match)}", text)


def _full_month(written: str) -> str:
    written = written.rstrip(".")
    return MONTH_ABBREVIATIONS.get(written, written)


def _date(month: int, day: int, year_number: int) -> str | None:
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return f"{MONTHS[month - 1]} {ordinal(day)}, {year(year_number)}"


def _written_date(match: re.Match[str]) -> str:
    date = _date(int(match["month"]), int(match["day"]), int(match["year"]))
    return f"{date}, " if date and match["time"] else date or match[0]


def _slashed_date(match: re.Match[str]) -> str:
    """Month first, as in the United States, unless that cannot be."""
    first, second, year_number = int(match["first"]), int(match["second"]), int(match["year"])
    if year_number < 100:
        year_number += 2000 if year_number < 70 else 1900
    return _date(first, second, year_number) or _date(second, first, year_number) or match[0]


def _month_day(match: re.Match[str]) -> str:
    day = int(match["day"])
    if not 1 <= day <= 31:
        return match[0]
    last = f" to {ordinal(int(match['last']))}" if match["last"] else ""
    return f"{_full_month(match['month'])} {ordinal(day)}{last}{_year(match)}"


def _day_month(match: re.Match[str]) -> str:
    day, month = int(match["day"]), _full_month(match["month"])
    if not 1 <= day <= 31:
        return match[0]
    spoken = f"{ordinal(day)} of {month}" if match["of"] else f"{month} {ordinal(day)}"
    return spoken + _year(match)


def _year(match: re.Match[str]) -> str:
    return f", {year(int(match['year']))}" if match["year"] else ""


def _half(match: re.Match[str]) -> str:
    """ "A M"; the dot of "a.m." stays as a full stop where a sentence may end."""
    rest = match.string[match.end() :].lstrip()
    stop = "." if match["dot"] and (not rest or rest[0].isupper()) else ""
    return f"{match['half'].upper()} M{stop}"


def _clock(match: re.Match[str]) -> str:
    hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
    words = [cardinal(hour)]
    if minute:
        words.append(f"oh {ONES[minute]}" if minute < 10 else cardinal(minute))
    elif not match["half"]:
        words.append("o'clock" if 1 <= hour <= 12 else "hundred")
    if second:
        words.append(f"and {cardinal(second)} second{'s' if second > 1 else ''}")
    if match["half"]:
        words.append(_half(match))
    return " ".join(words) + " "
