"""Cut marked-up text into text and tags as it arrives, without entities of its own, DTDs or anything to fetch.

A token depends on the text alone and never on how it arrived. What is undecided is held: at most ``MAX_TAG_CHARS``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from sessions.text.spans import SpannedText

# A longer tag is broken.
MAX_TAG_CHARS = 256
MAX_NAME_CHARS = 32

_NAME = rf"[A-Za-z_][A-Za-z0-9_.:-]{{0,{MAX_NAME_CHARS - 1}}}"
_VALUE = r"(?:\"[^\"<]*\"|'[^'<]*')"
_ATTRIBUTE = rf"\s+{_NAME}\s*=\s*{_VALUE}"
_TAG = re.compile(rf"<(?P<close>/?)(?P<name>{_NAME})(?P<attributes>(?:{_ATTRIBUTE})*)\s*(?P<empty>/?)>")
# The well-formed start of a tag.
_TAG_HEAD = re.compile(rf"</?(?P<name>{_NAME})(?:{_ATTRIBUTE})*")
_ATTRIBUTES = re.compile(rf"\s+(?P<name>{_NAME})\s*=\s*(?P<value>{_VALUE})")
# What can become a tag with more text.
_OPEN_TAG = re.compile(rf"</?(?:{_NAME}(?:{_ATTRIBUTE})*(?:\s*/?|\s+{_NAME}\s*(?:=\s*(?:\"[^\"<]*|'[^'<]*)?)?|\s+))?")
_TAG_EDGE = re.compile(r"[<>]")
_ENTITY = re.compile(rf"&(?:#(?P<decimal>[0-9]{{1,7}})|#x(?P<hex>[0-9A-Fa-f]{{1,6}})|(?P<name>{_NAME}));")
_OPEN_ENTITY = re.compile(rf"&(?:#(?:[0-9]{{0,7}}|x[0-9A-Fa-f]{{0,6}})|{_NAME})?")
_MAX_ENTITY_CHARS = MAX_NAME_CHARS + 2
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_MARKUP = re.compile(r"[<&]")
_SURROGATES = range(0xD800, 0xE000)
_CONTROLS = frozenset(map(ord, "\t\n\r"))
_MAX_CODE_POINT = 0x10FFFF
# Sections that hold no tags, and how they end; the first that fits counts.
_SECTIONS = {"<!--": "-->", "<![CDATA[": "]]>", "<?": "?>", "<!": ">"}
_CDATA_END, _DTD_END = "]]>", ">"
_DTD_MARKS = re.compile(r"[\[\]>]")


class WarningCode(StrEnum):
    """What was wrong with markup, or has no effect here."""

    BROKEN = "broken_markup"
    UNKNOWN_ELEMENT = "unknown_element"
    UNKNOWN_ENTITY = "unknown_entity"
    UNKNOWN_VOICE = "unknown_voice"
    # A line begins like one of a speaker that was not named.
    UNKNOWN_SPEAKER = "unknown_speaker"
    UNKNOWN_LANGUAGE = "unknown_language"
    # An attribute is missing, or its value cannot be read.
    INVALID_ATTRIBUTE = "invalid_attribute"
    # A value was replaced by the nearest possible one.
    OUT_OF_RANGE = "out_of_range"
    # Understood, without effect on speech.
    NO_EFFECT = "no_effect"
    # A tag without its counterpart.
    UNBALANCED = "unbalanced"
    TOO_DEEP = "too_deep"
    TOO_MANY = "too_many"
    # The text cannot be read as asked, and is spoken as it is.
    NOT_READABLE = "not_readable"


@dataclass(frozen=True, slots=True)
class TextToken:
    """Text that stands for raw characters."""

    text: str
    raw_start: int
    raw_end: int


@dataclass(frozen=True, slots=True)
class TagToken:
    name: str
    raw_start: int
    raw_end: int
    attributes: Mapping[str, str] = field(default_factory=dict)
    is_open: bool = True
    is_close: bool = False


@dataclass(frozen=True, slots=True)
class MarkupWarning:
    """``element`` is the name of a tag, or empty."""

    code: WarningCode
    element: str
    raw_start: int


@dataclass(frozen=True, slots=True)
class HiddenToken:
    """Raw characters that are not spoken: a tag, or text that is left out."""

    raw_start: int
    raw_end: int


@dataclass(frozen=True, slots=True)
class SpeakerToken:
    """The label of the speaker of the text that follows."""

    label: str
    raw_start: int


Token = TextToken | TagToken | SpeakerToken | MarkupWarning | HiddenToken


class TagTokenizer(Protocol):
    """Cuts raw text into tokens. They do not depend on the cut of the text."""

    @property
    def num_chars_held(self) -> int: ...

    def push(self, text: str) -> Iterator[Token]: ...

    def flush(self) -> Iterator[Token]:
        """Return what is held as far as it is text."""
        ...

    def finish(self) -> Iterator[Token]: ...


class PlainTokenizer:
    """Text without markup."""

    num_chars_held = 0

    def __init__(self) -> None:
        self._num_chars = 0

    def push(self, text: str) -> Iterator[Token]:
        if text:
            self._num_chars += len(text)
            yield TextToken(text, self._num_chars - len(text), self._num_chars)

    def flush(self) -> Iterator[Token]:
        return iter(())

    def finish(self) -> Iterator[Token]:
        return iter(())


def split_token(token: TextToken, num_chars: int) -> tuple[TextToken, TextToken | None]:
    """Return the first ``num_chars`` and the rest, where each character stands for a raw one; else the whole token."""
    if len(token.text) <= num_chars or len(token.text) != token.raw_end - token.raw_start:
        return token, None
    cut = token.raw_start + num_chars
    head, rest = token.text[:num_chars], token.text[num_chars:]
    return TextToken(head, token.raw_start, cut), TextToken(rest, cut, token.raw_end)


def text_tokens(text: SpannedText) -> Iterator[TextToken]:
    """Return text as tokens, one for each of its spans."""
    place = 0
    for span in text.spans:
        yield TextToken(text.text[place : place + span.num_chars], span.raw_start, span.raw_end)
        place += span.num_chars


class MarkupTokenizer:
    """Tags and entities that cannot be read become a warning and are no text."""

    def __init__(self) -> None:
        self._held = ""
        # Position of the first held character.
        self._position = 0
        # What ends the comment, CDATA, instruction or DTD that is being read.
        self._section_end = ""
        # Brackets open in a DTD.
        self._num_brackets = 0

    @property
    def num_chars_held(self) -> int:
        return len(self._held)

    def push(self, text: str) -> Iterator[Token]:
        return self._scan(text, is_end=False)

    def flush(self) -> Iterator[Token]:
        """Return what is held, unless it may become a tag."""
        if not self._section_end and not (self._held[:1] == "<" and _OPEN_TAG.fullmatch(self._held)):
            yield from self._scan("", is_end=True)

    def finish(self) -> Iterator[Token]:
        yield from self._scan("", is_end=True)
        if self._section_end:
            yield MarkupWarning(WarningCode.BROKEN, "", self._position)

    def _scan(self, text: str, is_end: bool) -> Iterator[Token]:
        data, at, start = self._held + text, 0, self._position
        while at < len(data):
            num_read, token = self._read(data, at, start + at, is_end)
            if not num_read:
                break
            if not isinstance(token, TextToken):
                yield HiddenToken(start + at, start + at + num_read)
            at += num_read
            self._position = start + at
            if token is not None:
                yield token
        self._held = data[at:]

    def _read(self, data: str, at: int, place: int, is_end: bool) -> tuple[int, Token | None]:
        """Return the characters read from ``at`` on, and their token if they have one; 0 waits for more."""
        if self._section_end:
            return self._read_section(data, at, place, is_end)
        if data[at] == "<":
            return self._read_tag(data[at : at + MAX_TAG_CHARS + 1], place, is_end)
        if data[at] == "&":
            return _read_entity(data[at : at + _MAX_ENTITY_CHARS + 1], place, is_end)
        match = _MARKUP.search(data, at)
        end = match.start() if match else len(data)
        return end - at, TextToken(data[at:end], place, place + end - at)

    def _read_tag(self, window: str, place: int, is_end: bool) -> tuple[int, Token | None]:
        """``window`` is as long as a tag may be, or ends where the text does so far."""
        if match := _TAG.match(window):
            return match.end(), _tag(match, place)
        for begin, end in _SECTIONS.items():
            if window.startswith(begin):
                self._section_end, self._num_brackets = end, 0
                is_dtd = end == _DTD_END
                return len(begin), MarkupWarning(WarningCode.NO_EFFECT, "DOCTYPE", place) if is_dtd else None
            if begin.startswith(window) and not is_end:
                return 0, None
        is_too_long = len(window) > MAX_TAG_CHARS
        is_open = not is_too_long and _OPEN_TAG.fullmatch(window) is not None
        if is_open and not is_end:
            return 0, None
        head = _TAG_HEAD.match(window)
        if head is None:  # a sign in the text
            return 1, TextToken("<", place, place + 1)
        edge = _TAG_EDGE.search(window, 1)
        if edge is None and not (is_too_long or is_end):
            return 0, None
        warning = MarkupWarning(WarningCode.BROKEN, head["name"], place)
        if is_open:  # the text ends in it
            return len(window), warning
        return edge.end() if edge is not None and edge[0] == ">" else head.end(), warning

    def _read_section(self, data: str, at: int, place: int, is_end: bool) -> tuple[int, Token | None]:
        end = self._section_end
        found = self._find_dtd_end(data, at) if end == _DTD_END else data.find(end, at)
        if found == at:
            self._section_end = ""
            return len(end), None
        reached = found if found > at else len(data) if is_end else max(len(data) - len(end) + 1, at)
        text = TextToken(data[at:reached], place, place + reached - at)
        return reached - at, text if end == _CDATA_END else None

    def _find_dtd_end(self, data: str, at: int) -> int:
        for mark in _DTD_MARKS.finditer(data, at):
            if mark[0] == ">" and self._num_brackets <= 0:
                return mark.start()
            self._num_brackets += {"[": 1, "]": -1, ">": 0}[mark[0]]
        return -1


def _tag(match: re.Match[str], place: int) -> TagToken:
    attributes = {one["name"]: _unescape(one["value"][1:-1]) for one in _ATTRIBUTES.finditer(match["attributes"])}
    is_close = bool(match["close"])
    return TagToken(
        match["name"],
        place,
        place + match.end(),
        attributes,
        is_open=not is_close,
        is_close=is_close or bool(match["empty"]),
    )


def _unescape(value: str) -> str:
    """Replace entities of an attribute; unknown ones become nothing."""
    return _ENTITY.sub(lambda match: _character(match) or "", value)


def _read_entity(window: str, place: int, is_end: bool) -> tuple[int, Token | None]:
    if match := _ENTITY.match(window):
        if (character := _character(match)) is None:
            return match.end(), MarkupWarning(WarningCode.UNKNOWN_ENTITY, "", place)
        return match.end(), TextToken(character, place, place + match.end())
    if _OPEN_ENTITY.fullmatch(window) and not is_end:
        return 0, None
    return 1, TextToken("&", place, place + 1)


def _character(match: re.Match[str]) -> str | None:
    if match["name"]:
        return _ENTITIES.get(match["name"])
    code = int(match["decimal"]) if match["decimal"] else int(match["hex"], 16)
    is_valid = ord(" ") <= code <= _MAX_CODE_POINT and code not in _SURROGATES
    return chr(code) if is_valid or code in _CONTROLS else None
