"""Properties of a message, packed as MQTT 5 wants them. paho-mqtt's own class takes longer for it than the message does
to the broker."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from realtime.errors import LocalProtocolError

EXPIRY, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION, USER = 0x02, 0x03, 0x08, 0x09, 0x26
# Of one string or of binary data.
MAX_BYTES = 0xFFFF


def packed(
    content_type: str | None = None,
    response_topic: str | None = None,
    correlation: bytes | None = None,
    expiry_s: int | None = None,
    user: Iterable[tuple[str, str]] = (),
) -> bytes:
    """Their length and they themselves. Raises ``LocalProtocolError`` when one is too long."""
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


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    digits = bytearray()
    while True:
        number, digit = divmod(number, 128)
        digits.append(digit | (128 if number else 0))
        if not number:
            return bytes(digits)


def _binary(data: bytes) -> bytes:
    if len(data) > MAX_BYTES:
        raise LocalProtocolError(f"a property has at most {MAX_BYTES} bytes, this one {len(data)}")
    return len(data).to_bytes(2, "big") + data
