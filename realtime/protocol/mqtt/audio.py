"""Audio on a broker: the payload is sound alone, what it is stands in user properties.

Between a dialect and its link both travel as one message, the head before the sound.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from realtime.errors import RemoteProtocolError

HEAD = struct.Struct(">IId?")


class AudioHeader(NamedTuple):
    # 0, 1, 2 ... over the replies of a session.
    reply: int
    # 0, 1, 2 ... over the audio messages of a reply.
    seq: int
    # Where the sound begins in its reply.
    ts_ms: float
    # Nothing of the reply comes after this message.
    last: bool = False


class MqttAudioMessage(NamedTuple):
    head: AudioHeader
    data: bytes


def pack(part: MqttAudioMessage) -> bytes:
    return HEAD.pack(*part.head) + part.data


def unpack(message: bytes) -> MqttAudioMessage:
    return MqttAudioMessage(AudioHeader(*HEAD.unpack_from(message)), message[HEAD.size :])


def properties(head: AudioHeader) -> list[tuple[str, str]]:
    """User properties for a head."""
    named = [("reply", str(head.reply)), ("seq", str(head.seq)), ("ts", f"{head.ts_ms:.10g}")]
    return [*named, ("last", "1")] if head.last else named


def parse_header(found: Iterable[tuple[str, str]]) -> AudioHeader:
    """Raises ``RemoteProtocolError``."""
    named = dict(found)
    try:
        return AudioHeader(int(named["reply"]), int(named["seq"]), float(named["ts"]), named.get("last") == "1")
    except (KeyError, ValueError) as error:
        raise RemoteProtocolError("malformed_audio", f"audio without its properties: {error}") from None
