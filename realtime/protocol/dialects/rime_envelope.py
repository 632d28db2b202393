"""The envelope of Rime's WebSocket v1, binary (protocol buffers) or JSON (as proto3 writes it): messages as plain
dictionaries with the schema's field names."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec

from realtime.errors import RemoteProtocolError
from realtime.protocol.dialects.parsing import text_only
from realtime.protocol.dialects.protobuf import ProtobufField, Schema, decode, encode
from realtime.protocol.model import Message

BINARY, JSON = "rime.v1.binary", "rime.v1.json"

AUDIO: Schema = {
    "audio_format": ProtobufField(1, "string"),
    "sampling_rate": ProtobufField(2, "int"),
    "time_scale_factor": ProtobufField(3, "float"),
}
START: Schema = {
    "language": ProtobufField(2, "string"),
    "speaker": ProtobufField(3, "string"),
    "text": ProtobufField(4, "string"),
    "audio_parameters": ProtobufField(5, AUDIO),
    "split_strategy": ProtobufField(6, "int"),
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
    """Raises ``RemoteProtocolError``."""
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
    for name, field in schema.items():
        given = value.get(name, value.get(_camel_name(name)))
        if given is not None:
            message[name] = _checked_value(given, field, name)
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
            return base64.b64encode(value).decode()
    return value


def _camel_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
