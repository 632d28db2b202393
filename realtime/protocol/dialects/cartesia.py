"""Cartesia: a socket with contexts by their ids, ``/tts/bytes``, a file as it is spoken, and ``/tts/sse``, its events.

A context of the socket is opened by its first request and closed by the last.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from msgspec import Struct, field

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError, http_status
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect, HttpDialect
from realtime.protocol.dialects.parsing import (
    dump,
    encode_base64,
    parse_json,
    require_context_id,
    text_only,
    unsupported_format,
    with_sentence_space,
)

ENCODINGS = {"pcm_s16le": "pcm_s16le", "pcm_f32le": "pcm_f32le", "pcm_mulaw": "mulaw", "pcm_alaw": "alaw"}
DEFAULT_RATE = 44_100
TITLES = {400: "Invalid request", 401: "Unauthorized", 404: "Not found", 413: "Too long", 429: "Too many requests"}
RUNNING, FINISHED = 206, 200
MEDIA_TYPES = {"wav": "audio/wav", "mp3": "audio/mpeg", "mulaw": "audio/basic", "alaw": "audio/x-alaw-basic"}


class CartesiaVoice(Struct):
    """A voice by id. Embeddings are not supported; the default voice speaks instead."""

    id: str | None = None
    mode: str | None = None


class OutputFormat(Struct):
    container: str | None = None
    encoding: str | None = None
    sample_rate: int | None = None
    bit_rate: int | None = None


class CartesiaGenerationConfig(Struct):
    speed: float | None = None


class GenerationRequest(Struct):
    """A request on the socket or over HTTP; other fields are ignored."""

    transcript: str | None = None
    voice: CartesiaVoice | str | None = None
    output_format: OutputFormat | None = None
    language: str | None = None
    locale: str | None = None
    generation_config: CartesiaGenerationConfig | None = None
    seed: int | None = None
    context_id: str | None = None
    continues: bool | None = field(default=None, name="continue")
    flush: bool | None = None
    cancel: bool | None = None
    add_timestamps: bool | None = None
    use_normalized_timestamps: bool | None = None

    def to_options(self, containers: tuple[str, ...]) -> model.SpeechOptions:
        """Convert to options; raises ``RemoteProtocolError``."""
        config = self.generation_config
        return model.SpeechOptions(
            voice=self.voice.id if isinstance(self.voice, CartesiaVoice) else self.voice,
            language=self.language or self.locale,
            format=wire_format(self.output_format or OutputFormat(), containers),
            seed=self.seed,
            speed=config.speed if config and config.speed is not None else 1.0,
            word_times=bool(self.add_timestamps),
            ssml=True,
        )


def wire_format(request: OutputFormat, containers: tuple[str, ...]) -> model.RequestedFormat:
    """Parse an output format; raises ``RemoteProtocolError``."""
    container, sample_rate = request.container or "raw", request.sample_rate or DEFAULT_RATE
    if container not in containers:
        raise unsupported_format("output_format.container", containers, container)
    if container == "mp3":
        return model.RequestedFormat("mp3", sample_rate, request.bit_rate)
    encoding = request.encoding or "pcm_s16le"
    if encoding not in ENCODINGS:
        raise unsupported_format("output_format.encoding", ENCODINGS, encoding)
    return model.RequestedFormat("wav" if container == "wav" else ENCODINGS[encoding], sample_rate)


def error_fields(error: ErrorInfo, request_id: str) -> dict[str, Any]:
    status = http_status(error)
    return {
        "title": TITLES.get(status, "Internal error" if status >= 500 else "Invalid request"),
        "message": error.message,
        "error_code": error.code,
        "status_code": status,
        "request_id": request_id,
    }


def word_timestamps(words: Any, normalized: bool) -> dict[str, Any]:
    """Format word times in seconds since the start of the context."""
    return {
        "words": [word.spoken or word.text if normalized else word.text for word in words],
        "start": [round(word.start_ms / 1000, 3) for word in words],
        "end": [round(word.end_ms / 1000, 3) for word in words],
    }


@dataclass(slots=True)
class CartesiaContext:
    normalized: bool = False
    closed: bool = False
    # True after a cancel: messages of an unknown context would be taken for another's.
    cancelled: bool = False
    num_flushed: int = 0
    last_text: str = ""


class CartesiaDialect(Dialect):
    forgiving = True
    context_timeout_s = 60.0

    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self._contexts: dict[str, CartesiaContext] = {}
        self._unnamed = itertools.count()

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        request = parse_json(text_only(message), GenerationRequest)
        context = require_context_id(request.context_id or f"{self.handshake.request_id}-{next(self._unnamed)}")
        if request.cancel:
            yield from self._cancel(context)
        else:
            yield from self._generate(context, request)

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextAudio() if event.context in self._contexts:
                data = encode_base64(event.data)
                flush_id = self._contexts[event.context].num_flushed + 1
                yield self._send("chunk", event.context, data=data, step_time=0.0, flush_id=flush_id)
            case model.ContextWords() if event.context in self._contexts:
                words = word_timestamps(event.words, self._contexts[event.context].normalized)
                yield self._send("timestamps", event.context, word_timestamps=words)
            case model.ContextFlushed() if event.context in self._contexts:
                spoken = self._contexts[event.context]
                spoken.num_flushed += 1
                yield self._send("flush_done", event.context, flush_done=True, flush_id=spoken.num_flushed)
            case model.ContextIdle():
                yield from self._expire(event.context)
            case model.ContextEnded():
                yield from self._end(event)

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[model.DialectCommand]:
        fields = error_fields(error, self.handshake.request_id)
        yield model.SendMessage(dump(type="error", context_id=None, done=True, **fields))

    @classmethod
    def reject_handshake(cls, error: ErrorInfo, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        return error_fields(error, ""), {}

    def _generate(self, context: str, request: GenerationRequest) -> Iterator[model.DialectCommand]:
        spoken = self._contexts.get(context)
        if spoken is None:
            try:
                options = request.to_options(("raw",))
            except RemoteProtocolError as error:
                yield replace(self._error(context, error.info), refused_code=error.code)
                return
            spoken = self._contexts[context] = CartesiaContext(bool(request.use_normalized_timestamps))
            yield model.OpenContext(context, options)
        if spoken.closed:
            closed = ErrorInfo("text_closed", "the context was closed by continue: false or a cancel")
            yield replace(self._error(context, closed, done=False), refused_code=closed.code)
            return
        yield from self._write(context, spoken, request)

    def _write(
        self, context: str, spoken: CartesiaContext, request: GenerationRequest
    ) -> Iterator[model.DialectCommand]:
        text = with_sentence_space(spoken.last_text, request.transcript or "")
        spoken.last_text, spoken.closed = text or spoken.last_text, not request.continues
        if request.flush:
            yield model.AppendText(context, text)
            yield model.FlushContext(context)
            if spoken.closed:
                yield model.EndContext(context)
        else:
            yield model.AppendText(context, text, last=spoken.closed)

    def _cancel(self, context: str) -> Iterator[model.DialectCommand]:
        spoken = self._contexts.get(context)
        if spoken is not None:
            spoken.closed = spoken.cancelled = True
            yield model.CancelContext(context)

    def _expire(self, context: str) -> Iterator[model.DialectCommand]:
        spoken = self._contexts.get(context)
        if spoken is not None and not spoken.closed:
            spoken.closed = True
            yield model.EndContext(context)

    def _end(self, event: model.ContextEnded) -> Iterator[model.DialectCommand]:
        spoken = self._contexts.pop(event.context, None)
        if spoken is None or spoken.cancelled:
            return
        if (error := event.failure) is not None:
            yield self._error(event.context, error)
        else:
            yield model.SendMessage(dump(type="done", context_id=event.context, done=True, status_code=FINISHED))

    def _send(self, kind: str, context: str, **fields: Any) -> model.SendMessage:
        return model.SendMessage(dump(type=kind, context_id=context, done=False, status_code=RUNNING, **fields))

    def _error(self, context: str, error: ErrorInfo, done: bool = True) -> model.SendMessage:
        fields = error_fields(error, self.handshake.request_id)
        return model.SendMessage(dump(type="error", context_id=context, done=done, **fields))


class CartesiaBytes(HttpDialect):
    containers: tuple[str, ...] = ("raw", "wav", "mp3")

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        request = parse_json(message, GenerationRequest)
        options = request.to_options(self.containers)
        self._prepare(request, options)
        yield from self.start_response(options, request.transcript or "", "transcript")

    def _prepare(self, request: GenerationRequest, options: model.SpeechOptions) -> None:
        self.media_type = MEDIA_TYPES.get(options.format.encoding, "audio/pcm")

    @classmethod
    def reject_handshake(cls, error: ErrorInfo, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        return error_fields(error, ""), {}


class CartesiaSse(CartesiaBytes):
    containers = ("raw",)
    media_type = "text/event-stream"

    _begun = False

    def _prepare(self, request: GenerationRequest, options: model.SpeechOptions) -> None:
        self._context_id = request.context_id
        self._normalized = bool(request.use_normalized_timestamps)

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextAudio():
                data = encode_base64(event.data)
                yield self._event("chunk", data=data, done=False, status_code=206, step_time=0.0)
            case model.ContextWords():
                words = word_timestamps(event.words, self._normalized)
                yield self._event("timestamps", word_timestamps=words, done=False, status_code=206)
            case model.ContextEnded(error=None):
                yield self._event("done", done=True, status_code=200)
                yield model.CloseConnection()
            case model.ContextEnded(error=ErrorInfo() as error) if self._begun:
                yield self._event("error", done=True, **error_fields(error, self.handshake.request_id))
                yield model.CloseConnection()
            case _:
                yield from super().send_event(event)

    def _event(self, kind: str, **fields: Any) -> model.SendMessage:
        self._begun = True
        data = dump(type=kind, context_id=self._context_id, **fields)
        return model.SendMessage(f"event: {kind}\ndata: {data}\n\n")
