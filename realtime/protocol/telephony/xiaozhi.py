"""The wire of xiaozhi devices: its messages, its binary frames and its UDP packets."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from realtime.errors import RemoteProtocolError
from realtime.protocol.model import Message
from realtime.protocol.native import decode_json
from realtime.protocol.telephony import base, model

# Rate of both directions: an Opus decoder converts the rate of the device.
SAMPLE_RATE = 24_000
PACKET_MS = 60
# A device holds 2.4 s and throws away what is beyond.
MAX_BUFFER_MS = 1_000
LINE = model.TelephonyFormat("pcm_s16le", SAMPLE_RATE)
# A message of sound without any: what has been gathered for a packet leaves now.
FLUSH = b""
MAX_TEXT_CHARS = 4_096
MAX_PACKET_BYTES = 4_000
# Before each packet, by the version. 2: version, kind, nothing, milliseconds, bytes; 3: kind, nothing, bytes.
HEADERS = {2: struct.Struct(">HHIII"), 3: struct.Struct(">BBH")}
SOUND = 0
VERSIONS = (1, 2, 3)

_decoder: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


class XiaozhiDialect(base.TelephonyDialect):
    """The xiaozhi protocol; messages are text, and PCM in place of Opus packets."""

    name = "xiaozhi"
    formats = frozenset({LINE})
    max_buffer_ms = MAX_BUFFER_MS
    has_marks = False

    def __init__(
        self, session_id: str, parameters: Mapping[str, str], transport: str = "websocket", **offer: object
    ) -> None:
        self.session_id = session_id
        self._parameters = dict(parameters)
        self._transport = transport
        # Further fields of the server's hello.
        self._offer = offer

    def receive_message(self, message: Message) -> Sequence[model.TelephonyEvent]:
        if isinstance(message, bytes):
            return [self.caller_audio(message)]
        found = decode_json(_decoder.decode, message)
        match found.get("type"):
            case "hello":
                return [self._hello(found)]
            case "abort":
                self.require_start("abort")
                return [model.RemoteBargeIn()]
            case "listen":
                return self._listen(found)
            case "goodbye":
                return [model.StreamEnded()]
        return []

    def send_greeting(self) -> str:
        audio = {"format": "opus", "sample_rate": SAMPLE_RATE, "channels": 1, "frame_duration": PACKET_MS}
        return self._send_json("hello", transport=self._transport, audio_params=audio, **self._offer)

    def send_audio(self, data: bytes) -> bytes:
        return data

    def send_mark(self, name: str) -> bytes:
        """Flush audio before a mark; devices do not acknowledge marks."""
        return FLUSH

    def send_clear(self) -> str:
        return self.stop()

    def start_speech(self) -> str:
        return self._send_json("tts", state="start")

    def stop(self) -> str:
        return self._send_json("tts", state="stop")

    def send_hang_up(self) -> str:
        return self._send_json("goodbye")

    def _hello(self, hello: Mapping[str, Any]) -> model.StreamStarted:
        if hello.get("transport", self._transport) != self._transport:
            raise RemoteProtocolError("invalid_event", f"transport must be {self._transport} here", "transport")
        audio = hello.get("audio_params") or {}
        if not isinstance(audio, dict) or audio.get("format", "opus") != "opus":
            raise RemoteProtocolError("unsupported_format", "audio_params.format must be opus", "audio_params.format")
        return self.start(self.session_id, LINE, self._parameters)

    def _listen(self, listen: Mapping[str, Any]) -> list[model.TelephonyEvent]:
        self.require_start("listen")
        match listen.get("state"):
            case "start":
                return [model.ListeningStarted(listen.get("mode") == "manual")]
            case "stop":
                return [model.ListeningStopped()]
            case "detect":
                return self._detected(listen.get("text"))
        return []

    def _detected(self, text: object) -> list[model.TelephonyEvent]:
        if not isinstance(text, str) or not text:
            return []
        if len(text) > MAX_TEXT_CHARS:
            raise RemoteProtocolError("invalid_event", f"text has at most {MAX_TEXT_CHARS} characters", "text")
        return [model.TextReceived(text)]

    def _send_json(self, kind: str, **more: object) -> str:
        return msgspec.json.encode({"type": kind, "session_id": self.session_id, **more}).decode()


def pack_frame(version: int, packet: bytes, time_ms: int) -> bytes:
    """A packet as it goes over the WebSocket."""
    match version:
        case 2:
            return HEADERS[2].pack(version, SOUND, 0, time_ms % 2**32, len(packet)) + packet
        case 3:
            return HEADERS[3].pack(SOUND, 0, len(packet)) + packet
    return packet


def unpack_frame(version: int, message: bytes) -> bytes:
    """The packet in it; nothing if it holds something else than sound. Raises ``RemoteProtocolError``."""
    packet = message
    if version in HEADERS:
        header = HEADERS[version]
        if len(message) < header.size:
            found = f"a message of version {version} has at least {header.size} bytes, this one {len(message)}"
            raise RemoteProtocolError("invalid_event", found)
        fields = header.unpack_from(message)
        kind, length = (fields[1], fields[4]) if version == 2 else (fields[0], fields[2])
        packet = message[header.size :]
        if len(packet) != length:
            raise RemoteProtocolError("invalid_event", f"a packet of {length} bytes has {len(packet)}", "size")
        if kind != SOUND:
            return b""
    if len(packet) > MAX_PACKET_BYTES:
        found = f"a packet has at most {MAX_PACKET_BYTES} bytes, this one {len(packet)}"
        raise RemoteProtocolError("message_too_big", found)
    return packet


# Kind, flags, bytes of sound, stream, milliseconds, number; big-endian.
HEADER = struct.Struct(">BBHIII")
SOUND = 0x01
# Flags of sent packets: both sides use one key, so the nonces of the two directions must differ.
FROM_US = 0x01
KEY_BYTES = 16
MAX_PACKET_BYTES = 1_400
# A number so much further on is one of the past.
MAX_STEP = 2**31


def stream_id_of(datagram: bytes) -> int | None:
    """Which stream it belongs to; ``None`` if it cannot be sound."""
    if not HEADER.size < len(datagram) <= HEADER.size + MAX_PACKET_BYTES:
        return None
    kind, _, length, stream, _, _ = HEADER.unpack_from(datagram)
    return stream if kind == SOUND and length == len(datagram) - HEADER.size else None


@dataclass(slots=True)
class EncryptedAudioStream:
    """Encrypts and decrypts the UDP audio of a device."""

    key: bytes
    stream: int
    _sent: int = 0
    # The highest number that came; they begin with 1.
    _heard: int = 0

    @property
    def nonce(self) -> bytes:
        """The nonce from which the device makes its headers."""
        return HEADER.pack(SOUND, 0, 0, self.stream, 0, 0)

    def encrypt(self, packet: bytes, time_ms: int) -> bytes:
        self._sent += 1
        header = HEADER.pack(SOUND, FROM_US, len(packet), self.stream, time_ms % 2**32, self._sent % 2**32)
        return header + self._crypt(header, packet)

    def decrypt(self, datagram: bytes) -> bytes | None:
        """The packet in it; ``None`` for what is not of this stream, doubled, or older than what came before."""
        if stream_id_of(datagram) != self.stream:
            return None
        _, flags, _, _, _, number = HEADER.unpack_from(datagram)
        if flags == FROM_US or not 0 < (number - self._heard) % 2**32 < MAX_STEP:
            return None
        self._heard = number
        return self._crypt(datagram[: HEADER.size], datagram[HEADER.size :])

    def _crypt(self, nonce: bytes, data: bytes) -> bytes:
        return Cipher(AES(self.key), CTR(nonce)).encryptor().update(data)
