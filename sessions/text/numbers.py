"""Whole and decimal numbers in English words, without "and" and without commas: "one hundred five"."""

from __future__ import annotations

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
SCALES = "thousand million billion trillion quadrillion".split()
# Longer numbers are read digit by digit.
MAX_CARDINAL_DIGITS = 18

_IRREGULAR_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}


def cardinal(number: int) -> str:
    """``number`` is at least 0 and has at most ``MAX_CARDINAL_DIGITS`` digits."""
    if number < 20:
        return ONES[number]
    if number < 100:
        return _joined(TENS[number // 10], number % 10, "-")
    if number < 1000:
        return _joined(f"{ONES[number // 100]} hundred", number % 100, " ")
    power = (len(str(number)) - 1) // 3
    high, low = divmod(number, 1000**power)
    return _joined(f"{cardinal(high)} {SCALES[power - 1]}", low, " ")


def _joined(high: str, low: int, separator: str) -> str:
    return f"{high}{separator}{cardinal(low)}" if low else high


def ordinal(number: int) -> str:
    """ "twenty-first" for 21."""
    words = cardinal(number)
    head, separator, last = _last_part(words)
    if last in _IRREGULAR_ORDINALS:
        return head + separator + _IRREGULAR_ORDINALS[last]
    return head + separator + (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")


def plural(words: str) -> str:
    """ "nineteen eighties" for "nineteen eighty"."""
    if words.endswith("y"):
        return f"{words[:-1]}ies"
    return f"{words}es" if words.endswith("x") else f"{words}s"


def _last_part(words: str) -> tuple[str, str, str]:
    place = max(words.rfind(" "), words.rfind("-"))
    return (words[:place], words[place], words[place + 1 :]) if place >= 0 else ("", "", words)


def year(number: int) -> str:
    """Return the spoken form of a year from 1000 to 9999: "nineteen oh five", "two thousand five", "twenty ten"."""
    century, rest = divmod(number, 100)
    if number % 1000 < 10:
        return cardinal(number)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} oh {ONES[rest]}" if rest < 10 else f"{cardinal(century)} {cardinal(rest)}"


def digits(text: str) -> str:
    """Verbalize the digits one by one, without other characters."""
    return " ".join(ONES[int(character)] for character in text if character in "0123456789")


def grouped_digits(run: str) -> str:
    """A long run one by one, with a comma between groups of three or four: 3-3, 3-4, 4-4, 3-3-4, 4-4-4-4."""
    num_groups = len(run) // 4 if len(run) % 4 == 0 else max(1, len(run) // 3)
    size, num_longer = divmod(len(run), num_groups)
    sizes = [size] * (num_groups - num_longer) + [size + 1] * num_longer
    groups = []
    for length in sizes:
        groups.append(digits(run[:length]))
        run = run[length:]
    return ", ".join(groups)


def number(text: str) -> str:
    """A number as written in English: "1,234.50", "007", "3"."""
    whole, _, fraction = text.replace(",", "").partition(".")
    spoken = _whole(whole)
    return f"{spoken} point {digits(fraction)}".strip() if fraction else spoken


def _whole(text: str) -> str:
    if len(text) > MAX_CARDINAL_DIGITS or (len(text) > 1 and text.startswith("0")):
        return digits(text)
    return cardinal(int(text)) if text else ""
