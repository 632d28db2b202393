"""Sound of xiaozhi devices over UDP: a header of 16 bytes, which is also the nonce, and Opus under AES-128-CTR.

The cipher keeps others from listening, but does not authenticate packets: the source address does.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

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
    """One device's stream, both ways."""

    key: bytes
    stream: int
    _sent: int = 0
    # The highest number that came; they begin with 1.
    _heard: int = 0

    @property
    def nonce(self) -> bytes:
        """What the device makes its headers from."""
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
