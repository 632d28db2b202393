"""``voicewire.v1``: events as JSON text, audio as binary messages with a fixed header.

Each function takes or gives one whole message. Which event is legal when is in ``transitions.py``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from realtime.errors import LocalProtocolError, RemoteProtocolError, RequestRefused
from realtime.protocol.events import AudioKind, AudioMessage, ClientEvent, ServerEvent

Event = TypeVar("Event")

SUBPROTOCOL = "voicewire.v1"
PATH = "/v1/speech"
AUDIO_VERSION = 1

# version, kind, number of packets, response, sequence, sample time; big-endian, 16 bytes.
HEADER = struct.Struct(">BBHIII")
# Goes before each packet.
PACKET_LENGTH = struct.Struct(">H")
MAX_PACKETS = 0xFFFF
MAX_PACKET_BYTES = 0xFFFF

_encoder = msgspec.json.Encoder()
_client_decoder: msgspec.json.Decoder[ClientEvent] = msgspec.json.Decoder(ClientEvent)
_server_decoder: msgspec.json.Decoder[ServerEvent] = msgspec.json.Decoder(ServerEvent)
_complaint = re.compile(r"(?:field `(?P<field>[^`]*)`)?(?: - at `\$\.?(?P<place>[^`]*)`)?$")


def parse_client(data: str | bytes) -> ClientEvent:
    """Read one text message of a client. Raises ``RemoteProtocolError``."""
    return decode_json(_client_decoder.decode, data, "type")


def parse_server(data: str | bytes) -> ServerEvent:
    """Read one text message of a server. Raises ``RemoteProtocolError``."""
    return decode_json(_server_decoder.decode, data, "type")


def serialize(event: ClientEvent | ServerEvent) -> str:
    """The text message for an event of either side."""
    return _encoder.encode(event).decode()


def parse_audio(data: bytes) -> AudioMessage:
    """Read one binary message. Raises ``RemoteProtocolError``, also on bytes left over."""
    if len(data) < HEADER.size:
        raise _bad_audio(f"an audio message has a header of {HEADER.size} bytes, got {len(data)}")
    version, kind, num_packets, response, sequence, sample_time = HEADER.unpack_from(data)
    if version != AUDIO_VERSION:
        raise _bad_audio(f"audio version {version}, expected {AUDIO_VERSION}", "version")
    if kind not in AudioKind.__members__.values():
        raise _bad_audio(f"audio kind {kind} is unknown", "kind")
    packets = _parse_packets(data, num_packets)
    return AudioMessage(AudioKind(kind), response, sequence, sample_time, packets)


def serialize_audio(message: AudioMessage) -> bytes:
    """The binary message. Raises ``LocalProtocolError`` when a number does not fit its field."""
    try:
        parts = [
            HEADER.pack(
                AUDIO_VERSION,
                message.kind,
                len(message.packets),
                message.response,
                message.sequence,
                message.sample_time,
            )
        ]
        for packet in message.packets:
            parts += (PACKET_LENGTH.pack(len(packet)), packet)
    except struct.error as error:
        raise LocalProtocolError(f"audio message does not fit its header: {error}") from error
    if not message.packets:
        raise LocalProtocolError("an audio message holds at least one packet")
    return b"".join(parts)


def _parse_packets(data: bytes, num_packets: int) -> tuple[bytes, ...]:
    packets = []
    at = HEADER.size
    for _ in range(num_packets):
        start = at + PACKET_LENGTH.size
        if start > len(data):
            raise _bad_audio("an audio message ends before its last packet")
        at = start + PACKET_LENGTH.unpack_from(data, at)[0]
        packets.append(data[start:at])
    if at != len(data) or not packets:
        raise _bad_audio(f"{num_packets} packets take {at} bytes, the audio message has {len(data)}")
    return tuple(packets)


def decode_json(decode: Callable[[str | bytes], Event], data: str | bytes, tag: str | None = None) -> Event:
    """Read JSON; a wrong ``tag`` is an unknown event. Raises ``RemoteProtocolError``."""
    try:
        return decode(data)
    except msgspec.ValidationError as error:
        path = field_at_fault(str(error))
        code = "unknown_event" if tag is not None and path == tag else "invalid_event"
        raise RemoteProtocolError(code, str(error), path) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RemoteProtocolError("malformed_json", f"not a JSON message: {error}") from None


def field_at_fault(message: str) -> str | None:
    """The dotted path of the field that a ``msgspec.ValidationError`` complains about."""
    found = _complaint.search(message)
    if found is None:
        return None
    return ".".join(part for part in (found["place"], found["field"]) if part) or None


def _bad_audio(message: str, param: str | None = None) -> RemoteProtocolError:
    return RemoteProtocolError("malformed_audio", message, param)


def parse_flag(query: Mapping[str, str], name: str) -> bool:
    """Return a parameter of the URL. Raises ``RequestRefused``."""
    value = query.get(name, "false")
    if value not in ("true", "false"):
        raise RequestRefused("invalid_request", f"{name} must be true or false, is {value[:20]!r}", name)
    return value == "true"
