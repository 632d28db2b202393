"""What was heard, and when each word sounds: words of the client's own text, told once and in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.alignment.aligner import ForcedAligner
from sessions.alignment.uniform_aligner import TYPICAL_S_PER_CHAR, UniformAligner
from sessions.config import RegistryLimits, SessionLimits, SpeechSettings
from sessions.events import FlushCompleted, ResponseAudio, ResponseStatus, ResponseWordTimes
from sessions.registry import SessionRegistry
from sessions.response import Response
from sessions.text.spans import SpannedText
from sessions.timeline import ResponseTimeline, SegmentTimeline
from tests.sessions.conftest import BURST, LIMITS, PACED, RecordingEngine, ResponseRecord, read, reading_task

RATE = 24_000


def spoken(*segments: tuple[str, int], complete: bool = True) -> ResponseTimeline:
    """Segments of (text, seconds), each spoken as written and evenly."""
    told, position, start = ResponseTimeline(RATE, UniformAligner), 0, 0
    for text, seconds in segments:
        told.append_text(text)
        segment = told.begin_segment(position)
        segment.add_text(SpannedText.from_raw(text, position))
        position += len(text)
        segment.start_sample = start
        segment.push(np.zeros(seconds * RATE, np.float32))
        start += seconds * RATE
        if complete:
            segment.finish()
    return told


@given(st.lists(st.tuples(st.text(max_size=30), st.integers(0, 5)), max_size=4), st.floats(0, 30), st.booleans())
def test_heard_and_remaining_make_up_the_text(segments, played_s, complete):
    told = spoken(*segments, complete=complete)
    text = "".join(text for text, _ in segments)
    heard = told.heard_text(int(played_s * RATE))
    assert heard.text + heard.remaining == text
    assert heard.text == "" or not heard.text[-1].isspace()


@given(st.lists(st.tuples(st.text("ab c", max_size=30), st.integers(0, 5)), max_size=4), st.lists(st.floats(0, 30)))
def test_more_played_is_never_less_heard(segments, moments):
    told = spoken(*segments)
    lengths = [len(told.heard_text(int(moment * RATE)).text) for moment in sorted(moments)]
    assert lengths == sorted(lengths)


def test_word_is_heard_when_its_last_sound_is_over():
    told = spoken(("one, two... ten", 15))
    assert told.heard_text(3 * RATE - 1).text == ""
    assert told.heard_text(3 * RATE).text == "one,"
    assert told.heard_text(8 * RATE).text == "one, two..."
    assert told.heard_text(15 * RATE).text == "one, two... ten"


def test_each_segment_counts_for_itself():
    told = spoken(("slow one. ", 10), ("quick and long one.", 2))
    assert told.heard_text(8 * RATE).text == "slow one."
    assert told.heard_text(int(10.7 * RATE)).text == "slow one. quick"


def test_chinese_is_heard_by_the_character():
    told = spoken(("你好世界。", 5))
    assert told.heard_text(2 * RATE).text == "你好"


def test_what_is_known_of_a_segment_that_is_stopped_stays_known():
    text = "and here go some more of them"
    told = spoken((text, 1), complete=False)
    played = int(3.5 * TYPICAL_S_PER_CHAR * RATE)
    assert told.heard_text(played).text == "and"
    told.stop()
    told.segments[0].push(np.zeros(20 * RATE, np.float32))
    assert told.heard_text(played).text == "and"


def test_heard_text_of_normalized_words_is_the_clients():
    told = ResponseTimeline(RATE, UniformAligner)
    told.append_text("It cost $1,250 in May.")
    segment = told.begin_segment(0)
    segment.add_text(SpannedText.from_raw("It cost ", 0))
    segment.add_text(SpannedText.from_raw("one thousand two hundred and fifty dollars", 8, 14))
    segment.add_text(SpannedText.from_raw(" in May.", 14))
    segment.start_sample = 0
    segment.push(np.zeros(58 * RATE, np.float32))
    segment.finish()
    assert told.heard_text(45 * RATE).text == "It cost"
    assert told.heard_text(51 * RATE).text == "It cost $1,250"
    assert told.heard_text(54 * RATE).text == "It cost $1,250 in"
    assert [(word.text, word.start_ms, word.end_ms) for word in told.new_words()] == [
        ("It", 0, 2_000),
        ("cost", 3_000, 7_000),
        ("$1,250", 8_000, 50_000),
        ("in", 51_000, 53_000),
        ("May.", 54_000, 57_000),
    ]
    assert told.new_words() == []


def test_words_of_a_segment_follow_the_segment_before():
    told = spoken(("one two ", 1), ("three", 1), complete=False)
    told.segments[1].finish()
    assert told.new_words() == []
    told.segments[0].finish()
    words = told.new_words()
    assert [(word.text, word.segment, word.segment_start_ms) for word in words] == [
        ("one", 0, 0),
        ("two", 0, 0),
        ("three", 1, 1_000),
    ]


def test_only_the_segment_that_is_being_heard_is_looked_into(monkeypatch: pytest.MonkeyPatch):
    told = spoken(*[("one two six ten. ", 4)] * 10)
    asked = []
    raw_position = SegmentTimeline.raw_position
    monkeypatch.setattr(SegmentTimeline, "raw_position", lambda one, *at: asked.append(one) or raw_position(one, *at))
    assert told.heard_text(38 * RATE).text == "one two six ten. " * 9 + "one two"
    assert asked == [told.segments[-1]]


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


@pytest.mark.virtual_time
@pytest.mark.parametrize("settings", [BURST, PACED], ids=["burst", "paced"])
async def test_every_word_comes_once_with_rising_times(any_registry: SessionRegistry, settings: SpeechSettings):
    reading = await read(speak(any_registry, settings))
    words = words_in(reading)
    assert " ".join(word.text for word in words).split() == TEXT.split()
    times = [time for word in words for time in (word.start_ms, word.end_ms)]
    assert times == sorted(times)
    assert times[-1] <= reading.done.audio_ms + 1
    assert all(TEXT[word.raw_start : word.raw_end] == word.text for word in words)
    assert len({word.segment for word in words}) == 3
    assert all(word.segment_start_ms <= word.start_ms for word in words)


@pytest.mark.virtual_time
async def test_word_times_come_with_their_audio(any_registry: SessionRegistry):
    reading = await read(speak(any_registry, PACED))
    handed_over_ms = 0.0
    for event in reading.events:
        if isinstance(event, ResponseAudio):
            handed_over_ms = 1000 * (event.start_sample + event.num_samples) / 24_000
        if isinstance(event, ResponseWordTimes):
            assert event.words[-1].end_ms <= handed_over_ms + JUST_ENOUGH_MS
    first = next(number for number, event in enumerate(reading.events) if isinstance(event, ResponseWordTimes))
    assert first < len(reading.events) * 0.9


@pytest.mark.virtual_time
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


@pytest.mark.virtual_time
async def test_words_before_a_flush_precede_its_end(any_registry: SessionRegistry):
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


@pytest.mark.virtual_time
async def test_no_word_follows_a_cancel(any_registry: SessionRegistry):
    response = speak(any_registry, PACED)
    reading, task = reading_task(response)
    await asyncio.sleep(1.5)
    response.cancel(500)
    num_events = len(reading.events)
    await task
    assert reading.done.status is ResponseStatus.CANCELLED
    assert len(reading.events) == num_events + 1


@pytest.mark.virtual_time
async def test_unfinished_word_is_reported_when_complete(any_registry: SessionRegistry):
    response = any_registry.create(settings=replace(BURST, word_times=True)).create_response()
    reading, task = reading_task(response)
    for delta in ("Hel", "lo, ", "wor", "ld"):
        response.push_text(delta)
        await asyncio.sleep(0.3)
    response.end_input()
    await task
    assert [(word.text, word.raw_start) for word in words_in(reading)] == [("Hello,", 0), ("world", 7)]


@pytest.mark.virtual_time
@pytest.mark.parametrize("speed", [0.5, 2.0])
async def test_times_are_those_of_the_audio_that_is_handed_over(registry: SessionRegistry, speed: float):
    as_it_is, changed = [await read(speak(registry, replace(BURST, speed=one))) for one in (1.0, speed)]
    for word, other in zip(words_in(as_it_is), words_in(changed), strict=True):
        assert other.start_ms == pytest.approx(word.start_ms / speed, abs=30)
        assert other.end_ms == pytest.approx(word.end_ms / speed, abs=30)
    assert words_in(changed)[-1].end_ms <= changed.done.audio_ms + 30


AT_ONCE = replace(LIMITS, max_alignment_backlog_mb=0)


async def cut_after(
    engine: RecordingEngine, limits: RegistryLimits, settings: SpeechSettings, s: float
) -> tuple[str, str]:
    """What was heard by then, and, asked once more, by half of it."""
    registry = SessionRegistry(engine, limits)
    response = registry.create(settings=settings).create_response(text=TEXT, text_closed=True)
    reading, task = reading_task(response)
    await asyncio.sleep(s)
    asked = response.heard()
    response.cancel()
    await task
    told = reading.done
    assert told.status is ResponseStatus.CANCELLED
    assert told.heard == response.heard() == asked
    earlier = await response.query_heard(1_000 * s / 2)
    await registry.aclose()
    return told.heard.text, earlier.text


@pytest.mark.virtual_time
@pytest.mark.parametrize("cut_s", [0.05, 1.0, 3.1, 5.2])
@pytest.mark.parametrize("speed", [1.0, 1.5])
async def test_interruption_reports_as_eager_alignment(engine: RecordingEngine, cut_s: float, speed: float) -> None:
    settings = replace(PACED, speed=speed)
    late = await cut_after(engine, LIMITS, settings, cut_s)
    assert late == await cut_after(engine, AT_ONCE, settings, cut_s)
    assert late == await cut_after(engine, LIMITS, replace(settings, align_eagerly=True), cut_s)
    assert all(late) == (cut_s >= 1)


@pytest.mark.virtual_time
async def test_completed_response_is_never_aligned(engine: RecordingEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(sample_rate: int) -> None:
        raise AssertionError("somebody asked")

    registry = SessionRegistry(engine, LIMITS)
    object.__setattr__(registry._services, "make_aligner", make)
    session = registry.create(settings=PACED)
    response = session.create_response(text=TEXT, text_closed=True)
    done = (await read(response)).done
    assert done.heard.text == TEXT
    kept = registry._services.backlog
    assert kept.num_bytes > 0
    await session.aclose()
    assert kept.num_bytes == 0
    await registry.aclose()


async def test_long_pending_audio_is_aligned_off_loop(engine: RecordingEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    catch_up = ResponseTimeline.align_until
    monkeypatch.setattr(
        ResponseTimeline,
        "align_until",
        lambda told, at: threads.append(threading.current_thread()) or catch_up(told, at),
    )
    registry = SessionRegistry(engine, RegistryLimits())
    response = registry.create(settings=replace(PACED, lead_ms=10_000)).create_response(text=TEXT, text_closed=True)
    reading, task = reading_task(response)
    await asyncio.sleep(0.8)
    response.cancel()
    await task
    assert reading.done.heard.remaining
    assert [thread is threading.main_thread() for thread in threads] == [False]
    await registry.aclose()


class BusyAligner(ForcedAligner):
    """As if others were before it in the line for the words."""

    go_on = threading.Event()

    def push(self, pcm: np.ndarray) -> None:
        self.go_on.wait(10)
        super().push(pcm)


@pytest.fixture
async def busy(engine: RecordingEngine, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SessionRegistry]:
    monkeypatch.setattr(BusyAligner, "go_on", threading.Event())
    limits = RegistryLimits(session=SessionLimits(heard_text_timeout_ms=50))
    registry = SessionRegistry(engine, limits, make_aligner=BusyAligner)
    yield registry
    BusyAligner.go_on.set()
    await registry.aclose()


async def test_end_is_reported_beside_a_long_word_queue(busy: SessionRegistry) -> None:
    """As when an engine with hundreds of responses dies: where the listener was is then told roughly."""
    session = busy.create(settings=replace(PACED, lead_ms=10_000))
    responses = [session.create_response(text=TEXT, text_closed=True) for _ in range(3)]
    readings = [reading_task(response) for response in responses]
    await asyncio.sleep(0.8)
    for response in responses:
        response.cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(*(task for _, task in readings))
    assert all(reading.done.heard.text and reading.done.heard.remaining for reading, _ in readings)
    assert [reading.done.heard.text + reading.done.heard.remaining for reading, _ in readings] == [TEXT] * 3


async def test_wait_after_the_end_returns_at_once(busy: SessionRegistry) -> None:
    response = busy.create(settings=replace(PACED, lead_ms=None)).create_response(text=TEXT, text_closed=True)
    played_ms = (await read(response)).done.audio_ms / 2
    async with asyncio.timeout(5):
        roughly = await response.query_heard(played_ms)
    assert roughly.text
    assert roughly.remaining
    assert roughly.text + roughly.remaining == TEXT
