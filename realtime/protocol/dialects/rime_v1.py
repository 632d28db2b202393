"""Rime's wire ``/ws``: its envelope and its contexts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect
from realtime.protocol.dialects.parsing import encode_base64, require_context_id, text_only, unsupported_format
from realtime.protocol.dialects.protobuf import ProtobufField, Schema, decode, encode
from realtime.protocol.model import Message

BINARY, JSON = "rime.v1.binary", "rime.v1.json"

AUDIO: Schema = {
    "audio_format": ProtobufField(1, "string"),
    "sampling_rate": ProtobufField(2, "int"),
    "time_scale_factor": ProtobufField(3, "float"),
}
# As in the package ``rime_api``; each switches a form on.
MIST: Schema = {
    "pause_between_brackets": ProtobufField(1, "bool"),
    "phonemize_between_brackets": ProtobufField(2, "bool"),
}
INLINE_FORMS = {"pause_between_brackets": "rime_pause", "phonemize_between_brackets": "rime_phonemes"}
START: Schema = {
    "language": ProtobufField(2, "string"),
    "speaker": ProtobufField(3, "string"),
    "text": ProtobufField(4, "string"),
    "audio_parameters": ProtobufField(5, AUDIO),
    "split_strategy": ProtobufField(6, "int"),
    "mist_parameters": ProtobufField(9, MIST),
    "timestamps": ProtobufField(10, {"enable": ProtobufField(1, "bool")}),
}
REQUEST: Schema = {
    "context_id": ProtobufField(1, "string"),
    "config": ProtobufField(2, {"authorization": ProtobufField(1, "string"), "defaults": ProtobufField(3, START)}),
    "start": ProtobufField(3, START),
    "text": ProtobufField(4, "string"),
    "end": ProtobufField(5, {}),
    "cancel": ProtobufField(6, {}),
}
DURATION: Schema = {"seconds": ProtobufField(1, "int"), "nanos": ProtobufField(2, "int")}
SPAN: Schema = {
    "text": ProtobufField(1, "string"),
    "start": ProtobufField(2, DURATION),
    "end": ProtobufField(3, DURATION),
}
STATUS: Schema = {"code": ProtobufField(1, "int"), "message": ProtobufField(2, "string")}
TIMESTAMPS: Schema = {"status": ProtobufField(1, STATUS), "spans": ProtobufField(2, SPAN, repeated=True)}
RESPONSE: Schema = {
    "context_id": ProtobufField(1, "string"),
    "ready": ProtobufField(
        2,
        {
            "protocol": ProtobufField(1, "int"),
            "languages": ProtobufField(2, "string", repeated=True),
            "default_language": ProtobufField(3, "string"),
        },
    ),
    "started": ProtobufField(3, {"request_id": ProtobufField(1, "string")}),
    "audio": ProtobufField(4, "bytes"),
    "done": ProtobufField(5, {"timestamps": ProtobufField(1, TIMESTAMPS)}),
    "cancelled": ProtobufField(6, {}),
    "error": ProtobufField(
        7,
        {
            "kind": ProtobufField(1, "string"),
            "message": ProtobufField(2, "string"),
            "request_id": ProtobufField(3, "string"),
        },
    ),
}
SPLIT_STRATEGIES = [
    "SPLIT_STRATEGY_UNSPECIFIED",
    "SPLIT_STRATEGY_SENTENCE",
    "SPLIT_STRATEGY_NONE",
    "SPLIT_STRATEGY_ACCUMULATE_SENTENCE",
]
NANOS = 1_000_000_000


def read(message: Message, binary: bool) -> dict[str, Any]:
    """Parse a message; raises ``RemoteProtocolError``."""
    if not binary:
        return _checked(_parsed(text_only(message)), REQUEST)
    if isinstance(message, str):
        raise RemoteProtocolError("invalid_event", f"{BINARY} takes binary messages only")
    return decode(message, REQUEST)


def write(message: Mapping[str, Any], binary: bool) -> Message:
    if binary:
        return encode(message, RESPONSE)
    return msgspec.json.encode(_camel(message)).decode()


def duration(ms: float) -> dict[str, int]:
    nanos = round(ms * 1_000_000)
    return {"seconds": nanos // NANOS, "nanos": nanos % NANOS}


def _parsed(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RemoteProtocolError("malformed_json", f"not a JSON message: {error}") from None


def _checked(value: Any, schema: Schema, place: str = "message") -> dict[str, Any]:
    """The fields that the schema knows, under either spelling, with values of their kind."""
    if not isinstance(value, dict):
        raise RemoteProtocolError("invalid_event", f"{place} must be an object", place)
    message = {}
    for name, kind in schema.items():
        given = value.get(name, value.get(_camel_name(name)))
        if given is not None:
            message[name] = _checked_value(given, kind, name)
    return message


def _checked_value(given: Any, field: ProtobufField, name: str) -> Any:
    if not isinstance(field.kind, str):
        return _checked(given, field.kind, name)
    if name == "split_strategy" and given in SPLIT_STRATEGIES:
        return SPLIT_STRATEGIES.index(given)
    kinds: dict[str, tuple[type, ...]] = {"string": (str,), "int": (int,), "bool": (bool,), "float": (int, float)}
    if not isinstance(given, kinds[field.kind]):
        raise RemoteProtocolError("invalid_event", f"{name} must be of type {field.kind}", name)
    return given


def _camel(value: Any) -> Any:
    match value:
        case {"seconds": int(seconds), "nanos": int(nanos)}:
            return f"{seconds}.{nanos:09}s"
        case dict():
            return {_camel_name(name): _camel(one) for name, one in value.items()}
        case list():
            return [_camel(one) for one in value]
        case bytes():
            return encode_base64(value)
    return value


def _camel_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


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
# Other codes map to ``invalid_input``.
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
            request = read(message, self._binary)
        except RemoteProtocolError as error:
            yield from self._abort(error)
            return
        context = require_context_id(request.get("context_id") or DEFAULT_CONTEXT)
        if "config" in request:
            yield from self._configure(request["config"])
        elif "start" in request:
            yield from self._start(context, self._defaults | request["start"])
        elif "text" in request:
            yield from self._write(context, request["text"])
        elif "end" in request:
            yield from self._end_text(context)
        elif "cancel" in request:
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
        """Report an unreadable message and close: the messages after it cannot be framed."""
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
            options = _build_options(start)
        except RemoteProtocolError as error:
            yield replace(self._error(context, error.info), refused_code=error.code)
            return
        joins = start.get("split_strategy") == ACCUMULATE_SENTENCE
        self._contexts[context] = RimeV1Context(not text, joins, words=[] if options.word_times else None)
        yield self._send(context, started={"request_id": f"{self.handshake.request_id}-{self._num_started}"})
        yield model.OpenContext(context, options)
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
        if (error := event.failure) is not None:
            yield self._error(event.context, error)
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
        raise unsupported_format("audio_format", FORMATS, mime)
    encoding = FORMATS[mime]
    natural = 8_000 if encoding in ("mulaw", "alaw") else DEFAULT_RATE
    switches = start.get("mist_parameters", {})
    return model.SpeechOptions(
        voice=start.get("speaker"),
        language=start.get("language"),
        format=model.RequestedFormat(encoding, audio.get("sampling_rate") or natural),
        speed=1 / audio["time_scale_factor"] if audio.get("time_scale_factor") else 1.0,
        word_times=bool(start.get("timestamps", {}).get("enable")),
        inline_forms=tuple(form for name, form in INLINE_FORMS.items() if switches.get(name)),
    )


def _timestamps(words: list[model.TimedWord]) -> dict[str, Any]:
    spans = [{"text": word.text, "start": duration(word.start_ms), "end": duration(word.end_ms)} for word in words]
    return {"status": {"code": 0}, "spans": spans}
