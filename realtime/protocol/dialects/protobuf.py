"""Protocol buffers' wire format for messages given as plain dictionaries: as much as one vendor's envelope needs.

A schema maps field names to numbers and kinds; a kind is ``string``, ``bytes``, ``int``, ``bool``, ``float``, or the
schema of a message, and ``repeated`` of a message is a list. Fields that a schema does not know are passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from realtime.errors import RemoteProtocolError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
MAX_VARINT_BYTES = 10
SIGN_BIT = 1 << 63

Scalar = Literal["string", "bytes", "int", "bool", "float"]
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProtobufField:
    number: int
    kind: Scalar | Mapping[str, ProtobufField]
    repeated: bool = False


Schema = Mapping[str, ProtobufField]


def decode(data: bytes, schema: Schema) -> Message:
    """Decode a message; raises ``RemoteProtocolError``."""
    names = {field.number: name for name, field in schema.items()}
    message: Message = {}
    for number, wire, value in _fields(data):
        if number not in names:
            continue
        name = names[number]
        field = schema[name]
        read = _value(wire, value, field)
        if field.repeated:
            message.setdefault(name, []).append(read)
        else:
            message[name] = read
    return message


def encode(message: Mapping[str, Any], schema: Schema) -> bytes:
    values = ((schema[name], value) for name, value in message.items())
    return b"".join(_field(field, one) for field, value in values for one in (value if field.repeated else [value]))


def _fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Number, wire type and raw value of each."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        if wire == LENGTH:
            size, at = _varint(data, at)
        elif wire in (FIXED32, FIXED64):
            size = 4 if wire == FIXED32 else 8
        else:
            raise _bad(f"wire type {wire} is unknown")
        if number == 0 or size > len(data) - at:
            raise _bad("a message ends within a field")
        yield number, wire, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(MAX_VARINT_BYTES):
        if at + place >= len(data):
            break
        byte = data[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value & (2 * SIGN_BIT - 1), at + place + 1
    raise _bad("a message ends within a number")


def _value(wire: int, value: int | bytes, field: ProtobufField) -> Any:
    kind = field.kind
    if isinstance(value, int):
        if kind == "bool":
            return value != 0
        if kind == "int":
            return value - 2 * SIGN_BIT if value & SIGN_BIT else value
    elif wire == FIXED32 and kind == "float":
        return struct.unpack("<f", value)[0]
    elif wire == LENGTH and kind == "string":
        return _text(value)
    elif wire == LENGTH and kind == "bytes":
        return value
    elif wire == LENGTH and not isinstance(kind, str):
        return decode(value, kind)
    raise _bad(f"field {field.number} has wire type {wire}")


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _bad("a string is not UTF-8") from None


def _field(field: ProtobufField, value: Any) -> bytes:
    if field.kind in ("int", "bool"):
        return _number(field.number << 3 | VARINT) + _number(int(value))
    if field.kind == "float":
        return _number(field.number << 3 | FIXED32) + struct.pack("<f", value)
    data = _bytes_of(field.kind, value)
    return _number(field.number << 3 | LENGTH) + _number(len(data)) + data


def _bytes_of(kind: Scalar | Schema, value: Any) -> bytes:
    if not isinstance(kind, str):
        return encode(value, kind)
    return value.encode() if kind == "string" else bytes(value)


def _number(value: int) -> bytes:
    value &= 2 * SIGN_BIT - 1
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _bad(message: str) -> RemoteProtocolError:
    return RemoteProtocolError("invalid_event", f"not a protocol buffer: {message}")
