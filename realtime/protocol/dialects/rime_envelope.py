"""The envelope of Rime's WebSocket v1, binary (protocol buffers) or JSON (as proto3 writes it): messages as plain
dictionaries with the schema's field names."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec

from realtime.protocol.dialects.base import Message
from realtime.protocol.dialects.parsing import text_only
from realtime.protocol.dialects.protobuf import Field, Schema, decode, encode
from realtime.protocol.errors import RemoteProtocolError

BINARY, JSON = "rime.v1.binary", "rime.v1.json"

AUDIO: Schema = {
    "audio_format": Field(1, "string"),
    "sampling_rate": Field(2, "int"),
    "time_scale_factor": Field(3, "float"),
}
START: Schema = {
    "language": Field(2, "string"),
    "speaker": Field(3, "string"),
    "text": Field(4, "string"),
    "audio_parameters": Field(5, AUDIO),
    "split_strategy": Field(6, "int"),
    "timestamps": Field(10, {"enable": Field(1, "bool")}),
}
REQUEST: Schema = {
    "context_id": Field(1, "string"),
    "config": Field(2, {"authorization": Field(1, "string"), "defaults": Field(3, START)}),
    "start": Field(3, START),
    "text": Field(4, "string"),
    "end": Field(5, {}),
    "cancel": Field(6, {}),
}
DURATION: Schema = {"seconds": Field(1, "int"), "nanos": Field(2, "int")}
SPAN: Schema = {"text": Field(1, "string"), "start": Field(2, DURATION), "end": Field(3, DURATION)}
STATUS: Schema = {"code": Field(1, "int"), "message": Field(2, "string")}
TIMESTAMPS: Schema = {"status": Field(1, STATUS), "spans": Field(2, SPAN, repeated=True)}
RESPONSE: Schema = {
    "context_id": Field(1, "string"),
    "ready": Field(
        2,
        {
            "protocol": Field(1, "int"),
            "languages": Field(2, "string", repeated=True),
            "default_language": Field(3, "string"),
        },
    ),
    "started": Field(3, {"request_id": Field(1, "string")}),
    "audio": Field(4, "bytes"),
    "done": Field(5, {"timestamps": Field(1, TIMESTAMPS)}),
    "cancelled": Field(6, {}),
    "error": Field(7, {"kind": Field(1, "string"), "message": Field(2, "string"), "request_id": Field(3, "string")}),
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


def _checked_value(given: Any, field: Field, name: str) -> Any:
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
