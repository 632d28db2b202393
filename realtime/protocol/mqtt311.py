"""The part of MQTT 3.1.1 for devices that connect without a broker: connect, publish, ping."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from realtime.errors import RemoteProtocolError

CONNECT, PUBLISH, PUBACK, SUBSCRIBE, PING, DISCONNECT = 1, 3, 4, 8, 12, 14
# Protocol level of MQTT 3.1.1.
LEVEL = 4
ACCEPTED, WRONG_LEVEL, BUSY, WRONG_KEY = 0, 1, 3, 5
PINGRESP = b"\xd0\x00"
MAX_LENGTH_BYTES = 4
MAX_CLIENT_CHARS = 128


@dataclass(frozen=True, slots=True)
class MqttPacket:
    kind: int
    flags: int
    body: bytes

    def as_sent(self) -> bytes:
        return bytes((self.kind << 4 | self.flags,)) + varint(len(self.body)) + self.body


@dataclass(frozen=True, slots=True)
class ConnectPacket:
    client_id: str
    keep_alive_s: int
    username: str = ""
    password: str = ""


@dataclass(frozen=True, slots=True)
class DevicePublishPacket:
    topic: str
    payload: bytes
    # Packet identifier to acknowledge, with QoS 1.
    packet_id: int | None = None


class MqttPacketReader:
    """Bytes in pieces of any length, packets out. ``push`` raises ``RemoteProtocolError``; then all is lost."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def push(self, piece: bytes) -> Iterator[MqttPacket]:
        self._buffer += piece
        while (packet := self._next()) is not None:
            yield packet

    def _next(self) -> MqttPacket | None:
        length, start = 0, 1
        while True:
            if start >= len(self._buffer):
                return None
            digit = self._buffer[start]
            length |= (digit & 0x7F) << (7 * (start - 1))
            start += 1
            if digit < 0x80:
                break
            if start > MAX_LENGTH_BYTES:
                raise _broken("a length goes on and on")
        if length > self._max_bytes:
            raise RemoteProtocolError("message_too_big", f"a packet of {length} bytes, at most {self._max_bytes}")
        if len(self._buffer) < start + length:
            return None
        head, body = self._buffer[0], bytes(self._buffer[start : start + length])
        del self._buffer[: start + length]
        return MqttPacket(head >> 4, head & 0x0F, body)


def parse_connect(packet: MqttPacket) -> ConnectPacket:
    """Parse a CONNECT; raises ``RemoteProtocolError``, with the ``param`` ``level`` for another MQTT version."""
    if packet.kind != CONNECT:
        raise _broken("the first packet must be CONNECT")
    fields = FieldReader(packet.body)
    name, level = fields.text(), fields.number(1)
    if name != "MQTT" or level != LEVEL:
        raise RemoteProtocolError("invalid_event", f"MQTT 3.1.1 is spoken here, not {name[:8]!r} {level}", "level")
    flags, keep_alive_s, client_id = fields.number(1), fields.number(2), fields.text()
    if len(client_id) > MAX_CLIENT_CHARS:
        raise _broken(f"a client id has at most {MAX_CLIENT_CHARS} characters")
    if flags & 0x04:  # a will, which is not supported
        fields.data()
        fields.data()
    username = fields.text() if flags & 0x80 else ""
    password = fields.text() if flags & 0x40 else ""
    return ConnectPacket(client_id, keep_alive_s, username, password)


def parse_publish(packet: MqttPacket) -> DevicePublishPacket:
    """Parse a PUBLISH; raises ``RemoteProtocolError``."""
    qos = packet.flags >> 1 & 3
    if qos > 1:
        raise _broken("QoS 0 and 1 are taken here")
    fields = FieldReader(packet.body)
    topic = fields.text()
    return DevicePublishPacket(topic, packet_id=fields.number(2) if qos else None, payload=fields.rest())


def parse_subscribe(packet: MqttPacket) -> tuple[int, int]:
    """Number of the packet, and how many topics it asks for. Raises ``RemoteProtocolError``."""
    fields = FieldReader(packet.body)
    packet_id, num_topics = fields.number(2), 0
    while not fields.empty:
        fields.text()
        fields.number(1)
        num_topics += 1
    if not num_topics:
        raise _broken("a subscription without a topic")
    return packet_id, num_topics


def connack(code: int) -> bytes:
    return bytes((0x20, 2, 0, code))


def puback(packet_id: int) -> bytes:
    return bytes((PUBACK << 4, 2)) + packet_id.to_bytes(2, "big")


def suback(packet_id: int, num_topics: int) -> bytes:
    """Build a SUBACK that grants QoS 0 to all topics."""
    return bytes((0x90,)) + varint(2 + num_topics) + packet_id.to_bytes(2, "big") + bytes(num_topics)


def publish(topic: str, payload: bytes) -> bytes:
    """Build a PUBLISH with QoS 0."""
    named = topic.encode()
    body = struct.pack(">H", len(named)) + named + payload
    return bytes((PUBLISH << 4,)) + varint(len(body)) + body


class FieldReader:
    """Reads the fields of a packet in order. Every method raises ``RemoteProtocolError`` at its end."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    @property
    def empty(self) -> bool:
        return self._at >= len(self._body)

    def number(self, num_bytes: int) -> int:
        return int.from_bytes(self.read_bytes(num_bytes), "big")

    def data(self) -> bytes:
        return self.read_bytes(self.number(2))

    def varint(self) -> int:
        """Seven bits a byte, the lowest first."""
        found = 0
        for place in range(MAX_LENGTH_BYTES):
            digit = self.number(1)
            found |= (digit & 0x7F) << (7 * place)
            if digit < 0x80:
                return found
        raise _broken("a length goes on and on")

    def text(self) -> str:
        try:
            return self.data().decode()
        except UnicodeError:
            raise _broken("a text that is no UTF-8") from None

    def rest(self) -> bytes:
        return self.read_bytes(len(self._body) - self._at)

    def read_bytes(self, num_bytes: int) -> bytes:
        end = self._at + num_bytes
        if end > len(self._body):
            raise _broken("a packet ends within a field")
        taken, self._at = self._body[self._at : end], end
        return taken


def _broken(what: str) -> RemoteProtocolError:
    return RemoteProtocolError("invalid_event", f"not MQTT: {what}")


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    digits = bytearray()
    while True:
        number, digit = divmod(number, 128)
        digits.append(digit | (128 if number else 0))
        if not number:
            return bytes(digits)
