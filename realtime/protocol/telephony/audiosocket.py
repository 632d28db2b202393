"""Asterisk's AudioSocket: frames of one byte of kind, two of length (big-endian) and a payload, s16le.

The far side plays what comes when it comes, has no marks and takes nothing back. The first frame is the call's UUID;
the rate is told by the kind of the audio, so that a call has started with the first of it.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence

from realtime.errors import RemoteProtocolError
from realtime.protocol.model import Message
from realtime.protocol.telephony import base, model

HEADER = struct.Struct(">BH")
HANG_UP, UUID, DTMF, ERROR = 0x00, 0x01, 0x03, 0xFF
UUID_BYTES = 16
RATES = {0x10: 8_000, 0x11: 12_000, 0x12: 16_000, 0x13: 24_000, 0x14: 32_000, 0x15: 44_100, 0x16: 48_000}
KINDS = {rate: kind for kind, rate in RATES.items()}
UNSUPPORTED_RATES = {0x17: 96_000, 0x18: 192_000}


class AudioSocketDialect(base.TelephonyDialect):
    """Asterisk's AudioSocket; messages are whole frames."""

    name = "audiosocket"
    formats = frozenset(model.TelephonyFormat("pcm_s16le", rate) for rate in KINDS)
    max_buffer_ms = 40
    is_paced = True
    has_marks = False
    _call_id = ""

    def receive_message(self, message: Message) -> Sequence[model.TelephonyEvent]:
        kind, payload = frame_parts(message)
        if kind == UUID:
            self._call_id = self._read_uuid(payload)
            return []
        if not self._call_id:
            raise RemoteProtocolError("invalid_event", f"a frame of kind {kind:#04x} came before the UUID", "uuid")
        match kind:
            case 0x00:
                return [model.StreamEnded()]
            case 0x03:
                return [model.DtmfReceived(base.digit(payload.decode("ascii", "replace")))] if self.format else []
            case 0xFF:
                return [model.StreamEnded("asterisk_error")]
        return self._read_audio(kind, payload) if kind in RATES or kind in UNSUPPORTED_RATES else []

    def send_audio(self, data: bytes) -> bytes:
        return frame(KINDS[self.require_start("audio").sample_rate], data)

    def send_hang_up(self) -> bytes:
        return frame(HANG_UP, b"")

    def _read_uuid(self, payload: bytes) -> str:
        if self._call_id:
            raise RemoteProtocolError("invalid_event", "the UUID has come already", "uuid")
        if len(payload) != UUID_BYTES:
            raise RemoteProtocolError("invalid_event", f"a UUID has 16 bytes, this one {len(payload)}", "uuid")
        return str(uuid.UUID(bytes=payload))

    def _read_audio(self, kind: int, payload: bytes) -> list[model.TelephonyEvent]:
        rate = RATES.get(kind) or UNSUPPORTED_RATES[kind]
        if self.format is None:
            return [self.start(self._call_id, model.TelephonyFormat("pcm_s16le", rate), {}), self.caller_audio(payload)]
        if rate != self.format.sample_rate:
            found = f"the call began at {self.format.sample_rate} Hz and goes on at {rate}"
            raise RemoteProtocolError("unsupported_format", found, "kind")
        return [self.caller_audio(payload)]


def frame(kind: int, payload: bytes) -> bytes:
    return HEADER.pack(kind, len(payload)) + payload


def frame_parts(message: Message) -> tuple[int, bytes]:
    """Split a frame into type and payload; raises ``RemoteProtocolError`` for anything but one whole frame."""
    if isinstance(message, str) or len(message) < HEADER.size:
        raise RemoteProtocolError("invalid_event", "not a frame of AudioSocket")
    kind, length = HEADER.unpack_from(message)
    if len(message) != HEADER.size + length:
        found = f"a frame of {length} bytes has {len(message) - HEADER.size}"
        raise RemoteProtocolError("invalid_event", found, "length")
    return kind, message[HEADER.size :]
