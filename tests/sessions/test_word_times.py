"""Words are told with their times, each once and in order, and no audio ever waits for them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sessions.config import SpeechSettings
from sessions.events import FlushCompleted, ResponseAudio, ResponseStatus, ResponseWordTimes
from sessions.registry import SessionRegistry
from sessions.response import Response
from tests.sessions.conftest import BURST, LIMITS, PACED, RecordingEngine
from tests.sessions.response_reader import ResponseRecord, read, reading_task

pytestmark = pytest.mark.virtual_time

TEXT = "On May 3rd I paid $1,250, and it was worth it. " * 5
JUST_ENOUGH_MS = 1000


def words_in(reading: ResponseRecord) -> list:
    return [word for event in reading.events if isinstance(event, ResponseWordTimes) for word in event.words]


def speak(registry: SessionRegistry, settings: SpeechSettings, text: str = TEXT) -> Response:
    settings = replace(settings, word_times=True, normalize_text=True)
    return registry.create(settings=settings).create_response(text=text, text_closed=True)


@pytest.fixture(params=["even", "letters"])
async def any_registry(request: pytest.FixtureRequest, registry: SessionRegistry, engine: RecordingEngine):
    if request.param == "even":
        yield registry
        return
    own = SessionRegistry(engine, LIMITS)
    yield own
    await own.aclose()


@pytest.mark.parametrize("settings", [BURST, PACED], ids=["burst", "paced"])
async def test_every_word_is_told_once_in_order_with_rising_times(
    any_registry: SessionRegistry, settings: SpeechSettings
):
    reading = await read(speak(any_registry, settings))
    words = words_in(reading)
    assert " ".join(word.text for word in words).split() == TEXT.split()
    times = [time for word in words for time in (word.start_ms, word.end_ms)]
    assert times == sorted(times)
    assert times[-1] <= reading.done.audio_ms + 1
    assert all(TEXT[word.raw_start : word.raw_end] == word.text for word in words)
    assert len({word.segment for word in words}) == 3
    assert all(word.segment_start_ms <= word.start_ms for word in words)


async def test_words_are_told_with_their_audio_not_at_the_end(any_registry: SessionRegistry):
    reading = await read(speak(any_registry, PACED))
    handed_over_ms = 0.0
    for event in reading.events:
        if isinstance(event, ResponseAudio):
            handed_over_ms = 1000 * (event.start_sample + event.num_samples) / 24_000
        if isinstance(event, ResponseWordTimes):
            assert event.words[-1].end_ms <= handed_over_ms + JUST_ENOUGH_MS
    first = next(number for number, event in enumerate(reading.events) if isinstance(event, ResponseWordTimes))
    assert first < len(reading.events) * 0.9


async def test_audio_is_handed_over_when_it_would_be_without_words(registry: SessionRegistry):
    with_words = await read(speak(registry, PACED))
    start_s = asyncio.get_running_loop().time()
    plain = registry.create(settings=replace(PACED, normalize_text=True)).create_response(text=TEXT, text_closed=True)
    without = await read(plain)
    moments = [
        time
        for event, time in zip(with_words.events, with_words.times_s, strict=True)
        if isinstance(event, ResponseAudio)
    ]
    assert [time - moments[0] for time in moments] == pytest.approx(
        [time - without.times_s[0] for time in without.times_s[: len(moments)]], abs=0.011
    )
    assert with_words.data == without.data
    assert start_s > 0
    assert not words_in(without)


async def test_words_before_a_flush_are_told_before_its_end(any_registry: SessionRegistry):
    settings = replace(BURST, word_times=True)
    response = any_registry.create(settings=settings).create_response(text="one two three ")
    response.flush()
    reading, task = reading_task(response)
    response.push_text("four")
    response.end_input()
    await task
    at = next(number for number, event in enumerate(reading.events) if isinstance(event, FlushCompleted))
    before = ResponseRecord(events=reading.events[:at])
    assert [word.text for word in words_in(before)] == ["one", "two", "three"]
    assert [word.text for word in words_in(reading)] == ["one", "two", "three", "four"]


async def test_no_word_follows_a_cancel(any_registry: SessionRegistry):
    response = speak(any_registry, PACED)
    reading, task = reading_task(response)
    await asyncio.sleep(1.5)
    response.cancel(500)
    num_events = len(reading.events)
    await task
    assert reading.done.status is ResponseStatus.CANCELLED
    assert len(reading.events) == num_events + 1


async def test_a_word_that_is_still_written_is_told_when_it_is_whole(any_registry: SessionRegistry):
    response = any_registry.create(settings=replace(BURST, word_times=True)).create_response()
    reading, task = reading_task(response)
    for delta in ("Hel", "lo, ", "wor", "ld"):
        response.push_text(delta)
        await asyncio.sleep(0.3)
    response.end_input()
    await task
    assert [(word.text, word.raw_start) for word in words_in(reading)] == [("Hello,", 0), ("world", 7)]


@pytest.mark.parametrize("speed", [0.5, 2.0])
async def test_times_are_those_of_the_audio_that_is_handed_over(registry: SessionRegistry, speed: float):
    as_it_is, changed = [await read(speak(registry, replace(BURST, speed=one))) for one in (1.0, speed)]
    for word, other in zip(words_in(as_it_is), words_in(changed), strict=True):
        assert other.start_ms == pytest.approx(word.start_ms / speed, abs=30)
        assert other.end_ms == pytest.approx(word.end_ms / speed, abs=30)
    assert words_in(changed)[-1].end_ms <= changed.done.audio_ms + 30
