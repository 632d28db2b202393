"""Faster and slower: the audio changes its length, and nothing loses its place in the text."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sessions.config import AudioFormat, Encoding
from sessions.events import ResponseStatus
from sessions.registry import SessionRegistry
from tests.sessions.conftest import BURST, PACED, RecordingEngine
from tests.sessions.response_reader import read, reading_task

pytestmark = pytest.mark.virtual_time

SENTENCE = "This is a sentence of middling length that says nothing much at all. "
LONG = SENTENCE * 8
SPEEDS = [0.25, 0.7, 1.5, 4.0]


@pytest.mark.parametrize(
    ("speed", "encoding"),
    [*((speed, Encoding.PCM_S16LE) for speed in SPEEDS), (0.7, Encoding.MP3), (1.5, Encoding.OPUS)],
)
async def test_the_audio_is_as_long_as_the_speed_asks(registry: SessionRegistry, speed: float, encoding: Encoding):
    settings = replace(BURST, format=AudioFormat(encoding=encoding))
    session = registry.create(settings=settings)
    plain = (await read(session.create_response(text=LONG, text_closed=True))).done
    response = session.create_response(settings=replace(settings, speed=speed), text=LONG, text_closed=True)
    changed = (await read(response)).done
    assert changed.audio_ms == pytest.approx(plain.audio_ms / speed, abs=1)
    assert changed.heard.text == LONG
    assert (changed.num_frames, changed.num_text_tokens) == (plain.num_frames, plain.num_text_tokens)
    assert changed.num_frames == pytest.approx(plain.audio_ms / 80, abs=5)


@pytest.mark.parametrize("speed", SPEEDS)
async def test_what_was_heard_is_told_in_the_listener_s_time(registry: SessionRegistry, speed: float):
    """60 ms a character by the engine's clock; the aligner spreads the text evenly."""
    session = registry.create(settings=replace(BURST, speed=speed))
    response = session.create_response(text=SENTENCE, text_closed=True)
    await read(response)
    await asyncio.sleep(60)
    for num_chars in (20, 40, 60):
        heard = response.heard(60 * num_chars / speed)
        assert len(heard.text) == pytest.approx(num_chars, abs=12)


@pytest.mark.parametrize("speed", SPEEDS)
async def test_a_listener_in_real_time_has_no_gap(registry: SessionRegistry, engine: RecordingEngine, speed: float):
    """The fake engine is four times faster than speech, so fourfold speed leaves it no time to spare."""
    engine.script = replace(engine.script, real_time_factor=0.1)
    response = registry.create(settings=replace(PACED, speed=speed)).create_response(text=LONG, text_closed=True)
    reading = await read(response)
    assert reading.done.status is ResponseStatus.COMPLETED
    played_s = reading.times_s[0]
    for event, time_s in zip(reading.audio, reading.times_s, strict=False):
        assert time_s <= played_s + 1e-6, "audio came after the listener had run dry"
        played_s += event.num_samples / 24_000


async def test_a_flush_brings_all_sound_out(registry: SessionRegistry):
    session = registry.create(settings=replace(BURST, speed=1.5))
    response = session.create_response()
    reading, task = reading_task(response)
    response.push_text(SENTENCE)
    response.flush()
    await asyncio.sleep(60)
    (flush,) = reading.flushes
    assert flush.end_sample == reading.num_samples
    assert reading.num_samples / 24_000 >= len(SENTENCE) * 0.06 / 1.5
    response.end_input()
    await task
