"""Rime's WebSocket v1 at ``/ws``: contexts by their ids, at once; each ends with one of done, cancelled, error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect
from realtime.protocol.dialects.parsing import require_context_id
from realtime.protocol.dialects.rime_envelope import BINARY, JSON, duration, read, write

PROTOCOL = 1
DEFAULT_CONTEXT = "default"
DEFAULT_RATE = 24_000
ACCUMULATE_SENTENCE = 3
FORMATS = {
    "audio/pcm": "pcm_s16le",
    "audio/l16": "pcm_s16le",
    "audio/wav": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
    "audio/ogg": "ogg_opus",
    "audio/flac": "flac",
    "audio/basic": "mulaw",
    "audio/pcmu": "mulaw",
    "audio/x-mulaw": "mulaw",
    "audio/pcma": "alaw",
    "audio/x-alaw": "alaw",
}
# What is not here is ``invalid_input``.
KINDS = {
    "unauthorized": "unauthenticated",
    "overloaded": "unavailable",
    "limit_exceeded": "unavailable",
    "draining": "unavailable",
    "engine_dead": "unavailable",
    "engine_timeout": "unavailable",
    "engine_error": "internal",
    "session_error": "internal",
    "internal_error": "internal",
}


@dataclass(slots=True)
class RimeV1Context:
    takes_text: bool
    # Pieces of text are joined as they are; else each is a sentence.
    joins: bool
    cancelled: bool = False
    # Gathered for the end, if they were asked for.
    words: list[model.TimedWord] | None = None
    last: str = field(default="")


class RimeV1Dialect(Dialect):
    forgiving = True

    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        offered = next(iter(handshake.subprotocols), None)
        if offered not in (BINARY, JSON):
            raise RemoteProtocolError("unsupported_subprotocol", f"the first sub-protocol must be {BINARY} or {JSON}")
        self._binary = offered == BINARY
        self._had_header = "authorization" in handshake.headers
        self._defaults: dict[str, Any] = {}
        self._contexts: dict[str, RimeV1Context] = {}
        self._num_started = 0

    def start(self) -> Iterator[model.DialectCommand]:
        yield self._send("", ready={"protocol": PROTOCOL, "languages": ["en"], "default_language": "en"})

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        try:
            asked = read(message, self._binary)
        except RemoteProtocolError as error:
            yield from self._abort(error)
            return
        context = require_context_id(asked.get("context_id") or DEFAULT_CONTEXT)
        if "config" in asked:
            yield from self._configure(asked["config"])
        elif "start" in asked:
            yield from self._start(context, self._defaults | asked["start"])
        elif "text" in asked:
            yield from self._write(context, asked["text"])
        elif "end" in asked:
            yield from self._end_text(context)
        elif "cancel" in asked:
            yield from self._cancel(context)
        else:
            raise RemoteProtocolError("invalid_event", "a message holds config, start, text, end or cancel")

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextAudio():
                yield self._send(event.context, audio=event.data)
            case model.ContextWords():
                gathered = self._contexts[event.context].words
                if gathered is not None:
                    gathered += event.words
            case model.ContextEnded():
                yield from self._end(event)

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[model.DialectCommand]:
        yield self._error("", error)

    def _abort(self, error: RemoteProtocolError) -> Iterator[model.DialectCommand]:
        """What cannot be read cannot be told apart from what follows."""
        yield self._error("", error.info)
        yield model.CloseConnection(1007, "invalid_input")

    def _configure(self, config: dict[str, Any]) -> Iterator[model.DialectCommand]:
        if self._num_started:
            raise RemoteProtocolError("invalid_event", "config after the first start", "config")
        defaults = config.get("defaults", {})
        self._defaults = {name: value for name, value in defaults.items() if name != "text"}
        if key := config.get("authorization"):
            if self._had_header:
                raise RemoteProtocolError(
                    "invalid_event", "the handshake has an authorization already", "authorization"
                )
            yield model.AuthenticateKey(key.split(" ")[-1])

    def _start(self, context: str, start: dict[str, Any]) -> Iterator[model.DialectCommand]:
        if context in self._contexts:
            raise RemoteProtocolError("duplicate_response", f"context {context[:40]!r} is open", "context_id")
        text = start.get("text", "")
        self._num_started += 1
        try:
            wish = _build_options(start)
        except RemoteProtocolError as error:
            yield replace(self._error(context, error.info), refused_code=error.code)
            return
        joins = start.get("split_strategy") == ACCUMULATE_SENTENCE
        self._contexts[context] = RimeV1Context(not text, joins, words=[] if wish.word_times else None)
        yield self._send(context, started={"request_id": f"{self.handshake.request_id}-{self._num_started}"})
        yield model.OpenContext(context, wish)
        if text:
            yield model.AppendText(context, text, last=True)

    def _write(self, context: str, text: str) -> Iterator[model.DialectCommand]:
        spoken = self._contexts.get(context)
        if spoken is None or not spoken.takes_text:
            error = ErrorInfo(code="text_closed", message="the context is not open for text")
            yield replace(self._error(context, error), refused_code=error.code)
            return
        if not text:
            return
        apart = not spoken.joins and spoken.last and not spoken.last.isspace() and not text[0].isspace()
        spoken.last = text[-1]
        yield model.AppendText(context, f" {text}" if apart else text)

    def _end_text(self, context: str) -> Iterator[model.DialectCommand]:
        spoken = self._contexts.get(context)
        if spoken is not None:
            spoken.takes_text = False
            yield model.EndContext(context)

    def _cancel(self, context: str) -> Iterator[model.DialectCommand]:
        spoken = self._contexts.get(context)
        if spoken is None:
            yield self._send(context, cancelled={})
            return
        spoken.cancelled, spoken.takes_text = True, False
        yield model.CancelContext(context)

    def _end(self, event: model.ContextEnded) -> Iterator[model.DialectCommand]:
        spoken = self._contexts.pop(event.context, None)
        if spoken is None:
            return
        if event.error is not None and event.error.code != "text_timeout":
            yield self._error(event.context, event.error)
        elif spoken.cancelled:
            yield self._send(event.context, cancelled={})
        else:
            done = {} if spoken.words is None else {"timestamps": _timestamps(spoken.words)}
            yield self._send(event.context, done=done)

    def _error(self, context: str, error: ErrorInfo) -> model.SendMessage:
        return self._send(context, error={"kind": KINDS.get(error.code, "invalid_input"), "message": error.message})

    def _send(self, context: str, **payload: Any) -> model.SendMessage:
        named = {"context_id": context} if context else {}
        return model.SendMessage(write(named | payload, self._binary))


def _build_options(start: dict[str, Any]) -> model.SpeechOptions:
    audio = start.get("audio_parameters", {})
    mime = audio.get("audio_format", "audio/pcm").partition(";")[0].strip().lower()
    if mime not in FORMATS:
        message = f"audio_format must be one of {', '.join(FORMATS)}, is {mime[:40]!r}"
        raise RemoteProtocolError("unsupported_format", message, "audio_format")
    encoding = FORMATS[mime]
    natural = 8_000 if encoding in ("mulaw", "alaw") else DEFAULT_RATE
    return model.SpeechOptions(
        voice=start.get("speaker"),
        language=start.get("language"),
        format=model.RequestedFormat(encoding, audio.get("sampling_rate") or natural),
        speed=1 / audio["time_scale_factor"] if audio.get("time_scale_factor") else 1.0,
        word_times=bool(start.get("timestamps", {}).get("enable")),
    )


def _timestamps(words: list[model.TimedWord]) -> dict[str, Any]:
    spans = [{"text": word.text, "start": duration(word.start_ms), "end": duration(word.end_ms)} for word in words]
    return {"status": {"code": 0}, "spans": spans}
