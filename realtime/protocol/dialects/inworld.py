"""Inworld's ``/tts/v1/voice:streamBidirectional``: contexts by their ids, at once; and ``/tts/v1/voice:stream``.

A ``close_context`` after a flush lets the context speak to its end. One that comes while it speaks and text is left to
flush is an interruption, and so is a second one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from msgspec import Struct, field

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect, HttpDialect
from realtime.protocol.dialects.parsing import dump, encode_base64, parse_json, require_context_id, text_only

DEFAULT_RATE = 48_000
ENCODINGS = {
    "LINEAR16": "wav",
    "WAV": "wav",
    "PCM": "pcm_s16le",
    "MP3": "mp3",
    "OGG_OPUS": "ogg_opus",
    "FLAC": "flac",
    "MULAW": "mulaw",
    "ALAW": "alaw",
}
# Status codes of gRPC; other errors are client errors (3) or internal errors (13).
CODES = {"unauthorized": 16, "overloaded": 8, "limit_exceeded": 8, "draining": 14, "engine_dead": 14}
SERVER_FAULT_CODES = ("internal_error", "session_error", "engine_error", "engine_timeout")
NOT_FOUND = 5


class InworldAudioConfig(Struct, rename="camel"):
    audio_encoding: str = "MP3"
    sample_rate_hertz: int | None = None
    bitrate: int | None = None
    speaking_rate: float | None = None


class InworldCreate(Struct, rename="camel"):
    voice_id: str | None = None
    audio_config: InworldAudioConfig = field(default_factory=InworldAudioConfig)
    language: str | None = None
    timestamp_type: str = ""

    @property
    def to_options(self) -> model.SpeechOptions:
        audio = self.audio_config
        encoding = ENCODINGS.get(audio.audio_encoding.upper())
        if encoding is None:
            message = f"audioEncoding must be {', '.join(ENCODINGS)}, is {audio.audio_encoding[:40]!r}"
            raise RemoteProtocolError("unsupported_format", message, "audioEncoding")
        natural = 8_000 if encoding in ("mulaw", "alaw") else DEFAULT_RATE
        rate, bitrate = audio.sample_rate_hertz or natural, audio.bitrate or None
        return model.SpeechOptions(
            voice=self.voice_id,
            language=self.language,
            format=model.RequestedFormat(encoding, rate, bitrate if encoding in ("mp3", "ogg_opus") else None),
            speed=audio.speaking_rate or 1.0,
            word_times=self.timestamp_type in ("WORD", "CHARACTER"),
            ssml=True,
            inline_forms=("brackets",),
        )


class InworldText(Struct):
    text: str = ""


class InworldMessage(Struct):
    context_id: str | None = field(default=None, name="contextId")
    create: InworldCreate | None = None
    send_text: InworldText | None = None
    flush_context: dict[str, Any] | None = None
    close_context: dict[str, Any] | None = None
    cancel_context: dict[str, Any] | None = None


@dataclass(slots=True)
class InworldContext:
    by_character: bool
    unflushed: bool = False
    sounds: bool = False
    closed: bool = False
    last_word_ms: float = 0.0
    # Times count from the end of the last word before the last flush.
    base_ms: float = 0.0


class InworldDialect(Dialect):
    forgiving = True

    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self._contexts: dict[str, InworldContext] = {}

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        parsed = parse_json(text_only(message), InworldMessage)
        context = require_context_id(parsed.context_id or "")
        if parsed.create is not None:
            yield from self._create(context, parsed.create)
        if parsed.send_text is not None and parsed.send_text.text:
            yield from self._write(context, parsed.send_text.text)
        if parsed.flush_context is not None:
            yield from self._flush(context)
        if parsed.close_context is not None:
            yield from self._close(context)
        if parsed.cancel_context is not None and context in self._contexts:
            yield model.CancelContext(context)

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextAudio():
                self._contexts[event.context].sounds = True
                yield self._result(event.context, audioChunk={"audioContent": encode_base64(event.data)})
            case model.ContextWords():
                spoken = self._contexts[event.context]
                spoken.last_word_ms = event.words[-1].end_ms
                info = timestamp_info(event.words, spoken.base_ms, spoken.by_character)
                yield self._result(event.context, audioChunk={"timestampInfo": info})
            case model.ContextFlushed():
                spoken = self._contexts[event.context]
                spoken.base_ms = spoken.last_word_ms
                yield self._result(event.context, flushCompleted={})
            case model.ContextEnded():
                yield from self._end(event)

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[model.DialectCommand]:
        yield model.SendMessage(dump(error=status_of(error)))

    @classmethod
    def reject_handshake(cls, error: ErrorInfo, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        return {"error": status_of(error), **status_of(error)}, {}

    def _create(self, context: str, create: InworldCreate) -> Iterator[model.DialectCommand]:
        if context in self._contexts:
            yield self._failed(context, 6, f"Context {context[:40]!r} exists already")
            return
        try:
            options = create.to_options
        except RemoteProtocolError as error:
            yield self._failed(context, 3, str(error))
            return
        self._contexts[context] = InworldContext(create.timestamp_type == "CHARACTER")
        yield self._result(context, contextCreated={})
        yield model.OpenContext(context, options)

    def _write(self, context: str, text: str) -> Iterator[model.DialectCommand]:
        spoken = self._contexts.get(context)
        if spoken is None or spoken.closed:
            yield self._failed(context, NOT_FOUND, "Context not found")
            return
        spoken.unflushed = True
        yield model.AppendText(context, text)

    def _flush(self, context: str) -> Iterator[model.DialectCommand]:
        spoken = self._contexts.get(context)
        if spoken is None or spoken.closed:
            yield self._failed(context, NOT_FOUND, "Context not found")
            return
        spoken.unflushed = False
        yield model.FlushContext(context)

    def _close(self, context: str) -> Iterator[model.DialectCommand]:
        spoken = self._contexts.get(context)
        if spoken is None:
            yield self._failed(context, NOT_FOUND, "Context not found")
            return
        interrupted = spoken.closed or (spoken.unflushed and spoken.sounds)
        spoken.closed = True
        yield model.CancelContext(context) if interrupted else model.EndContext(context)

    def _end(self, event: model.ContextEnded) -> Iterator[model.DialectCommand]:
        if self._contexts.pop(event.context, None) is None:
            return
        if (error := event.failure) is not None:
            status = status_of(error)
            yield self._failed(event.context, status["code"], status["message"])
        yield self._result(event.context, contextClosed={})

    def _result(self, context: str, **what: Any) -> model.SendMessage:
        status = {"code": 0, "message": "", "details": []}
        return model.SendMessage(dump(result={"contextId": context, "status": status, **what}))

    def _failed(self, context: str, code: int, message: str) -> model.SendMessage:
        return model.SendMessage(
            dump(result={"contextId": context, "status": {"code": code, "message": message, "details": []}})
        )


def status_of(error: ErrorInfo) -> dict[str, Any]:
    code = CODES.get(error.code, 13 if error.code in SERVER_FAULT_CODES else 3)
    return {"code": code, "message": error.message, "details": []}


def timestamp_info(words: tuple[model.TimedWord, ...], base_ms: float, by_character: bool) -> dict[str, Any]:
    def seconds(ms: float) -> float:
        return round((ms - base_ms) / 1000, 3)

    if not by_character:
        return {
            "wordAlignment": {
                "words": [word.text for word in words],
                "wordStartTimeSeconds": [seconds(word.start_ms) for word in words],
                "wordEndTimeSeconds": [seconds(word.end_ms) for word in words],
            }
        }
    characters, starts, ends = [], [], []
    for word in words:
        characters += [*word.text, " "]
        starts += [seconds(word.start_ms), *map(seconds, word.char_ends_ms)]
        ends += [*map(seconds, word.char_ends_ms), seconds(word.end_ms)]
    return {
        "characterAlignment": {
            "characters": characters,
            "characterStartTimeSeconds": starts,
            "characterEndTimeSeconds": ends,
        }
    }


class InworldBody(InworldCreate, rename="camel"):
    text: str = ""


class InworldStream(HttpDialect):
    """POST: a text in, a JSON object a line out."""

    media_type = "application/json"

    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self._by_character = False

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        body = parse_json(message, InworldBody)
        self._by_character = body.timestamp_type == "CHARACTER"
        yield from self.start_response(body.to_options, body.text)

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextAudio():
                yield self._line(audioContent=encode_base64(event.data))
            case model.ContextWords():
                yield self._line(timestampInfo=timestamp_info(event.words, 0.0, self._by_character))
            case _:
                yield from super().send_event(event)

    @classmethod
    def reject_handshake(cls, error: ErrorInfo, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        return status_of(error), {}

    def _line(self, **result: Any) -> model.SendMessage:
        return model.SendMessage(dump(result=result) + "\n")
