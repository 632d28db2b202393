"""Wyoming's events: a line of JSON, then its data as JSON, then a payload, each as long as the line says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from realtime.errors import RemoteProtocolError

VERSION = "1.0.0"
NEWLINE = b"\n"
MAX_LINE_BYTES = 65_536
# Of audio, say, which is read and thrown away.
MAX_PAYLOAD_BYTES = 1_048_576

Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WyomingEvent:
    type: str
    data: Data = field(default_factory=dict)
    payload: bytes = b""


class WyomingHeader(msgspec.Struct, frozen=True):
    type: str
    data: Data | None = None
    data_length: int | None = None
    payload_length: int | None = None


_line: msgspec.json.Decoder[WyomingHeader] = msgspec.json.Decoder(WyomingHeader)
_data: msgspec.json.Decoder[Data] = msgspec.json.Decoder(Data)


def serialize(event: WyomingEvent) -> bytes:
    data = msgspec.json.encode(event.data) if event.data else b""
    head: Data = {"type": event.type, "version": VERSION}
    if data:
        head["data_length"] = len(data)
    if event.payload:
        head["payload_length"] = len(event.payload)
    return msgspec.json.encode(head) + NEWLINE + data + event.payload


class WyomingEventReader:
    """Bytes in pieces of any length, events out. ``push`` raises ``RemoteProtocolError``; nothing can be read then."""

    def __init__(self, max_data_bytes: int) -> None:
        self._max_data_bytes = max_data_bytes
        self._buffer = bytearray()
        # So far there is no end of a line.
        self._searched = 0
        # Whose data and payload are still to come.
        self._line: WyomingHeader | None = None

    def push(self, piece: bytes) -> Iterator[WyomingEvent]:
        self._buffer += piece
        while (event := self._next()) is not None:
            yield event

    def _next(self) -> WyomingEvent | None:
        if self._line is None:
            self._line = self._read_line()
        if self._line is None:
            return None
        line, num_data = self._line, self._line.data_length or 0
        num_bytes = num_data + (line.payload_length or 0)
        if len(self._buffer) < num_bytes:
            return None
        data, payload = bytes(self._buffer[:num_data]), bytes(self._buffer[num_data:num_bytes])
        del self._buffer[:num_bytes]
        self._line = None
        return WyomingEvent(line.type, (line.data or {}) | (_decoded(_data, data) if data else {}), payload)

    def _read_line(self) -> WyomingHeader | None:
        end = self._buffer.find(NEWLINE, self._searched)
        length = len(self._buffer) if end < 0 else end
        _check("a line", length, MAX_LINE_BYTES)
        if end < 0:
            self._searched = length
            return None
        line: WyomingHeader = _decoded(_line, bytes(self._buffer[:end]))
        del self._buffer[: end + 1]
        self._searched = 0
        _check("data_length", line.data_length or 0, self._max_data_bytes)
        _check("payload_length", line.payload_length or 0, MAX_PAYLOAD_BYTES)
        return line


def _check(what: str, found: int, limit: int) -> None:
    if found < 0:
        raise RemoteProtocolError("invalid_event", f"{what} must be 0 or more, is {found}", what)
    if found > limit:
        raise RemoteProtocolError("message_too_big", f"{what} of {found} bytes, at most {limit} are read")


def _decoded(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError("invalid_event", str(error)) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RemoteProtocolError("malformed_json", f"not an event of Wyoming: {error}") from None
