"""A subset of SSML, read as it streams: text with its style, pauses and marks, each with its place in the raw text.

Text is always spoken; markup never is. What is unknown, broken or without effect becomes a warning, once each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace

from sessions.languages import is_english
from sessions.text.phonemes.alphabets import DEFAULT_ALPHABET, read_phonemes
from sessions.text.phonemes.respelling import SpelledPhonemes
from sessions.text.ssml.items import BreakItem, MarkItem, MarkupItem, StyleItem
from sessions.text.ssml.say_as import INTERPRETATIONS, say_as
from sessions.text.ssml.style import (
    BREAK_STRENGTHS_MS,
    DEFAULT_BREAK,
    MAX_BREAK_MS,
    MAX_TOTAL_BREAK_MS,
    PLAIN_STYLE,
    SpeechStyle,
    gain_of,
    nearest_gain,
    nearest_speed,
    nearest_volume_db,
    parse_duration_ms,
    parse_rate,
    parse_volume_db,
)
from sessions.text.ssml.tokens import (
    HiddenToken,
    MarkupTokenizer,
    MarkupWarning,
    SpeakerToken,
    TagToken,
    TagTokenizer,
    TextToken,
    Token,
    WarningCode,
    split_token,
)

MAX_DEPTH = 32
MAX_MARKS = 1_000
MAX_MARK_NAME_CHARS = 64
# Text of a ``say-as`` that is read as a whole; longer text is spoken as it is.
MAX_SAY_AS_CHARS = 200
# Later warnings of a response are dropped.
MAX_WARNINGS = 32
# Names of voices that one response looks up.
MAX_VOICE_NAMES = 64

MAX_EMOTION_CHARS = 40
_EMOTION = re.compile(rf"[a-z][a-z ,'-]{{0,{MAX_EMOTION_CHARS - 1}}}")

# Ends a sentence, as an empty line does.
PARAGRAPH = "\n\n"
# Elements whose text is spoken, without another effect.
_WITHOUT_EFFECT = frozenset(["emphasis", "audio"])
# Cartesia's forms, as ``emotion`` is: style of all text up to the end of the enclosing element.
_RATIOS = frozenset(["speed", "volume"])
# The attribute that gives another form of the text.
_FORMS = {"say-as": "interpret-as", "sub": "alias", "phoneme": "ph"}
_SILENT = frozenset(["desc", "metadata"])
_CONTAINERS = (
    frozenset(["speak", "p", "s", "say-as", "spell", "sub", "phoneme", "prosody", "lang", "voice"])
    | _WITHOUT_EFFECT
    | _SILENT
)
_EMPTY = frozenset(["break", "mark", "meta", "lexicon", "emotion"]) | _RATIOS


@dataclass(frozen=True, slots=True)
class MarkupContext:
    """What a response can do with markup."""

    # Language of the response.
    language: str = "auto"
    # Returns whether the client has a voice of this name.
    has_voice: Callable[[str], bool] = lambda name: False
    # Returns the checkpoint's word for a language, if it has one.
    find_language: Callable[[str], str | None] = lambda name: None
    # Returns whether the checkpoint follows this ``SpeechStyle.emotion``.
    takes_emotion: Callable[[str], bool] = lambda emotion: False
    # Whether the checkpoint reads phonemes in brackets.
    reads_phonemes: bool = False
    # Voices by the labels of their lines.
    speakers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Element:
    """An open element; ``style`` is that of the text around it."""

    name: str
    style: SpeechStyle


@dataclass(slots=True)
class _Rewriting:
    """Text that is spoken in another form, once its element ends."""

    element: TagToken
    raw_start: int
    raw_end: int
    text: str = ""
    # The form, where the element gives it.
    alias: str | None = None
    # How the text is read otherwise.
    interpret_as: str = ""


class SsmlParser:
    """``push`` and ``finish`` return items in the order of the raw text."""

    def __init__(self, context: MarkupContext | None = None, tokenizer: TagTokenizer | None = None) -> None:
        self._context = context or MarkupContext()
        self._tokenizer = tokenizer or MarkupTokenizer()
        self._elements: list[_Element] = []
        self._num_unopened = 0
        self._style = PLAIN_STYLE
        self._rewriting: _Rewriting | None = None
        self._num_marks = 0
        self._total_break_ms = 0.0
        self._known_voices: dict[str, bool] = {}
        self._warned: set[tuple[WarningCode, str]] = set()

    @property
    def num_chars_held(self) -> int:
        return self._tokenizer.num_chars_held + (len(self._rewriting.text) if self._rewriting else 0)

    def push(self, text: str) -> Iterator[MarkupItem]:
        return self._apply_all(self._tokenizer.push(text))

    def flush(self) -> Iterator[MarkupItem]:
        """Return what is held, but for an unfinished tag or element."""
        return self._apply_all(self._tokenizer.flush())

    def finish(self) -> Iterator[MarkupItem]:
        yield from self._apply_all(self._tokenizer.finish())
        yield from self._end_rewriting()
        if any(element.name != "speak" for element in self._elements):
            yield from self._warn(WarningCode.UNBALANCED, self._elements[-1].name, 0)

    def change_speaker(self, speaker: str, voice: str | None) -> Iterator[MarkupItem]:
        """End what is held, and have ``voice`` speak the text that follows; ``None`` is that of the response."""
        yield from self._apply_all(self._tokenizer.finish())
        yield from self._end_rewriting()
        if voice is not None and not self._has_voice(voice):
            yield from self._warn(WarningCode.UNKNOWN_VOICE, "voice", 0)
            voice = None
        yield from self._set_style(replace(self._style, voice=voice, speaker=speaker, emotion=""))

    def _apply_all(self, tokens: Iterator[Token]) -> Iterator[MarkupItem]:
        for token in tokens:
            match token:
                case TextToken():
                    yield from self._text(token)
                case MarkupWarning():
                    yield from self._warn(token.code, token.element, token.raw_start)
                case TagToken():
                    yield from self._tag(token)
                case SpeakerToken():
                    yield from self._speaker(token)
                case HiddenToken():
                    yield token

    def _text(self, token: TextToken) -> Iterator[MarkupItem]:
        held = self._rewriting
        if self._silent_element:
            yield HiddenToken(token.raw_start, token.raw_end)
            return
        if held is None:
            if token.text:
                yield token
            return
        held.raw_start = token.raw_start if held.raw_start == held.raw_end else held.raw_start
        rest = None
        if held.alias is None:
            # Text that is too long is cut where its length is known, however it arrived.
            token, rest = split_token(token, MAX_SAY_AS_CHARS + 1 - len(held.text))
            held.text += token.text
        held.raw_end = token.raw_end
        if len(held.text) > MAX_SAY_AS_CHARS:
            yield from self._warn(WarningCode.NOT_READABLE, held.element.name, held.element.raw_start)
            yield from self._speak_as_written(held)
        if rest is not None:
            yield rest

    def _speaker(self, token: SpeakerToken) -> Iterator[MarkupItem]:
        """Begin the line of a speaker. Its emotion is its own."""
        if self._rewriting is not None:
            yield from self._warn(WarningCode.NO_EFFECT, token.label, token.raw_start)
        elif not self._silent_element:
            voice = self._context.speakers[token.label]
            yield from self._set_style(replace(self._style, voice=voice, speaker=token.label, emotion=""))

    @property
    def _silent_element(self) -> str:
        """The open element whose text is not spoken, or an empty string."""
        name = self._elements[-1].name if self._elements else ""
        return name if name in _SILENT else ""

    def _tag(self, tag: TagToken) -> Iterator[MarkupItem]:
        if self._silent_element and not (tag.name == self._silent_element and not tag.is_open):
            return
        if self._rewriting is not None:
            if not (tag.is_close and not tag.is_open and tag.name == self._rewriting.element.name):
                yield from self._warn(WarningCode.NO_EFFECT, tag.name, tag.raw_start)
                return
            yield from self._end_rewriting()
        if tag.name not in _CONTAINERS and tag.name not in _EMPTY:
            yield from self._warn(WarningCode.UNKNOWN_ELEMENT, tag.name, tag.raw_start)
        elif tag.name in _EMPTY:
            if tag.is_open:
                yield from self._empty_element(tag)
        else:
            if tag.is_open:
                yield from self._open(tag)
            if tag.is_close:
                yield from self._close(tag)

    def _open(self, tag: TagToken) -> Iterator[MarkupItem]:
        if len(self._elements) >= MAX_DEPTH:
            self._num_unopened += 1
            yield from self._warn(WarningCode.TOO_DEEP, tag.name, tag.raw_start)
            return
        self._elements.append(_Element(tag.name, self._style))
        if tag.name in _WITHOUT_EFFECT:
            yield from self._warn(WarningCode.NO_EFFECT, tag.name, tag.raw_start)
        elif tag.name == "spell" or tag.name in _FORMS:
            yield from self._begin_rewriting(tag)
        elif tag.name in ("p", "s"):
            yield TextToken(PARAGRAPH, tag.raw_start, tag.raw_start)
        yield from self._change_style(tag)

    def _close(self, tag: TagToken) -> Iterator[MarkupItem]:
        """End an element, and those in it that have not ended."""
        if self._num_unopened:
            self._num_unopened -= 1
            return
        names = [element.name for element in self._elements]
        if tag.name not in names or names[-1] != tag.name:
            yield from self._warn(WarningCode.UNBALANCED, tag.name, tag.raw_start)
        if tag.name not in names:
            return
        element = self._elements.pop()
        while element.name != tag.name:
            element = self._elements.pop()
        yield from self._end_rewriting()
        if tag.name in ("p", "s"):
            yield TextToken(PARAGRAPH, tag.raw_start, tag.raw_start)
        yield from self._set_style(element.style)

    def _empty_element(self, tag: TagToken) -> Iterator[MarkupItem]:
        match tag.name:
            case "break":
                yield from self._break(tag)
            case "mark":
                yield from self._mark(tag)
            case "speed" | "volume":
                yield from self._ratio(tag)
            case "emotion":
                yield from self._emotion(tag)
            case "lexicon":
                yield from self._warn(WarningCode.NO_EFFECT, tag.name, tag.raw_start)

    def _break(self, tag: TagToken) -> Iterator[MarkupItem]:
        strength, time = tag.attributes.get("strength", DEFAULT_BREAK), tag.attributes.get("time")
        named_ms = BREAK_STRENGTHS_MS.get(strength.strip().lower())
        wanted_ms = parse_duration_ms(time) if time is not None else named_ms
        if wanted_ms is None:
            yield from self._warn(WarningCode.INVALID_ATTRIBUTE, tag.name, tag.raw_start)
            wanted_ms = float(BREAK_STRENGTHS_MS[DEFAULT_BREAK] if named_ms is None else named_ms)
        if wanted_ms > MAX_BREAK_MS:
            yield from self._warn(WarningCode.OUT_OF_RANGE, tag.name, tag.raw_start)
        duration_ms = min(wanted_ms, MAX_BREAK_MS)
        if self._total_break_ms + duration_ms > MAX_TOTAL_BREAK_MS:
            yield from self._warn(WarningCode.TOO_MANY, tag.name, tag.raw_start)
        elif duration_ms > 0:
            self._total_break_ms += duration_ms
            yield BreakItem(duration_ms)

    def _mark(self, tag: TagToken) -> Iterator[MarkupItem]:
        name = tag.attributes.get("name", "")
        self._num_marks += 1
        if not 0 < len(name) <= MAX_MARK_NAME_CHARS:
            yield from self._warn(WarningCode.INVALID_ATTRIBUTE, tag.name, tag.raw_start)
        elif self._num_marks > MAX_MARKS:
            yield from self._warn(WarningCode.TOO_MANY, tag.name, tag.raw_start)
        else:
            yield MarkItem(name, tag.raw_start)

    def _ratio(self, tag: TagToken) -> Iterator[MarkupItem]:
        ratio = parse_rate(tag.attributes.get("ratio", ""))
        is_speed = tag.name == "speed"
        nearest = ratio if ratio is None else nearest_speed(ratio) if is_speed else nearest_gain(ratio)
        yield from self._check_value(tag, ratio, nearest)
        if nearest is not None:
            style = replace(self._style, speed=nearest) if is_speed else replace(self._style, gain=nearest)
            yield from self._set_style(style)

    def _emotion(self, tag: TagToken) -> Iterator[MarkupItem]:
        emotion = " ".join(tag.attributes.get("value", "").lower().split())
        if not _EMOTION.fullmatch(emotion):
            yield from self._warn(WarningCode.INVALID_ATTRIBUTE, tag.name, tag.raw_start)
        elif emotion == "neutral":
            yield from self._set_style(replace(self._style, emotion=""))
        elif self._context.takes_emotion(emotion):
            yield from self._set_style(replace(self._style, emotion=emotion))
        else:
            yield from self._warn(WarningCode.NO_EFFECT, tag.name, tag.raw_start)

    def _begin_rewriting(self, tag: TagToken) -> Iterator[MarkupItem]:
        given = tag.attributes.get(_FORMS.get(tag.name, ""), "characters" if tag.name == "spell" else None)
        alias = interpret_as = None
        if given is not None and tag.name == "phoneme":
            alias = self._spell(given, tag.attributes.get("alphabet", DEFAULT_ALPHABET))
        elif given is not None and tag.name == "sub":
            alias = given
        elif given is not None and given.strip().lower() in INTERPRETATIONS:
            interpret_as = given
        if given is None:
            yield from self._warn(WarningCode.INVALID_ATTRIBUTE, tag.name, tag.raw_start)
        elif alias is None and interpret_as is None:
            yield from self._warn(WarningCode.NOT_READABLE, tag.name, tag.raw_start)
        else:
            self._rewriting = _Rewriting(tag, tag.raw_end, tag.raw_end, alias=alias, interpret_as=interpret_as or "")

    def _spell(self, written: str, alphabet: str) -> str | None:
        phonemes = read_phonemes(written, alphabet) if self._is_english else None
        if phonemes is None:
            return None
        return SpelledPhonemes.from_phonemes(phonemes).text_for(self._context.reads_phonemes)

    @property
    def _is_english(self) -> bool:
        return is_english(self._style.language or self._context.language)

    def _end_rewriting(self) -> Iterator[MarkupItem]:
        held = self._rewriting
        if held is None:
            return
        spoken = held.alias
        if spoken is None:
            layout = held.element.attributes.get("format", "")
            spoken = say_as(held.text, held.interpret_as, layout, self._is_english)
        if spoken is None:
            if held.text.strip():
                yield from self._warn(WarningCode.NOT_READABLE, held.element.name, held.element.raw_start)
            yield from self._speak_as_written(held)
        else:
            self._rewriting = None
            if spoken:
                yield TextToken(spoken, held.raw_start, held.raw_end)

    def _speak_as_written(self, held: _Rewriting) -> Iterator[MarkupItem]:
        self._rewriting = None
        if held.text:
            yield TextToken(held.text, held.raw_start, held.raw_end)

    def _change_style(self, tag: TagToken) -> Iterator[MarkupItem]:
        style = self._style
        if tag.name in ("speak", "p", "s", "lang", "voice") and "xml:lang" in tag.attributes:
            language = self._context.find_language(tag.attributes["xml:lang"])
            if language is None:
                yield from self._warn(WarningCode.UNKNOWN_LANGUAGE, tag.name, tag.raw_start)
            else:
                style = replace(style, language=language)
        elif tag.name == "lang":
            yield from self._warn(WarningCode.INVALID_ATTRIBUTE, tag.name, tag.raw_start)
        if tag.name == "voice":
            name = tag.attributes.get("name", "")
            if self._has_voice(name):
                style = replace(style, voice=name, speaker=name)
            else:
                yield from self._warn(WarningCode.UNKNOWN_VOICE, tag.name, tag.raw_start)
        if tag.name == "prosody":
            style = yield from self._prosody(tag, style)
        yield from self._set_style(style)

    def _set_style(self, style: SpeechStyle) -> Iterator[MarkupItem]:
        if style != self._style:
            self._style = style
            yield StyleItem(style)

    def _prosody(self, tag: TagToken, style: SpeechStyle) -> Generator[MarkupItem, None, SpeechStyle]:
        attributes = tag.attributes
        if not attributes.keys().isdisjoint(["pitch", "range", "contour", "duration"]):
            yield from self._warn(WarningCode.NO_EFFECT, tag.name, tag.raw_start)
        if "rate" in attributes:
            speed = parse_rate(attributes["rate"])
            yield from self._check_value(tag, speed, speed if speed is None else nearest_speed(speed))
            style = style if speed is None else replace(style, speed=nearest_speed(speed))
        if "volume" in attributes:
            volume_db = parse_volume_db(attributes["volume"])
            yield from self._check_value(tag, volume_db, None if volume_db is None else nearest_volume_db(volume_db))
            style = style if volume_db is None else replace(style, gain=gain_of(nearest_volume_db(volume_db)))
        return style

    def _check_value(self, tag: TagToken, value: float | None, nearest: float | None) -> Iterator[MarkupItem]:
        if value is None:
            yield from self._warn(WarningCode.INVALID_ATTRIBUTE, tag.name, tag.raw_start)
        elif value != nearest:
            yield from self._warn(WarningCode.OUT_OF_RANGE, tag.name, tag.raw_start)

    def _has_voice(self, name: str) -> bool:
        if name not in self._known_voices:
            if len(self._known_voices) >= MAX_VOICE_NAMES:
                return False
            self._known_voices[name] = bool(name) and self._context.has_voice(name)
        return self._known_voices[name]

    def _warn(self, code: WarningCode, element: str, raw_start: int) -> Iterator[MarkupItem]:
        if (code, element) not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add((code, element))
            yield MarkupWarning(code, element, raw_start)
