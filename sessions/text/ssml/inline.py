"""Vendors' inline forms of pauses and phonemes, read as tags of SSML as the text streams.

A token depends on the text alone and never on how it arrived. What is undecided is held: at most ``MAX_FORM_CHARS``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from sessions.text.ssml.tokens import HiddenToken, TagToken, TextToken, Token

# Longer ones are text.
MAX_FORM_CHARS = 256
_PAUSE = re.compile(r"pause:\s*(?P<time>[0-9.]{1,8}(?:ms|s))")


class InlineForm(StrEnum):
    # ``<500>``: a pause of 500 ms.
    RIME_PAUSE = "rime_pause"
    # ``{k1Ast0xm}``: phonemes.
    RIME_PHONEMES = "rime_phonemes"
    # ``\{pause:1s\}`` and ``\{"word": "tomato", "pronounce": "təˈmeɪtoʊ"\}``
    DEEPGRAM = "deepgram"


class _DeepgramWord(msgspec.Struct, frozen=True):
    word: str
    pronounce: str


def _read_rime_pause(match: re.Match[str], place: int) -> list[Token] | None:
    end = place + len(match[0])
    return [HiddenToken(place, end), _break(place, end, f"{match['ms']}ms")]


def _read_rime_phonemes(match: re.Match[str], place: int) -> list[Token] | None:
    return _phonemes("", place, place + len(match[0]), match["ph"], "rime")


def _read_deepgram(match: re.Match[str], place: int) -> list[Token] | None:
    end = place + len(match[0])
    if pause := _PAUSE.fullmatch(match["body"].strip()):
        return [HiddenToken(place, end), _break(place, end, pause["time"])]
    try:
        given = msgspec.json.decode("{" + match["body"] + "}", type=_DeepgramWord)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    start = match[0].find(given.word) if given.word else -1
    if start < 0:
        return None
    start += place
    stop = start + len(given.word)
    word = _phonemes(given.word, start, stop, given.pronounce, "ipa")
    return [HiddenToken(place, start), *word, HiddenToken(stop, end)]


def _break(start: int, end: int, time: str) -> TagToken:
    return TagToken("break", start, end, {"time": time}, is_close=True)


def _phonemes(text: str, start: int, end: int, phonemes: str, alphabet: str) -> list[Token]:
    """Text that stands for raw characters, with its pronunciation. Without text, only that is spoken."""
    return [
        TagToken("phoneme", start, start, {"ph": phonemes, "alphabet": alphabet}),
        TextToken(text, start, end),
        TagToken("phoneme", end, end, is_open=False, is_close=True),
    ]


class _Form(NamedTuple):
    first: str
    whole: re.Pattern[str]
    # What can become one with more text.
    begun: re.Pattern[str]
    # Returns ``None`` for what is text.
    read: Callable[[re.Match[str], int], list[Token] | None]


_FORMS = {
    InlineForm.RIME_PAUSE: _Form(
        "<", re.compile(r"<(?P<ms>[0-9]{1,5})>"), re.compile(r"<[0-9]{0,5}"), _read_rime_pause
    ),
    InlineForm.RIME_PHONEMES: _Form(
        "{", re.compile(r"\{(?P<ph>[^{}\s]{1,60})\}"), re.compile(r"\{[^{}\s]{0,60}"), _read_rime_phonemes
    ),
    InlineForm.DEEPGRAM: _Form(
        "\\",
        re.compile(r"\\\{(?P<body>[^{}\\]{1,250})\\\}"),
        re.compile(r"\\(?:\{(?:[^{}\\]{0,250}\\?)?)?"),
        _read_deepgram,
    ),
}


class InlineTokenizer:
    """Reads the forms of a wire; all other text is itself."""

    def __init__(self, forms: Sequence[InlineForm]) -> None:
        self._forms = {_FORMS[form].first: _FORMS[form] for form in forms}
        self._first = re.compile("|".join(map(re.escape, self._forms)))
        self._held = ""
        # Position of the first held character.
        self._position = 0

    @property
    def num_chars_held(self) -> int:
        return len(self._held)

    def push(self, text: str) -> Iterator[Token]:
        return self._scan(text, is_end=False)

    def flush(self) -> Iterator[Token]:
        """Return nothing: what is held may become a form."""
        return iter(())

    def finish(self) -> Iterator[Token]:
        return self._scan("", is_end=True)

    def _scan(self, text: str, is_end: bool) -> Iterator[Token]:
        data, at, start = self._held + text, 0, self._position
        while at < len(data):
            num_read, tokens = self._read(data, at, start + at, is_end)
            if not num_read:
                break
            at += num_read
            self._position = start + at
            yield from tokens
        self._held = data[at:]

    def _read(self, data: str, at: int, place: int, is_end: bool) -> tuple[int, list[Token]]:
        """Return the characters read from ``at`` on, and their tokens; 0 waits for more."""
        found = self._first.search(data, at)
        end = len(data) if found is None else found.start()
        if end > at:
            return end - at, [TextToken(data[at:end], place, place + end - at)]
        form, window = self._forms[data[at]], data[at : at + MAX_FORM_CHARS]
        match = form.whole.match(window)
        tokens = None if match is None else form.read(match, place)
        if match is not None and tokens is not None:
            return len(match[0]), tokens
        if match is None and form.begun.fullmatch(window) and not is_end:
            return 0, []
        return 1, [TextToken(data[at], place, place + 1)]
