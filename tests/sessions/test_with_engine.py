"""The real engine behind the door, on a tiny checkpoint: what holds over the fake holds over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.api import SamplingParams, SpeechEngine
from engine.launch import create_engine
from sessions.audio.opus import OpusDecoder
from sessions.config import AudioFormat, Encoding, Markup, SpeechSettings
from sessions.events import ResponseStatus
from sessions.registry import SessionRegistry
from tests.fakes.checkpoints import TINY, write_checkpoint
from tests.sessions.conftest import read, reading_task

pytestmark = pytest.mark.usefixtures("quick_engines")

TEXT = "This is a sentence of middling length that says nothing much at all. " * 3
SETTINGS = SpeechSettings(lead_ms=None, sampling=SamplingParams(seed=3, min_new_tokens=20))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), TINY)


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[SpeechEngine]:
    engine = create_engine(folder, device="cpu", process=False, lazy_graph_capture=True)
    await engine.start()
    yield engine
    await engine.aclose()


def assert_all_free(engine: SpeechEngine) -> None:
    stats = engine.stats()
    assert (stats.slots_free, stats.num_running, stats.num_waiting) == (stats.slots_total, 0, 0)


async def test_it_speaks_in_packets_that_decode(engine: SpeechEngine):
    registry = SessionRegistry(engine)
    response = registry.create(settings=SETTINGS).create_response(text=TEXT, text_closed=True)
    reading = await read(response)
    assert reading.done.error is None
    decoder = OpusDecoder(24_000, response.pre_skip_samples)
    num_decoded = sum(decoder.decode(packet).size for message in reading.audio for packet in message.packets)
    assert reading.done.audio_samples <= num_decoded < reading.done.audio_samples + 480
    await response.released()
    assert_all_free(engine)
    await registry.aclose()


async def test_streamed_and_cancelled_responses_leave_all_free(engine: SpeechEngine):
    registry = SessionRegistry(engine)
    sessions = [registry.create(settings=replace(SETTINGS, max_frames=30)) for _ in range(4)]
    responses = [session.create_response() for session in sessions]
    tasks = [reading_task(response)[1] for response in responses]
    for word in TEXT.split(" ")[:20]:
        for response in responses:
            if not response.is_done:
                response.push_text(word + " ")
        await asyncio.sleep(0.005)
    responses[0].cancel()
    sessions[1].detach()
    for response in responses[2:]:
        response.end_input()
    statuses = [(await task).done.status for task in tasks]
    assert statuses == [ResponseStatus.CANCELLED] * 2 + [ResponseStatus.COMPLETED] * 2
    await registry.aclose()
    assert_all_free(engine)


@pytest.mark.parametrize("duration_ms", [300, 700])
async def test_break_of_the_embedded_voice_is_as_long_as_asked(duration_ms: int):
    engine = create_engine(None, device="cpu", process=False, lazy_graph_capture=True)
    await engine.start()
    registry = SessionRegistry(engine)
    audio = AudioFormat(encoding=Encoding.PCM_S16LE)
    settings = replace(SETTINGS, format=audio, markup=Markup.SSML, sampling=SamplingParams(seed=3))
    text = f'That is all for today.<break time="{duration_ms}ms"/>Now the next thing.'
    reading = await read(registry.create(settings=settings).create_response(text=text, text_closed=True))
    await registry.aclose()
    await engine.aclose()
    samples = np.frombuffer(reading.data, np.int16)
    # Windows of 5 ms, below -50 dBFS on average.
    powers = ((samples[: samples.size // 120 * 120].reshape(-1, 120) / 32_768) ** 2).mean(1)
    quiet = "".join("q" if power < 10 ** (-50 / 10) else " " for power in powers)
    pause_ms = 5 * max(map(len, quiet.strip("q").split()))
    assert pause_ms == pytest.approx(duration_ms, abs=20)
