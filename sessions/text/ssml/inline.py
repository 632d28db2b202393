"""Vendors' inline forms of pauses, phonemes and tones of voice, read as tags of SSML as the text streams.

A token depends on the text alone and never on how it arrived. What is undecided is held: at most ``MAX_FORM_CHARS``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from sessions.config import InlineForm
from sessions.text.spans import SpannedText
from sessions.text.ssml.layers import TextLayer
from sessions.text.ssml.tokens import (
    HiddenToken,
    MarkupWarning,
    TagToken,
    TagTokenizer,
    TextToken,
    Token,
    WarningCode,
    text_tokens,
)

# Longer ones are text.
MAX_FORM_CHARS = 256
_PAUSE = re.compile(r"pause:\s*(?P<time>[0-9.]{1,8}(?:ms|s))")
# Tags in brackets that are pauses, by the strength of a break, and that are sounds, which no model makes here.
_BRACKET_PAUSES = {"short pause": "weak", "pause": "medium", "long pause": "strong"}
_SOUNDS = re.compile(
    "(?:breath|breathe|inhale|exhale|cough|laugh|chuckle|giggle|sigh|yawn|gasp|gulp|swallow|sniff|snort|sneeze"
    "|clear throat|clears throat|applause|clapping|explosion|gunshot|music)s?"
)


class _DeepgramWord(msgspec.Struct, frozen=True):
    word: str
    pronounce: str


def _read_rime_pause(match: re.Match[str], form: SpannedText) -> list[Token] | None:
    return [_hidden(form), _break(form, {"time": f"{match['ms']}ms"})]


def _read_rime_phonemes(match: re.Match[str], form: SpannedText) -> list[Token] | None:
    return _phonemes("", form.raw_start, form.raw_end, match["ph"], "rime")


def _read_deepgram(match: re.Match[str], form: SpannedText) -> list[Token] | None:
    if pause := _PAUSE.fullmatch(match["body"].strip()):
        return [_hidden(form), _break(form, {"time": pause["time"]})]
    try:
        given = msgspec.json.decode("{" + match["body"] + "}", type=_DeepgramWord)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    at = match[0].find(given.word) if given.word else -1
    if at < 0:
        return None
    word = form.cut(at, at + len(given.word))
    tokens = _phonemes(given.word, word.raw_start, word.raw_end, given.pronounce, "ipa")
    return [HiddenToken(form.raw_start, word.raw_start), *tokens, HiddenToken(word.raw_end, form.raw_end)]


def _read_brackets(match: re.Match[str], form: SpannedText) -> list[Token] | None:
    tag = match["tag"].lower().replace("_", " ")
    if tag in _BRACKET_PAUSES:
        return [_hidden(form), _break(form, {"strength": _BRACKET_PAUSES[tag]})]
    if _SOUNDS.fullmatch(tag):
        return [_hidden(form), MarkupWarning(WarningCode.NO_EFFECT, match["tag"], form.raw_start)]
    return [_hidden(form), TagToken("emotion", form.raw_start, form.raw_end, {"value": tag}, is_close=True)]


def _hidden(form: SpannedText) -> HiddenToken:
    return HiddenToken(form.raw_start, form.raw_end)


def _break(form: SpannedText, attributes: dict[str, str]) -> TagToken:
    return TagToken("break", form.raw_start, form.raw_end, attributes, is_close=True)


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
    read: Callable[[re.Match[str], SpannedText], list[Token] | None]


_FORMS = {
    InlineForm.RIME_PAUSE: _Form(
        "<",
        re.compile(r"<(?P<ms>[0-9]{1,5}(?:\.[0-9]{1,3})?)>"),
        re.compile(r"<(?:[0-9]{1,5}(?:\.[0-9]{0,3})?)?"),
        _read_rime_pause,
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
    InlineForm.BRACKETS: _Form(
        "[",
        re.compile(r"\[(?P<tag>[A-Za-z][A-Za-z ,'_-]{0,39})\]"),
        re.compile(r"\[(?:[A-Za-z][A-Za-z ,'_-]{0,39})?"),
        _read_brackets,
    ),
}


class InlineForms(TextLayer):
    """Reads the forms of a wire; all other text is itself."""

    def __init__(self, forms: Sequence[InlineForm], inner: TagTokenizer | None = None) -> None:
        super().__init__(inner)
        self._forms = {_FORMS[form].first: _FORMS[form] for form in forms}
        self._first = re.compile("|".join(map(re.escape, self._forms)))

    def _read(self, text: SpannedText, at: int, is_end: bool) -> tuple[int, Iterable[Token]]:
        data = text.text
        found = self._first.search(data, at)
        end = len(data) if found is None else found.start()
        if end > at:
            return end - at, text_tokens(text.cut(at, end))
        form, window = self._forms[data[at]], data[at : at + MAX_FORM_CHARS]
        match = form.whole.match(window)
        tokens = None if match is None else form.read(match, text.cut(at, at + match.end()))
        if match is not None and tokens is not None:
            return match.end(), tokens
        if match is None and form.begun.fullmatch(window) and not is_end:
            return 0, ()
        return 1, text_tokens(text.cut(at, at + 1))
