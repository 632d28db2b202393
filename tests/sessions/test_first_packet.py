"""Somebody waits for the first packet of a response: it leaves before the rest of its chunk is encoded."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from sessions.alignment.uniform_aligner import UniformAligner
from sessions.config import AudioFormat, Encoding, RegistryLimits, SessionLimits, SpeechSettings
from sessions.events import ResponseAudio
from sessions.registry import SessionRegistry
from tests.sessions.conftest import LIMITS, RecordingEngine
from tests.sessions.response_reader import read

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
