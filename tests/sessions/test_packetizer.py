"""Packets of every format: nothing lost, nothing counted twice, and a pause lets all sound out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import SpeechChunk
from sessions.audio.formats.registry import RATES, stream_encoder
from sessions.audio_track import ENCODE_SLICE_PACKETS, AudioOutput, AudioTrack
from sessions.config import AudioFormat, Encoding
from sessions.encoders import EncoderPool
from sessions.packetizer import PACKET_MS, create_packetizer
from sessions.text_track import FlushItem
from tests.sessions.audio.formats.decoding import DEMUXERS, decode
from tests.sessions.audio.signals import pieces, speech_like

STREAMS = [encoding for encoding in Encoding if encoding is not Encoding.OPUS]
ENGINE_RATE = 24_000


@pytest.fixture(autouse=True)
def same_serial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.randbits", lambda bits: 7)


@pytest.mark.parametrize("encoding", STREAMS)
def test_packets_are_the_stream_in_pieces(encoding: Encoding) -> None:
    audio = AudioFormat(encoding=encoding, sample_rate=16_000)
    signal = speech_like(7_000, 16_000, seed=8)
    stream = stream_encoder(audio)
    whole = stream.push(signal) + stream.finish()

    @settings(max_examples=8)
    @given(pieces(signal))
    def check(cut: list[np.ndarray]) -> None:
        encoder = create_packetizer(audio)
        packets = [packet for piece in cut for packet in encoder.push(piece)]
        packets += encoder.flush()
        assert b"".join(packet.data for packet in packets) == whole
        assert sum(packet.num_samples for packet in packets) == signal.size

    check()


@given(st.sampled_from(STREAMS), st.integers(1, 30))
def test_a_packet_leaves_every_20_ms_where_nothing_is_held_back(encoding: Encoding, num_packets: int) -> None:
    encoder = create_packetizer(AudioFormat(encoding=encoding, sample_rate=8_000))
    packets = encoder.push(np.zeros(num_packets * 8 * PACKET_MS, np.float32))
    if encoding not in {Encoding.MP3, Encoding.AAC, Encoding.FLAC}:
        assert [packet.num_samples for packet in packets] == [8 * PACKET_MS] * num_packets
    assert all(packet.data for packet in packets)


@pytest.mark.parametrize("encoding", DEMUXERS)
@pytest.mark.parametrize("rate", [8_000, 24_000, 48_000])
async def test_after_a_pause_all_speech_can_be_heard(encoding: Encoding, rate: int) -> None:
    assert rate in RATES[encoding]
    track = AudioTrack(AudioFormat(encoding=encoding, sample_rate=rate), ENGINE_RATE, EncoderPool(0))
    await track.begin_segment()
    speech = speech_like(9_000, ENGINE_RATE, seed=9)
    packets = collect(await track.push(SpeechChunk("r", 0, speech)))
    flushed = collect(await track.flush(FlushItem(0), is_segment_next=False))
    assert flushed.pop() == FlushItem(0)
    packets += flushed
    decoded, decoded_rate = decode(b"".join(packet.data for packet in packets), encoding)
    assert decoded.size / decoded_rate >= speech.size / ENGINE_RATE
    if encoding is Encoding.WAV:
        return
    end = decoded[-decoded_rate // 50 :]
    assert np.abs(end).max() < 0.05


async def test_a_long_chunk_on_the_event_loop_holds_up_nobody() -> None:
    """The packets are those of a chunk that is encoded at once."""
    chunk = SpeechChunk("r", 0, speech_like(8 * 1_920, ENGINE_RATE, seed=10))
    packets, num_turns = {}, {}
    for num_threads in (0, 1):
        threads = EncoderPool(num_threads)
        track = AudioTrack(AudioFormat(), ENGINE_RATE, threads)
        await track.begin_segment()
        counting = asyncio.create_task(turns())
        packets[num_threads] = [packet.data for packet in collect(await track.push(chunk))]
        counting.cancel()
        num_turns[num_threads] = await counting
        threads.close()
    assert packets[0] == packets[1]
    assert num_turns[0] >= len(packets[0]) // ENCODE_SLICE_PACKETS


def collect(outputs: Iterable[AudioOutput]) -> list[Any]:
    """Packets, and flushes in their place."""
    collected: list[Any] = []
    for output in outputs:
        collected += [output] if isinstance(output, FlushItem) else output
    return collected


async def turns() -> int:
    """Of the event loop, until it is cancelled."""
    num_turns = 0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(0)
            num_turns += 1
    return num_turns
