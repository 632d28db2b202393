from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.text.acronyms import code_digits, roman_value
from sessions.text.numbers import MAX_CARDINAL_DIGITS, ONES, cardinal, digits, grouped_digits, number, ordinal, year

TENS = {
    word: 10 * place for place, word in enumerate("_ _ twenty thirty forty fifty sixty seventy eighty ninety".split())
}
SCALES = {
    word: 1000 ** (place + 1) for place, word in enumerate("thousand million billion trillion quadrillion".split())
}


def value_of(words: str) -> int:
    """Reads a cardinal back, word by word."""
    total = group = 0
    for word in words.replace("-", " ").split():
        if word in SCALES:
            total, group = total + group * SCALES[word], 0
        elif word == "hundred":
            group *= 100
        else:
            group += TENS[word] if word in TENS else ONES.index(word)
    return total + group


@given(st.one_of(st.integers(0, 10**MAX_CARDINAL_DIGITS - 1), st.integers(0, 2000)))
def test_a_cardinal_reads_back(value: int) -> None:
    assert value_of(cardinal(value)) == value


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_different_numbers_sound_different(one: int, other: int) -> None:
    assert (ordinal(one) == ordinal(other)) == (one == other)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "zeroth"), (1, "first"), (12, "twelfth"), (20, "twentieth"), (21, "twenty-first"), (105, "one hundred fifth")],
)
def test_ordinals(value: int, expected: str) -> None:
    assert ordinal(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1000, "one thousand"),
        (1066, "ten sixty-six"),
        (1100, "eleven hundred"),
        (1905, "nineteen oh five"),
        (1999, "nineteen ninety-nine"),
        (2000, "two thousand"),
        (2005, "two thousand five"),
        (2010, "twenty ten"),
        (2100, "twenty-one hundred"),
    ],
)
def test_years(value: int, expected: str) -> None:
    assert year(value) == expected


@given(st.text(alphabet="0123456789", min_size=1, max_size=40))
def test_grouped_digits_are_the_same_digits_in_groups_of_three_to_five(run: str) -> None:
    spoken = grouped_digits(run)
    assert spoken.replace(",", "") == digits(run)
    if len(run) > 5:
        assert all(3 <= len(group.split()) <= 4 for group in spoken.split(","))


@given(st.from_regex(r"[0-9]{1,40}(\.[0-9]{1,10})?", fullmatch=True))
def test_any_written_number_can_be_said(text: str) -> None:
    assert set(number(text)) <= set("abcdefghijklmnopqrstuvwxyz- ")


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ("4", "four"),
        ("20", "twenty"),
        ("100", "one hundred"),
        ("320", "three twenty"),
        ("305", "three oh five"),
        ("1000", "one thousand"),
        ("1500", "fifteen hundred"),
        ("2490", "twenty-four ninety"),
        ("007", "zero zero seven"),
        ("12345", "one two three four five"),
    ],
)
def test_digits_inside_a_name(run: str, expected: str) -> None:
    assert code_digits(run) == expected


def test_roman_numerals_below_forty_are_known_and_nothing_else() -> None:
    tens, ones = ("", "X", "XX", "XXX"), ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")
    written = {ten + one: 10 * place + value for place, ten in enumerate(tens) for value, one in enumerate(ones)}
    assert all(roman_value(text) == value for text, value in written.items())
    assert [roman_value(text) for text in ("IIII", "VV", "IC", "XXXX", "hello", "VX")] == [0] * 6
