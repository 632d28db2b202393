"""Random numbers, dates, times, prices, digits and codes, written in words as a reader would say them."""

from __future__ import annotations

from random import Random

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
SCALES = ((1_000_000_000_000, "trillion"), (1_000_000_000, "billion"), (1_000_000, "million"), (1_000, "thousand"))
ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip
MONTHS = "January February March April May June July August September October November December".split()
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def cardinal(value: int, joint: str = "-", conjunction: str = " ") -> str:
    """``value`` in words; ``joint`` stands in twenty-one, ``conjunction`` (" " or " and ") after the hundreds."""
    if value < 0:
        return "minus " + cardinal(-value, joint, conjunction)
    if value < 20:
        return ONES[value]
    if value < 100:
        ten, one = TENS[value // 10 - 2], value % 10
        return f"{ten}{joint}{ONES[one]}" if one else ten
    if value < 1000:
        head, rest = ONES[value // 100] + " hundred", value % 100
        return head + (conjunction + cardinal(rest, joint) if rest else "")
    for size, name in SCALES:
        if value >= size:
            head, rest = f"{cardinal(value // size, joint, conjunction)} {name}", value % size
            link = conjunction if rest < 100 else " "
            return head + (link + cardinal(rest, joint, conjunction) if rest else "")
    raise AssertionError(value)


def ordinal(value: int, joint: str = "-", conjunction: str = " ") -> str:
    words = cardinal(value, joint, conjunction)
    cut = max(words.rfind(" "), words.rfind("-")) + 1
    head, last = words[:cut], words[cut:]
    if last in ORDINALS:
        return head + ORDINALS[last]
    return head + (last[:-1] + "ieth" if last.endswith("y") else last + "th")


def year(value: int, joint: str = "-") -> str:
    century, rest = divmod(value, 100)
    if century == 20 and rest < 10:
        return "two thousand" + (f" {ONES[rest]}" if rest else "")
    tail = "hundred" if not rest else f"oh {ONES[rest]}" if rest < 10 else cardinal(rest, joint)
    return f"{cardinal(century, joint)} {tail}"


class Numerals:
    """Spoken numbers drawn from ``random``; each method is one slot of the grammar."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._joint = "-" if random.random() < 0.6 else " "
        self._conjunction = " and " if random.random() < 0.3 else " "

    def _words(self, value: int) -> str:
        return cardinal(value, self._joint, self._conjunction)

    def few(self) -> str:
        return self._words(self._random.randint(2, 12))

    def number(self) -> str:
        """Any size up to a billion, small ones more often."""
        return self._words(int(10 ** self._random.uniform(0.35, self._random.choice((2, 3, 4, 6, 9)))))

    def round_number(self) -> str:
        digits = self._random.randint(1, 9)
        return self._words(digits * 10 ** self._random.randint(1, 8))

    def decimal(self) -> str:
        digits = " ".join(ONES[self._random.randint(0, 9)] for _ in range(self._random.choice((1, 1, 2, 3))))
        return f"{self._words(self._random.randint(0, 120))} point {digits}"

    def percent(self) -> str:
        return f"{self.decimal() if self._random.random() < 0.4 else self._words(self._random.randint(1, 100))} percent"

    def ordinal(self) -> str:
        return ordinal(self._random.randint(1, self._random.choice((12, 31, 100, 999))), self._joint, self._conjunction)

    def year(self) -> str:
        return year(self._random.randint(*self._random.choice(((1990, 2035), (1800, 2099), (1100, 1999)))), self._joint)

    def day(self) -> str:
        month, day = self._random.choice(MONTHS), ordinal(self._random.randint(1, 31), self._joint)
        return self._random.choice((f"{month} {day}", f"the {day} of {month}", f"{month} the {day}"))

    def date(self) -> str:
        return f"{self.day()}, {self.year()}" if self._random.random() < 0.5 else self.day()

    def time(self) -> str:
        hour, minute = self._random.randint(1, 12), self._random.choice((0, 5, 10, 15, 20, 30, 40, 45, 50, 55, None))
        minute = self._random.randint(1, 59) if minute is None else minute
        half = self._random.choice(("", "", " A M", " P M", " in the morning", " in the evening", " at night"))
        past = self._random.choice(("past", "past", "to", "after"))
        if minute in (15, 30) and self._random.random() < 0.4:
            return f"{'quarter' if minute == 15 else 'half'} {past if minute == 15 else 'past'} {ONES[hour]}"
        if minute == 0:
            return ONES[hour] + (half or " o'clock")
        tail = f"oh {ONES[minute]}" if minute < 10 else cardinal(minute, self._joint)
        return f"{ONES[hour]} {tail}{half}"

    def money(self) -> str:
        one, many, cent, cents = self._random.choice(
            (("dollar", "dollars", "cent", "cents"),) * 4
            + (("euro", "euros", "cent", "cents"), ("pound", "pounds", "penny", "pence"))
        )
        whole, part = self._random.randint(0, self._random.choice((20, 100, 3000))), self._random.randint(0, 99)
        if self._random.random() < 0.25:
            return f"{self.round_number()} {many}"
        if not whole:
            part = max(part, 1)
            return f"{self._words(part)} {cent if part == 1 else cents}"
        head = f"{self._words(whole)} {one if whole == 1 else many}"
        if not part or self._random.random() < 0.3:
            return head
        return f"{head} and {self._words(part)} {cent if part == 1 else cents}"

    def digits(self) -> str:
        """A run of single digits, as in a code or a telephone number, with a comma between groups."""
        spoken = [ONES[self._random.randint(0, 9)] for _ in range(self._random.randint(3, 11))]
        if self._random.random() < 0.2:
            spoken = ["oh" if word == "zero" else word for word in spoken]
        size = self._random.choice((3, 4, 11))
        return ", ".join(" ".join(spoken[start : start + size]) for start in range(0, len(spoken), size))

    def letters(self) -> str:
        """Spelled letters: A B C."""
        return " ".join(self._random.choice(LETTERS) for _ in range(self._random.randint(2, 6)))

    def code(self) -> str:
        marks = [self._random.choice(LETTERS) for _ in range(self._random.randint(1, 3))]
        return " ".join(marks + [ONES[self._random.randint(0, 9)] for _ in range(self._random.randint(1, 5))])
