"""A message as it travels, a PUBLISH packet of MQTT 5 (2.2.2 and 3.3 of it) of QoS 0 or 1, and its properties.

paho-mqtt's own class takes longer for the properties than the message does to the broker.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from realtime.errors import LocalProtocolError, RemoteProtocolError
from realtime.protocol.mqtt311 import PUBLISH, FieldReader, MqttPacket, varint

EXPIRY, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION, USER = 0x02, 0x03, 0x08, 0x09, 0x26
# Maximum length of a string or of binary data.
MAX_BYTES = 0xFFFF
RETAIN = 0x01
QOS_1, QOS_2 = 0x02, 0x04
MAX_TOPIC_BYTES = 0xFFFF
MAX_LENGTH = 268_435_455
PAYLOAD_FORMAT, SUBSCRIPTION = 0x01, 0x0B
# Properties that are numbers, and of how many bytes.
NUMBERS = {PAYLOAD_FORMAT: 1, EXPIRY: 4}


def packed(
    content_type: str | None = None,
    response_topic: str | None = None,
    correlation: bytes | None = None,
    expiry_s: int | None = None,
    user: Iterable[tuple[str, str]] = (),
) -> bytes:
    """Pack the properties after their length; raises ``LocalProtocolError`` if one is too long."""
    parts: list[bytes] = []
    if expiry_s is not None:
        parts.append(struct.pack(">BI", EXPIRY, expiry_s))
    for name, text in ((CONTENT_TYPE, content_type), (RESPONSE_TOPIC, response_topic)):
        if text is not None:
            parts += (bytes((name,)), _binary(text.encode()))
    if correlation is not None:
        parts += (bytes((CORRELATION,)), _binary(correlation))
    for key, value in user:
        parts += (bytes((USER,)), _binary(key.encode()), _binary(value.encode()))
    body = b"".join(parts)
    return varint(len(body)) + body


def _binary(data: bytes) -> bytes:
    if len(data) > MAX_BYTES:
        raise LocalProtocolError(f"a property has at most {MAX_BYTES} bytes, this one {len(data)}")
    return len(data).to_bytes(2, "big") + data


@dataclass(slots=True)
class PublishPacket:
    topic: str
    payload: bytes = b""
    # Packet identifier to acknowledge, with QoS 1.
    packet_id: int | None = None
    retained: bool = False
    response_topic: str | None = None
    correlation: bytes | None = None
    content_type: str | None = None
    user: list[tuple[str, str]] = field(default_factory=list)


def publish(topic: str, properties: bytes, payload: bytes, retain: bool = False, packet_id: int | None = None) -> bytes:
    """``properties`` as ``packed`` gives them; QoS 1 with a ``packet_id``. Raises ``LocalProtocolError`` when it is too
    long."""
    name, number = topic.encode(), b"" if packet_id is None else packet_id.to_bytes(2, "big")
    length = 2 + len(name) + len(number) + len(properties) + len(payload)
    if len(name) > MAX_TOPIC_BYTES or length > MAX_LENGTH:
        raise LocalProtocolError(f"a message of {length} bytes to a topic of {len(name)}")
    flags = RETAIN * retain | QOS_1 * (packet_id is not None)
    head = bytes((PUBLISH << 4 | flags,)) + varint(length) + len(name).to_bytes(2, "big")
    return b"".join((head, name, number, properties, payload))


def acknowledged(packet: MqttPacket) -> tuple[int, int]:
    """Which packet a PUBACK is for, and its reason code. Raises ``RemoteProtocolError``."""
    fields = FieldReader(packet.body)
    return fields.number(2), 0 if fields.empty else fields.number(1)


def parse_publish(packet: MqttPacket) -> PublishPacket:
    """Parse a PUBLISH of QoS 0 or 1. Raises ``RemoteProtocolError``."""
    fields = FieldReader(packet.body)
    found = PublishPacket(fields.text(), retained=bool(packet.flags & RETAIN))
    if packet.flags >> 1 & 3:
        found.packet_id = fields.number(2)
    _read_properties(FieldReader(fields.read_bytes(fields.varint())), found)
    found.payload = fields.rest()
    return found


def _read_properties(fields: FieldReader, found: PublishPacket) -> None:
    while not fields.empty:
        name = fields.number(1)
        if name == USER:
            found.user.append((fields.text(), fields.text()))
        elif name == CONTENT_TYPE:
            found.content_type = fields.text()
        elif name == RESPONSE_TOPIC:
            found.response_topic = fields.text()
        elif name == CORRELATION:
            found.correlation = fields.data()
        elif name == SUBSCRIPTION:
            fields.varint()
        elif name in NUMBERS:
            fields.number(NUMBERS[name])
        else:
            raise RemoteProtocolError("invalid_event", f"not MQTT: property {name} of a message")
