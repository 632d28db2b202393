"""Vendors' inline forms: pauses and phonemes out of them, all else is text, and no cut changes anything."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.config import InlineForm
from sessions.text.ssml.inline import MAX_FORM_CHARS, InlineForms
from sessions.text.ssml.items import BreakItem, MarkupItem, StyleItem
from sessions.text.ssml.parser import MarkupContext, SsmlParser
from sessions.text.ssml.tokens import HiddenToken, MarkupTokenizer, MarkupWarning, TextToken, WarningCode

RIME = (InlineForm.RIME_PAUSE, InlineForm.RIME_PHONEMES)
DEEPGRAM = (InlineForm.DEEPGRAM,)
BRACKETS = (InlineForm.BRACKETS,)
TOMATO = '\\{"word": "tomato", "pronounce": "təˈmeɪtoʊ"\\}'


def parse(forms: tuple[InlineForm, ...], pieces: Iterable[str], is_ssml: bool = False) -> list[MarkupItem]:
    context = MarkupContext("en", takes_emotion={"cheerful", "whispers"}.__contains__)
    parser = SsmlParser(context, InlineForms(forms, MarkupTokenizer() if is_ssml else None))
    items = [item for piece in pieces for item in parser.push(piece)]
    return [*items, *parser.finish()]


def spoken(items: Iterable[MarkupItem]) -> str:
    """The text, with the length of each pause and each change of the tone."""
    return "".join(map(_spoken, items))


def _spoken(item: MarkupItem) -> str:
    match item:
        case TextToken():
            return item.text
        case BreakItem():
            return f"|{item.duration_ms:g}|"
        case StyleItem():
            return f"({item.style.emotion})"
        case _:
            return ""


@pytest.mark.parametrize(
    ("forms", "text", "expected"),
    [
        (RIME, "Wait. <500> Now <3 a < b.", "Wait. |500| Now <3 a < b."),
        (RIME, "Wait. <500.0> Now <0.25><1.>.", "Wait. |500| Now |0.25|<1.>."),
        (RIME, "A {k1Ast0xm} word, {not one}.", "A cuh-stum word, {not one}."),
        (RIME[:1], "A {k1Ast0xm} word.", "A {k1Ast0xm} word."),
        (RIME[1:], "A <500>.", "A <500>."),
        (RIME, "A {!!!} word", "A  word"),
        (DEEPGRAM, "One \\{pause:1s\\} two \\{pause: 500ms\\}.", "One |1000| two |500|."),
        (DEEPGRAM, f"A {TOMATO}.", "A tuh-may-toh."),
        (DEEPGRAM, '\\{"word": "cat", "pronounce": "☃"\\}', "cat"),
        (DEEPGRAM, "\\{1, 2\\} and \\n \\{", "\\{1, 2\\} and \\n \\{"),
        (DEEPGRAM, '\\{"word": "", "pronounce": "x"\\}', '\\{"word": "", "pronounce": "x"\\}'),
        (DEEPGRAM, "\\{" + "x" * MAX_FORM_CHARS, "\\{" + "x" * MAX_FORM_CHARS),
        (BRACKETS, "[Cheerful] Hi. [neutral]So.", "(cheerful) Hi. ()So."),
        (BRACKETS, "Well [laughs] now [clear_throat], [sighs] no.", "Well  now ,  no."),
        (BRACKETS, "So [pause] and [long pause] then [short_pause]on.", "So |500| and |1000| then |250|on."),
        (BRACKETS, "[unheard of] Hi.", " Hi."),
        (BRACKETS, "See [1], [a/b], [x](y) and [open", "See [1], [a/b], (y) and [open"),
        (BRACKETS, f"[{'x' * 41}]", f"[{'x' * 41}]"),
    ],
)
def test_forms_are_read_and_the_rest_is_text(forms: tuple[InlineForm, ...], text: str, expected: str):
    assert spoken(parse(forms, [text])) == expected
    assert spoken(parse(forms, text)) == expected


def test_phonemes_that_cannot_be_read_are_told():
    warnings = [item for item in parse(RIME, ["{!!!}"]) if isinstance(item, MarkupWarning)]
    assert [(item.code, item.element) for item in warnings] == [(WarningCode.NOT_READABLE, "phoneme")]


def test_brackets_without_effect_are_told_once_a_kind():
    items = parse(BRACKETS, ["[laughs] a [whispers] b [of no use] c [sighs] d [of no use]"])
    warnings = [(item.code, item.element, item.raw_start) for item in items if isinstance(item, MarkupWarning)]
    assert warnings == [
        (WarningCode.NO_EFFECT, "laughs", 0),
        (WarningCode.NO_EFFECT, "emotion", 24),
        (WarningCode.NO_EFFECT, "sighs", 38),
    ]


def test_brackets_are_read_beside_tags():
    text = '[cheerful]A<break/>[<b c="[whispers]">whispers] <sub alias="[cheerful]">b</sub> &#91;whispers]c'
    for pieces in ([text], text):
        assert spoken(parse(BRACKETS, pieces, is_ssml=True)) == "(cheerful)A|500|[whispers] [cheerful] (whispers)c"


def test_raw_characters_of_a_word_are_its_own():
    items = parse(DEEPGRAM, [f"A {TOMATO}."])
    [word] = [item for item in items if isinstance(item, TextToken) and item.text == "tuh-may-toh"]
    assert f"A {TOMATO}."[word.raw_start : word.raw_end] == "tomato"
    [word] = [item for item in parse(RIME, ["{k1Ast0xm}"]) if isinstance(item, TextToken)]
    assert (word.raw_start, word.raw_end) == (0, 10)


PIECES = [
    "<500>", "<", ">", "5", "<5.5>", ".", "{k1At}", "{", "}", "\\{pause:1s\\}", "\\", TOMATO,
    "a ", "é", '"', "[whispers]", "[", "]", "<b>", "&#91;",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), st.randoms(use_true_random=False), st.booleans())
def test_cuts_change_nothing(text: str, random: Random, is_ssml: bool):
    forms = (*RIME, *DEEPGRAM, *BRACKETS)
    places = sorted(random.sample(range(len(text) + 1), min(3, len(text))))
    pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    whole, cut = parse(forms, [text], is_ssml), parse(forms, pieces, is_ssml)
    assert spoken(cut) == spoken(whole)
    assert _hidden(cut) == _hidden(whole)


def _hidden(items: Iterable[MarkupItem]) -> set[int]:
    return {place for item in items if isinstance(item, HiddenToken) for place in range(item.raw_start, item.raw_end)}
