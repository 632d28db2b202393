"""Opus packets in an Ogg stream (RFC 3533, RFC 7845), page by page as they are made.

Positions in Ogg Opus count at 48 kHz whatever the rate. The last page carries the end of the sound, so that players
drop the padding of the last packet: push the packets of ``OpusEncoder.flush`` through ``finish``.
"""

from __future__ import annotations

import secrets
import struct
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sessions.audio.opus import OpusEncoder
from sessions.audio.pcm import Pcm, within_full_scale
from sessions.audio.provenance import vorbis_comments

if TYPE_CHECKING:
    from sessions.audio.opus import OpusPacket, OpusSettings

GRANULE_RATE = 48_000
MAX_SEGMENTS = 255
FIRST_PAGE, LAST_PAGE = 0x02, 0x04
BITS_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


class OggOpusStream:
    """Encode Ogg Opus with one page per packet, which costs 28 bytes and adds no delay.

    The last page holds the end of the audio, so that a player decodes exactly the samples that were pushed.
    """

    def __init__(self, settings: OpusSettings, serial: int | None = None) -> None:
        self._encoder = OpusEncoder(settings)
        self._muxer = OggOpusMuxer(settings, secrets.randbits(32) if serial is None else serial)
        self._head = self._muxer.headers()

    def push(self, pcm: Pcm) -> bytes:
        head, self._head = self._head, b""
        packets = self._encoder.push(within_full_scale(pcm))
        return head + b"".join(self._muxer.push([packet]) for packet in packets)

    def finish(self) -> bytes:
        head, self._head = self._head, b""
        return head + self._muxer.finish(self._encoder.flush())


class OggOpusMuxer:
    """``headers``, then any number of ``push``, then ``finish``: together they are a whole .opus file."""

    def __init__(self, settings: OpusSettings, serial: int = 1) -> None:
        self._scale = GRANULE_RATE // settings.sample_rate
        self._settings = settings
        self._serial = serial
        self._num_pages = 0
        self._granule = 0

    def headers(self) -> bytes:
        pre_skip = self._settings.pre_skip_samples * self._scale
        head = struct.pack("<8sBBHIhB", b"OpusHead", 1, 1, pre_skip, self._settings.sample_rate, 0, 0)
        return self._page([head], FIRST_PAGE) + self._page([b"OpusTags" + vorbis_comments()])

    def push(self, packets: Sequence[OpusPacket]) -> bytes:
        """Pages that hold these packets; nothing waits for the next call."""
        return b"".join(self._audio_page(group) for group in _split_into_pages(packets))

    def finish(self, packets: Sequence[OpusPacket]) -> bytes:
        """The last packets, as ``OpusEncoder.flush`` gave them, maybe none, and the end of the stream."""
        *full, last = _split_into_pages(packets) or [[]]
        pages = b"".join(self._audio_page(group) for group in full)
        padding_samples = last[-1].padding_samples if last else 0
        return pages + self._audio_page(last, LAST_PAGE, padding_samples)

    def _audio_page(self, packets: Sequence[OpusPacket], flags: int = 0, padding_samples: int = 0) -> bytes:
        num_samples = sum(packet.num_samples for packet in packets) - padding_samples
        self._granule += num_samples * self._scale
        return self._page([packet.data for packet in packets], flags)

    def _page(self, packets: list[bytes], flags: int = 0) -> bytes:
        lacing = b"".join(_lacing(packet) for packet in packets)
        head = struct.pack("<4sBBqII", b"OggS", 0, flags, self._granule, self._serial, self._num_pages)
        body = bytes([len(lacing)]) + lacing + b"".join(packets)
        self._num_pages += 1
        return head + struct.pack("<I", ogg_crc(head + bytes(4) + body)) + body


def _split_into_pages(packets: Sequence[OpusPacket]) -> list[list[OpusPacket]]:
    """Groups of whole packets, as many as one page takes: 255 segments."""
    groups: list[list[OpusPacket]] = []
    free_segments = 0
    for packet in packets:
        needed = len(_lacing(packet.data))
        if needed > free_segments:
            groups.append([])
            free_segments = MAX_SEGMENTS
        groups[-1].append(packet)
        free_segments -= needed
    return groups


def _lacing(packet: bytes) -> bytes:
    """The packet's length as segment lengths: 255 for every full one, then the rest, 0 included."""
    return b"\xff" * (len(packet) // 255) + bytes([len(packet) % 255])


def ogg_crc(data: bytes) -> int:
    """CRC-32 with the usual polynomial, but highest bit first and without inversions: zlib's, read in a mirror."""
    mirrored = zlib.crc32(data.translate(BITS_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int.from_bytes(mirrored.to_bytes(4, "little").translate(BITS_REVERSED), "big")
