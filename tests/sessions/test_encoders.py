"""Encoders and packets: nothing lost, the same packets however work is shared, none waits for another."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import SpeechChunk
from sessions import audio_track
from sessions.alignment.uniform_aligner import UniformAligner
from sessions.audio.formats.registry import RATES, stream_encoder
from sessions.audio.opus_library import OpusUnavailable
from sessions.audio_track import ENCODE_SLICE_PACKETS, AudioOutput, AudioTrack, ChunkOrderError
from sessions.config import PACKET_MS, AudioFormat, Encoding, RegistryLimits, SessionLimits, SpeechSettings
from sessions.encoders import EncoderPool
from sessions.events import ResponseAudio
from sessions.packetizer import create_packetizer
from sessions.registry import SessionRegistry
from sessions.text_items import FlushItem
from tests.fakes.engine import FakeSpeechEngine
from tests.sessions.audio.signals import DEMUXERS, decode, pieces, speech_like
from tests.sessions.conftest import BURST, LIMITS, PACED, RecordingEngine, read, reading_task

NUM = 8


@pytest.mark.parametrize("num_threads", [1, 2])
async def test_work_runs_off_the_event_loop(num_threads: int):
    pool = EncoderPool(num_threads)
    started, go_on = threading.Event(), threading.Event()

    def work() -> str:
        started.set()
        go_on.wait(10)
        return threading.current_thread().name

    task = asyncio.create_task(pool.run(work))
    while not started.is_set():
        await asyncio.sleep(0.001)
    go_on.set()
    assert (await task).startswith("voicewire-encoder")
    pool.close()
    pool.close()


async def test_without_threads_work_runs_in_place():
    assert await EncoderPool(0).run(threading.current_thread) is threading.main_thread()


async def test_error_of_the_work_is_raised():
    pool = EncoderPool(1)
    with pytest.raises(ZeroDivisionError):
        await pool.run(lambda: 1 // 0)
    pool.close()


async def turns_taken(pool: EncoderPool) -> list[int]:
    """The event loop iterations in which the callers returned."""
    loop, now, found = asyncio.get_running_loop(), 0, []

    def count() -> None:
        nonlocal now
        now += 1
        if len(found) < NUM:
            loop.call_soon(count)

    async def work() -> None:
        await pool.wait_turn()
        found.append(now)

    loop.call_soon(count)
    await asyncio.gather(*(work() for _ in range(NUM)))
    return found


async def test_no_two_callers_share_an_iteration() -> None:
    pool = EncoderPool(0)
    for _ in range(3):
        found = await turns_taken(pool)
        assert len(set(found)) == NUM
        assert found == sorted(found)


async def test_cancelled_caller_does_not_block_the_next() -> None:
    pool = EncoderPool(0)
    await pool.wait_turn()
    waiting = [asyncio.create_task(pool.wait_turn()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting[1:])
    await asyncio.sleep(0.01)
    assert not pool._has_turn


@pytest.mark.virtual_time
async def test_turns_do_not_change_the_packets(engine: RecordingEngine) -> None:
    settings = SpeechSettings(format=AudioFormat(encoding=Encoding.MULAW, sample_rate=8_000))
    packets = {}
    for in_turn in (False, True):
        limits = replace(LIMITS, session=SessionLimits(one_chunk_per_loop_iteration=in_turn))
        registry = SessionRegistry(engine, limits, make_aligner=UniformAligner)
        texts = [f"This is sentence {number}, which says nothing much." for number in range(4)]
        responses = [registry.create(settings=settings).create_response(text=text, text_closed=True) for text in texts]
        readings = await asyncio.gather(*(read(response) for response in responses))
        packets[in_turn] = [
            b"".join(packet for message in reading.audio for packet in message.packets) for reading in readings
        ]
        await registry.aclose()
    assert packets[True] == packets[False]
    assert all(packets[True])


@pytest.mark.parametrize("settings", [BURST, replace(PACED, lead_ms=200)], ids=["burst", "paced"])
async def test_many_flushes_do_not_block_the_event_loop(registry: SessionRegistry, settings: SpeechSettings) -> None:
    """Whether they wait for speech to be made or to be played."""
    response = registry.create(settings=settings).create_response(text="Hello there. ")
    for _ in range(5_000):
        response.flush()
    response.end_input()
    reading, task = reading_task(response)
    nums = [0]
    while not reading.ended:
        await asyncio.sleep(0)
        nums.append(len(reading.events))
    await task
    assert [flush.flush for flush in reading.flushes] == list(range(5_000))
    assert max(later - earlier for earlier, later in pairwise(nums)) <= 100, "in one turn of the loop"


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


@pytest.mark.parametrize(
    ("num_samples", "start", "last", "message"),
    [
        (9, 11, False, "starts at sample 11, expected 9"),
        (9, 8, False, "starts at sample 8, expected 9"),
        (9, 9, True, "after the last"),
    ],
)
async def test_chunk_out_of_place_is_refused_and_changes_nothing(
    num_samples: int, start: int, last: bool, message: str
) -> None:
    track, pcm = AudioTrack(AudioFormat(), ENGINE_RATE, EncoderPool(0)), np.zeros(num_samples, np.float32)
    await track.begin_segment()
    await track.push(SpeechChunk("r", 0, pcm, last=last))
    with pytest.raises(ChunkOrderError, match=message):
        await track.push(SpeechChunk("r", start, pcm))
    assert track.num_engine_samples == num_samples
    await track.begin_segment()
    await track.push(SpeechChunk("r", 0, pcm))


async def test_long_chunk_does_not_block_the_event_loop() -> None:
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


TEXT = "This is a sentence of middling length that says nothing much at all."


@pytest.mark.virtual_time
@pytest.mark.parametrize("speed", [1.0, 1.2])
@pytest.mark.parametrize("rate", [8_000, 24_000, 48_000])
@pytest.mark.parametrize("encoding", [Encoding.OPUS, Encoding.PCM_S16LE])
async def test_the_packets_are_the_same(engine: RecordingEngine, encoding: Encoding, rate: int, speed: float) -> None:
    settings = SpeechSettings(format=AudioFormat(encoding=encoding, sample_rate=rate), speed=speed)
    packets, sizes = {}, {}
    for apart in (False, True):
        limits = replace(LIMITS, session=SessionLimits(flush_first_packet=apart))
        registry = SessionRegistry(engine, limits, make_aligner=UniformAligner)
        reading = await read(registry.create(settings=settings).create_response(text=TEXT, text_closed=True))
        packets[apart] = [packet for message in reading.audio for packet in message.packets]
        sizes[apart] = len(reading.audio[0].packets)
        await registry.aclose()
    assert packets[True] == packets[False]
    if speed == 1.0:
        assert sizes == {False: 3, True: 1}


async def test_it_does_not_wait_for_a_busy_encoder(engine: RecordingEngine) -> None:
    registry = SessionRegistry(engine, RegistryLimits(encoder_threads=1), make_aligner=UniformAligner)
    busy = threading.Event()
    working = asyncio.create_task(registry._encoders.run(busy.wait))
    try:
        async with asyncio.timeout(5):
            first = await anext(registry.create().create_response(text=TEXT, text_closed=True))
        assert isinstance(first, ResponseAudio)
        assert len(first.packets) == 1
    finally:
        busy.set()
        await working
        await registry.aclose()


async def test_the_first_listener_finds_the_encoders_at_work() -> None:
    registry = SessionRegistry(FakeSpeechEngine(), RegistryLimits(encoder_threads=1))
    before = {thread.name for thread in threading.enumerate()}
    await registry.warm_up()
    made = {thread.name for thread in threading.enumerate()} - before
    assert any(name.startswith("voicewire-encoder") for name in made)
    assert registry.statistics().num_sessions == 0
    await registry.aclose()


async def test_a_machine_without_libopus_still_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def unavailable(audio: object) -> None:
        asked.append(audio)
        raise OpusUnavailable("no libopus")

    monkeypatch.setattr(audio_track, "create_packetizer", unavailable)
    registry = SessionRegistry(FakeSpeechEngine())
    await registry.warm_up()
    assert asked
    await registry.aclose()
