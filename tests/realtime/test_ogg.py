from __future__ import annotations

import itertools
import struct
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from realtime.ogg import CHECKSUM_AT, FIRST, LAST, PACKET_SAMPLES, PAGE, OggOpus, checksum

PACKETS = st.lists(st.binary(min_size=1, max_size=700), max_size=120)
PRE_SKIP = 312


class Page(NamedTuple):
    flags: int
    position: int
    number: int
    packets: list[bytes]


def read_pages(data: bytes) -> list[Page]:
    """The slow, obvious reader: every page whole, every checksum right, no packet over a page's end."""
    pages = []
    while data:
        magic, version, flags, position, serial, number, crc, num_segments = PAGE.unpack_from(data)
        assert (magic, version, serial, number) == (b"OggS", 0, 7, len(pages))
        lacing = data[PAGE.size : PAGE.size + num_segments]
        end = PAGE.size + num_segments + sum(lacing)
        blank = data[:CHECKSUM_AT] + bytes(4) + data[CHECKSUM_AT + 4 : end]
        assert crc == checksum(blank)
        pages.append(Page(flags, position, number, read_packets(lacing, data[PAGE.size + num_segments : end])))
        data = data[end:]
    return pages


def read_packets(lacing: bytes, body: bytes) -> list[bytes]:
    packets, at, size = [], 0, 0
    for length in lacing:
        size += length
        if length < 255:
            packets.append(body[at : at + size])
            at, size = at + size, 0
    assert (at, size) == (len(body), 0)
    return packets


def write(packets: list[bytes], cuts: list[int], num_samples: int) -> bytes:
    stream = OggOpus(serial=7, sample_rate=24_000, pre_skip=PRE_SKIP)
    marks = sorted({0, len(packets), *(cut % (len(packets) + 1) for cut in cuts)})
    head = stream.begin()
    pushed = [stream.push(packets[start:end]) for start, end in itertools.pairwise(marks)]
    return b"".join([head, *pushed, stream.end(num_samples)])


@given(PACKETS, st.lists(st.integers(0, 200), max_size=10))
def test_every_packet_comes_back_however_they_were_pushed(packets: list[bytes], cuts: list[int]) -> None:
    num_samples = len(packets) * PACKET_SAMPLES
    head, tags, *audio = read_pages(write(packets, cuts, num_samples))
    assert [packet for page in audio for packet in page.packets] == packets
    assert (head.flags, tags.flags, audio[-1].flags) == (FIRST, 0, LAST)
    assert all(page.flags == 0 for page in audio[:-1])
    assert audio[-1].position == PRE_SKIP + num_samples


@given(PACKETS)
def test_positions_count_the_packets_up_to_the_end_of_their_page(packets: list[bytes]) -> None:
    *audio, _ = read_pages(write(packets, [1, 5, 50], 0))[2:]
    num_packets = 0
    for page in audio:
        num_packets += len(page.packets)
        assert page.position == num_packets * PACKET_SAMPLES


def test_the_headers() -> None:
    head, tags, _ = read_pages(write([], [], 0))
    assert head.packets == [b"OpusHead" + struct.pack("<BBHIhB", 1, 1, PRE_SKIP, 24_000, 0, 0)]
    assert tags.packets == [b"OpusTags" + struct.pack("<I", 9) + b"voicewire" + bytes(4)]


def test_the_checksum_is_the_remainder_of_the_polynomial() -> None:
    assert checksum(b"") == 0
    assert checksum(b"\x01") == 0x04C11DB7
    assert checksum(b"123456789") == 0x89A1897F  # CRC-32/MPEG-2 without its initial value
