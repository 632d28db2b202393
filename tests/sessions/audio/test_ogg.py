"""Ogg Opus: read back by libsndfile, and by a reader written out here."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from sessions.audio.ogg import OggOpusMuxer, ogg_crc
from sessions.audio.opus import PACKET_MS, SAMPLE_RATES, OpusEncoder, OpusPacket, OpusSettings, decode_all
from sessions.audio.pcm import Pcm
from tests.sessions.audio.signals import noise, pieces, speech_like


@dataclass(frozen=True)
class Page:
    flags: int
    granule: int
    sequence: int
    packets: list[bytes]


def slow_crc(data: bytes) -> int:
    register = 0
    for byte in data:
        register ^= byte << 24
        for _ in range(8):
            register = (register << 1) ^ (0x04C11DB7 if register & 0x80000000 else 0)
            register &= 0xFFFFFFFF
    return register


def read_pages(stream: bytes) -> list[Page]:
    pages = []
    at = 0
    while at < len(stream):
        magic, _, flags, granule, _, sequence, crc, num_segments = struct.unpack_from("<4sBBqIIIB", stream, at)
        assert magic == b"OggS"
        lengths = stream[at + 27 : at + 27 + num_segments]
        end = at + 27 + num_segments + sum(lengths)
        assert crc == slow_crc(stream[at : at + 22] + bytes(4) + stream[at + 26 : end])
        pages.append(Page(flags, granule, sequence, packets_of(lengths, stream[at + 27 + num_segments : end])))
        at = end
    assert at == len(stream)
    return pages


def packets_of(lengths: bytes, body: bytes) -> list[bytes]:
    packets, size, at = [], 0, 0
    for length in lengths:
        size += length
        if length < 255:
            packets.append(body[at : at + size])
            at, size = at + size, 0
    assert at == len(body)
    return packets


def muxed(chunks: list[Pcm], settings: OpusSettings) -> bytes:
    encoder, muxer = OpusEncoder(settings), OggOpusMuxer(settings)
    out = [muxer.headers()]
    out.extend(muxer.push(encoder.push(chunk)) for chunk in chunks)
    out.append(muxer.finish(encoder.flush()))
    return b"".join(out)


@given(st.binary(max_size=300))
def test_crc_equals_the_slow_one(data: bytes) -> None:
    assert ogg_crc(data) == slow_crc(data)


def test_crc_of_a_known_page() -> None:
    assert ogg_crc(b"123456789") == 0x89A1897F


@hypothesis_settings(max_examples=20)
@given(st.integers(1, 3_000), st.sampled_from(SAMPLE_RATES), st.sampled_from(PACKET_MS), st.data())
def test_pages_hold_every_packet_and_end_where_the_sound_ends(
    num_samples: int, sample_rate: int, packet_ms: float, data: st.DataObject
) -> None:
    settings = OpusSettings(sample_rate=sample_rate, packet_ms=packet_ms)
    signal = noise(num_samples)
    encoder = OpusEncoder(settings)
    packets = encoder.push(signal) + encoder.flush()
    pages = read_pages(muxed(data.draw(pieces(signal)), settings))
    assert [packet for page in pages[2:] for packet in page.packets] == [packet.data for packet in packets]
    assert [page.sequence for page in pages] == list(range(len(pages)))
    assert [page.flags for page in pages] == [2, *[0] * (len(pages) - 2), 4]
    assert pages[-1].granule == (num_samples + settings.pre_skip_samples) * 48_000 // sample_rate


def test_headers_tell_pre_skip_and_rate() -> None:
    settings = OpusSettings(sample_rate=24_000)
    head, tags = read_pages(OggOpusMuxer(settings).headers())
    assert head.packets == [b"OpusHead" + struct.pack("<BBHIhB", 1, 1, 312, 24_000, 0, 0)]
    assert tags.packets == [b"OpusTags\x09\x00\x00\x00voicewire\x00\x00\x00\x00"]
    assert head.granule == tags.granule == 0


@pytest.mark.parametrize("sample_rate", SAMPLE_RATES)
@pytest.mark.parametrize("num_samples", [1, 159, 960, 9_601])
def test_another_reader_finds_every_sample(sample_rate: int, num_samples: int) -> None:
    settings = OpusSettings(sample_rate=sample_rate)
    speech = speech_like(sample_rate, sample_rate, 4)[:num_samples]
    read, rate = soundfile.read(io.BytesIO(muxed([speech], settings)), dtype="float32")
    assert rate == sample_rate
    assert read.size == speech.size
    encoder = OpusEncoder(settings)
    assert read == pytest.approx(decode_all(encoder.push(speech) + encoder.flush(), settings), abs=1e-4)


def test_large_packets_and_full_pages() -> None:
    """Lengths around multiples of 255, and more than one page takes."""
    sizes = [254, 255, 256, 509, 510, 511, *[1_275] * 300, 7]
    packets = [OpusPacket(480 * i, 480, bytes([i % 251]) * size) for i, size in enumerate(sizes)]
    muxer = OggOpusMuxer(OpusSettings())
    pages = read_pages(muxer.push(packets[:100]) + muxer.finish(packets[100:]))
    assert [packet for page in pages for packet in page.packets] == [packet.data for packet in packets]
    assert pages[-1].granule == 480 * len(packets) * 2
    assert len(pages) == 8


def test_nothing_spoken_is_an_empty_stream() -> None:
    pages = read_pages(muxed([np.zeros(0, np.float32)], OpusSettings()))
    assert [page.flags for page in pages] == [2, 0, 4]
    assert pages[2].packets == []
    assert pages[2].granule == 0


def test_each_push_gives_its_pages_at_once() -> None:
    settings = OpusSettings()
    encoder, muxer = OpusEncoder(settings), OggOpusMuxer(settings)
    for _ in range(3):
        packets = encoder.push(noise(1_920))
        (page,) = read_pages(muxer.push(packets))
        assert page.packets == [packet.data for packet in packets]
