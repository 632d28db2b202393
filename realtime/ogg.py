"""Opus packets of 20 ms in an Ogg stream (RFC 3533, RFC 7845), as they come. Mono; positions are at 48 kHz."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

OPUS_RATE = 48_000
PACKET_SAMPLES = 960
MAX_PAGE_PACKETS = 40
VENDOR = b"voicewire"

FIRST, LAST = 0x02, 0x04
PAGE = struct.Struct("<4sBBqIIIB")
CHECKSUM_AT = 22
OPUS_HEAD = struct.Struct("<8sBBHIhB")


class OggOpus:
    """``begin``, ``push`` any number of times, ``end``: the joined bytes are the file.

    The last packet is held back, because the page that holds it must tell where the sound ends.
    """

    def __init__(self, serial: int, sample_rate: int, pre_skip: int) -> None:
        """``sample_rate`` is only noted in the file; ``pre_skip`` is in samples at 48 kHz."""
        self._serial = serial
        self._sample_rate = sample_rate
        self._pre_skip = pre_skip
        self._num_pages = 0
        self._num_packets = 0
        self._held: bytes | None = None

    def begin(self) -> bytes:
        head = OPUS_HEAD.pack(b"OpusHead", 1, 1, self._pre_skip, self._sample_rate, 0, 0)
        tags = b"OpusTags" + struct.pack("<I", len(VENDOR)) + VENDOR + struct.pack("<I", 0)
        return self._page([head], 0, FIRST) + self._page([tags], 0)

    def push(self, packets: Sequence[bytes]) -> bytes:
        waiting = [*([] if self._held is None else [self._held]), *packets]
        if waiting:
            self._held = waiting.pop()
        pages = (waiting[at : at + MAX_PAGE_PACKETS] for at in range(0, len(waiting), MAX_PAGE_PACKETS))
        return b"".join(self._audio_page(page) for page in pages)

    def end(self, num_samples: int) -> bytes:
        """``num_samples`` of sound at 48 kHz, ``pre_skip`` not counted."""
        packets = [] if self._held is None else [self._held]
        return self._page(packets, self._pre_skip + num_samples, LAST)

    def _audio_page(self, packets: Sequence[bytes]) -> bytes:
        self._num_packets += len(packets)
        return self._page(packets, self._num_packets * PACKET_SAMPLES)

    def _page(self, packets: Sequence[bytes], position: int, flags: int = 0) -> bytes:
        lacing = b"".join(_lacing(packet) for packet in packets)
        header = PAGE.pack(b"OggS", 0, flags, position, self._serial, self._num_pages, 0, len(lacing))
        self._num_pages += 1
        page = bytearray(b"".join((header, lacing, *packets)))
        struct.pack_into("<I", page, CHECKSUM_AT, checksum(page))
        return bytes(page)


def checksum(data: Iterable[int]) -> int:
    """Ogg's CRC: polynomial 0x04c11db7, most significant bit first, from 0."""
    crc = 0
    for byte in data:
        crc = (crc << 8 & 0xFFFFFFFF) ^ CRC_TABLE[crc >> 24 ^ byte]
    return crc


def _lacing(packet: bytes) -> bytes:
    return b"\xff" * (len(packet) // 255) + bytes([len(packet) % 255])


def _crc_entry(byte: int) -> int:
    crc = byte << 24
    for _ in range(8):
        crc = crc << 1 ^ (0x04C11DB7 if crc & 0x80000000 else 0)
    return crc & 0xFFFFFFFF


CRC_TABLE = tuple(_crc_entry(byte) for byte in range(256))
