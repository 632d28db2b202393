"""Labels of speakers at the beginnings of lines: never spoken where they were named, and text everywhere else."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.text.ssml.items import BreakItem, MarkupItem, StyleItem
from sessions.text.ssml.parser import MarkupContext, SsmlParser
from sessions.text.ssml.speaker_lines import MAX_LABEL_CHARS, SpeakerLines
from sessions.text.ssml.tokens import HiddenToken, MarkupTokenizer, MarkupWarning, TextToken

SPEAKERS = {"Ann": "low", "Anna": "high", "Dr. Who": "low", "李": "high"}
CONTEXT = MarkupContext("en", {"low", "high"}.__contains__, speakers=SPEAKERS)


def create_parser(is_ssml: bool = False) -> SsmlParser:
    return SsmlParser(CONTEXT, SpeakerLines(MarkupTokenizer() if is_ssml else None, SPEAKERS))


def parse(pieces: Iterable[str], is_ssml: bool = False) -> list[MarkupItem]:
    parser = create_parser(is_ssml)
    items = [item for piece in pieces for item in parser.push(piece)]
    return [*items, *parser.finish()]


def lines_of(items: Iterable[MarkupItem]) -> list[tuple[str, str | None, str]]:
    """Speaker, voice and text of each run."""
    lines: list[tuple[str, str | None, str]] = [("", None, "")]
    for item in items:
        if isinstance(item, StyleItem):
            lines.append((item.style.speaker, item.style.voice, ""))
        elif isinstance(item, TextToken):
            lines[-1] = (*lines[-1][:2], lines[-1][2] + item.text)
        elif isinstance(item, BreakItem):
            lines[-1] = (*lines[-1][:2], f"{lines[-1][2]}|")
    return [line for line in lines if line[2]]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("Ann: Hi.\nAnna: Hello.", [("Ann", "low", " Hi.\n"), ("Anna", "high", " Hello.")]),
        ("Dr. Who: Hi.\r\n  李：你好。", [("Dr. Who", "low", " Hi.\r\n  "), ("李", "high", "你好。")]),
        ("Ann said: Anna: no.", [("", None, "Ann said: Anna: no.")]),
        ("Annabel: no.\nann: no.", [("", None, "Annabel: no.\nann: no.")]),
        ("Hm.\nAnn:\nAnna:Yes.\nAnna:No.", [("", None, "Hm.\n"), ("Ann", "low", "\n"), ("Anna", "high", "Yes.\nNo.")]),
        ("Ann", [("", None, "Ann")]),
        ("It is 10:30.\nAnn : no.", [("", None, "It is 10:30.\nAnn : no.")]),
    ],
)
def test_label_begins_a_line_of_its_voice(text: str, lines: list[tuple[str, str | None, str]]):
    assert lines_of(parse([text])) == lines
    assert lines_of(parse(text)) == lines


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("<p>Ann: A.</p> B", [("", None, "\n\n"), ("Ann", "low", " A.\n\n"), ("", None, " B")]),
        ('Ann: A <voice name="high">b</voice> c', [("Ann", "low", " A "), ("high", "high", "b"), ("Ann", "low", " c")]),
        ("An<b>na: no", [("", None, "Anna: no")]),
        ("A.&#10;Ann: b<break/>c", [("", None, "A.\n"), ("Ann", "low", " b|c")]),
        ('<sub alias="x">\nAnn: y</sub>z', [("", None, "xz")]),
        ("<desc>\nAnn: y</desc>z", [("", None, "z")]),
    ],
)
def test_labels_and_tags_go_together(text: str, lines: list[tuple[str, str | None, str]]):
    assert lines_of(parse([text], is_ssml=True)) == lines
    assert lines_of(parse(text, is_ssml=True)) == lines


@pytest.mark.parametrize(
    ("text", "warnings"),
    [
        ("Ann: A.\nBob: B.\n Bob: C.\nThe Old Man: D.", [("Bob", 8), ("The Old Man", 25)]),
        ("A long way to go: x", []),
        ("At 10:30\nhttp://x\nhttp: no", [("http", 18)]),
        (f"{'x' * MAX_LABEL_CHARS}: a\n{'y' * (MAX_LABEL_CHARS + 1)}: b", [("x" * MAX_LABEL_CHARS, 0)]),
    ],
)
def test_line_of_an_unnamed_speaker_is_told_and_spoken(text: str, warnings: list[tuple[str, int]]):
    for pieces in ([text], text):
        items = parse(pieces)
        found = [(item.element, item.raw_start) for item in items if isinstance(item, MarkupWarning)]
        assert found == warnings
        spoken = "".join(item.text for item in items if isinstance(item, TextToken))
        assert spoken == text.removeprefix("Ann:")


def test_only_what_may_become_a_label_is_held():
    parser = create_parser()
    assert lines_of(parser.push("Hello, Ann")) == [("", None, "Hello, Ann")]
    assert lines_of(parser.push("\nAnn")) == [("", None, "\n")]
    assert parser.num_chars_held == 3
    assert lines_of(parser.push("ie")) == [("", None, "Annie")]
    list(parser.push("\nDr."))
    assert lines_of(parser.flush()) == [("", None, "Dr.")]
    assert parser.num_chars_held == 0


PIECES = [
    "Ann", "Anna", ":", "：", " ", "\n", "\r\n", "Bob: ", "Dr. Who: ", "李", "x", "a b. ", "<b>", "<break/>", "&#10;",
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


@given(texts, st.lists(st.integers(0, 99), max_size=4), st.booleans())
def test_cuts_change_nothing(text: str, places: list[int], is_ssml: bool):
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    whole, cut = parse([text], is_ssml), parse([text[start:end] for start, end in pairwise(edges)], is_ssml)
    assert lines_of(cut) == lines_of(whole)
    assert _raw(cut) == _raw(whole)
    assert _told(cut) == _told(whole)


def _raw(items: Iterable[MarkupItem]) -> list[tuple[str, int]]:
    """Each character that is spoken or hidden, and its place."""
    found: list[tuple[str, int]] = []
    for item in items:
        if isinstance(item, TextToken) and item.raw_end - item.raw_start == len(item.text):
            found += zip(item.text, range(item.raw_start, item.raw_end), strict=True)
        elif isinstance(item, HiddenToken):
            found += (("", place) for place in range(item.raw_start, item.raw_end))
    return found


def _told(items: Iterable[MarkupItem]) -> list[MarkupWarning]:
    return sorted((item for item in items if isinstance(item, MarkupWarning)), key=lambda item: item.raw_start)
