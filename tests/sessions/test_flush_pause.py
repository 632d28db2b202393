"""A flush between two segments makes the same pause in every format, however much its encoder holds back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import numpy as np
import pytest

from sessions.audio.pcm import Pcm
from sessions.config import AudioFormat, Encoding, RegistryLimits, SpeechSettings
from sessions.registry import SessionRegistry
from sessions.session import Session
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.sessions.audio.formats.decoding import decode
from tests.sessions.conftest import assert_all_free
from tests.sessions.response_reader import read, reading_task

RATE = 24_000
FORMATS = [Encoding.PCM_S16LE, Encoding.MP3, Encoding.AAC, Encoding.FLAC, Encoding.OGG_OPUS]
# Of one packet of the codecs.
TOLERANCE_S = 0.024
FIRST, SECOND = "One two three four. ", "Five six seven eight."


def longest_silence_s(pcm: Pcm) -> float:
    """Inside the speech, in windows of 2 ms."""
    windows = np.abs(pcm[: pcm.size // 48 * 48]).reshape(-1, 48).max(axis=1) > 0.02
    loud = np.flatnonzero(windows)
    return 0.002 * float(np.diff(loud).max() - 1)


@contextlib.asynccontextmanager
async def session(script: FakeScript, encoding: Encoding, lead_ms: int | None) -> AsyncIterator[Session]:
    engine = FakeSpeechEngine(script)
    await engine.start()
    registry = SessionRegistry(engine, RegistryLimits(encoder_threads=0))
    audio = AudioFormat(encoding=encoding, sample_rate=RATE)
    yield registry.create(settings=SpeechSettings(format=audio, lead_ms=lead_ms))
    await registry.aclose()
    assert_all_free(engine)
    await engine.aclose()


async def speak(encoding: Encoding, lead_ms: int | None) -> tuple[Pcm, list[int]]:
    """PCM of two segments with a flush between them, and the flushes' positions."""
    async with session(FakeScript(first_chunk_s=0.1), encoding, lead_ms) as opened:
        response = opened.create_response()
        response.push_text(FIRST)
        response.flush()
        response.push_text(SECOND)
        response.end_input()
        reading = await read(response)
    return decoded(reading.data, encoding), [one.end_sample for one in reading.flushes]


def decoded(data: bytes, encoding: Encoding) -> Pcm:
    if encoding is Encoding.PCM_S16LE:
        return np.frombuffer(data, "<i2").astype(np.float32) / 32_768
    pcm, rate = decode(data, encoding)
    assert rate == RATE or encoding is Encoding.OGG_OPUS
    return pcm[::2] if rate == 2 * RATE else pcm


@pytest.mark.virtual_time
@pytest.mark.parametrize("lead_ms", [None, 2_000])
@pytest.mark.parametrize("encoding", FORMATS[1:])
async def test_pause_at_a_flush_is_that_of_pcm(encoding: Encoding, lead_ms: int | None) -> None:
    expected, expected_flushes = await speak(Encoding.PCM_S16LE, lead_ms)
    pcm, flushes = await speak(encoding, lead_ms)
    assert abs(longest_silence_s(pcm) - longest_silence_s(expected)) <= TOLERANCE_S
    assert len(flushes) == len(expected_flushes) == 1


@pytest.mark.virtual_time
@pytest.mark.parametrize("lead_ms", [None, 2_000])
@pytest.mark.parametrize("encoding", FORMATS[1:])
async def test_flush_without_further_text_releases_all_audio(encoding: Encoding, lead_ms: int | None) -> None:
    async with session(FakeScript(), Encoding.PCM_S16LE, lead_ms) as opened:
        response = opened.create_response(text=FIRST)
        response.end_input()
        spoken = decoded((await read(response)).data, Encoding.PCM_S16LE)
    async with session(FakeScript(), encoding, lead_ms) as opened:
        response = opened.create_response(text=FIRST)
        response.flush()
        reading, task = reading_task(response)
        await asyncio.sleep(10)
        assert len(reading.flushes) == 1
        heard = decoded(reading.data, encoding)
        assert np.flatnonzero(np.abs(heard) > 0.02)[-1] >= np.flatnonzero(np.abs(spoken) > 0.02)[-1]
        response.cancel()
        await task


@pytest.mark.virtual_time
@pytest.mark.parametrize("parks_first", [False, True])
@pytest.mark.parametrize("encoding", FORMATS)
async def test_late_segment_does_not_hold_the_audio_before_it(encoding: Encoding, parks_first: bool) -> None:
    """The flush is complete before the listener has played what was sent. A cancel leaves nothing behind."""
    async with session(FakeScript(first_chunk_s=4.0, parks_first=parks_first), encoding, 2_000) as opened:
        response = opened.create_response(text=FIRST)
        response.flush()
        response.push_text(SECOND)
        reading, task = reading_task(response)
        while not reading.flushes:
            await asyncio.sleep(0.01)
        begin_s = reading.times_s[0]
        assert reading.times_s[-1] - begin_s <= reading.num_samples / RATE
        response.cancel()
        await task
