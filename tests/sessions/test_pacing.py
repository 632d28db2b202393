"""Audio is handed over at the listener's pace: never further ahead than the lead, whoever stalls."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sessions.alignment.uniform_aligner import UniformAligner
from sessions.clock import now_s
from sessions.config import SessionLimits, SpeechSettings
from sessions.events import ResponseStatus
from sessions.registry import SessionRegistry
from tests.fakes.engine_script import FRAME_S, SAMPLE_RATE, FakeScript
from tests.fakes.engine_stream import FakeSpeechStream
from tests.sessions.conftest import (
    BURST,
    LIMITS,
    PACED,
    PCM,
    CountingMetrics,
    RecordingEngine,
    ResponseRecord,
    read,
    reading_task,
)

pytestmark = pytest.mark.virtual_time

LONG = "This is a sentence of middling length that says nothing much at all. " * 8
# The pacer takes a listener to begin so long after the first audio.
START_S = 0.06


def most_ahead_s(reading: ResponseRecord) -> float:
    """The largest lead of a listener who began to play ``START_S`` after the first audio."""
    start_s = reading.times_s[0] + START_S
    handed_over_s, worst_s = 0.0, 0.0
    for message, moment_s in zip(reading.audio, reading.times_s, strict=False):
        handed_over_s += message.num_samples / SAMPLE_RATE
        worst_s = max(worst_s, handed_over_s - max(moment_s - start_s, 0))
    return worst_s


@pytest.mark.parametrize("lead_ms", [0, 20, 40, 200, 2_000, 10_000])
async def test_the_lead_is_kept(registry: SessionRegistry, lead_ms: int):
    settings = SpeechSettings(format=PCM, lead_ms=lead_ms)
    reading = await read(registry.create(settings=settings).create_response(text=LONG, text_closed=True))
    assert reading.done.status is ResponseStatus.COMPLETED
    assert most_ahead_s(reading) <= max(lead_ms / 1000, 0.02) + 1e-3
    assert most_ahead_s(reading) >= lead_ms / 1000 - FRAME_S - 0.02


async def test_a_lead_of_forty_ms_never_lets_the_listener_run_dry(registry: SessionRegistry, metrics: CountingMetrics):
    settings = SpeechSettings(format=PCM, lead_ms=40)
    await read(registry.create(settings=settings).create_response(text=LONG, text_closed=True))
    assert not metrics.counts["audio_underruns_total", "engine"]


async def test_burst_is_as_fast_as_the_engine(registry: SessionRegistry):
    reading = await read(registry.create(settings=BURST).create_response(text=LONG, text_closed=True))
    assert reading.times_s[-1] < reading.num_samples / SAMPLE_RATE / 5


@pytest.mark.parametrize("settings", [PACED, BURST], ids=["paced", "burst"])
async def test_audio_of_a_stopped_reader_is_bounded(
    registry: SessionRegistry, engine: RecordingEngine, settings: SpeechSettings
):
    response = registry.create(settings=settings).create_response(text=LONG * 30, text_closed=True)
    await anext(response)
    looking_after = asyncio.create_task(registry.run())
    most_ms = 0.0
    while not response.is_done:
        await asyncio.sleep(0.1)
        most_ms = max(most_ms, response._ring.left_ms(now_s()))
    looking_after.cancel()
    assert now_s() < 13
    assert most_ms < (3_500 if settings is PACED else 90_000)


async def test_a_slow_reader_of_a_burst_gets_it_all(registry: SessionRegistry, engine: RecordingEngine):
    response = registry.create(settings=BURST).create_response(text=LONG * 5, text_closed=True)
    await anext(response)
    await asyncio.sleep(60)
    num_begun = len(engine.requests)
    assert num_begun < 10
    await read_rest(response)
    assert len(engine.requests) == 20
    assert now_s() < 85, "made as it is read, for nothing was made ahead while it was not"


async def test_engine_gets_playback_reports(
    registry: SessionRegistry, engine: RecordingEngine, reports: dict[str, list[int]]
):
    """Between two segments too: it never has more ready than the lead and a chunk, and what is left to play."""
    response = registry.create(settings=PACED).create_response(text=LONG, text_closed=True)
    _, task = reading_task(response)
    before_ms = 0.0
    while not task.done():
        await asyncio.sleep(0.01)
        left_ms = response._ring.left_ms(now_s())
        assert left_ms <= 2_000 + 2 * 80 + START_S * 1000
        if len(engine.ever) == 1:
            before_ms = left_ms
    assert len(engine.requests) == len(reports) == 4
    second = list(reports.values())[1]
    assert second[0] * 1000 / SAMPLE_RATE == pytest.approx(-before_ms, abs=100)
    assert all(told == sorted(told) for told in reports.values())


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """What the engine was told of each request."""
    told: dict[str, list[int]] = {}
    report_playback = FakeSpeechStream.report_playback

    def note(stream: FakeSpeechStream, played_samples: int) -> None:
        told.setdefault(stream.request_id, []).append(played_samples)
        report_playback(stream, played_samples)

    monkeypatch.setattr(FakeSpeechStream, "report_playback", note)
    return told


async def test_engine_gets_no_report_it_can_compute(engine: RecordingEngine, reports: dict[str, list[int]]):
    """Its own idea of the listener is no further off than it is when it is told with every chunk."""
    off_ms: dict[int, float] = {}
    for tolerance_ms in (0, 10):
        reports.clear()
        limits = replace(LIMITS, session=SessionLimits(playback_tolerance_ms=tolerance_ms))
        registry = SessionRegistry(engine, limits, make_aligner=UniformAligner)
        response = registry.create(settings=PACED).create_response(text="word " * 20, text_closed=True)
        reading, task = reading_task(response)
        off_ms[tolerance_ms] = 0.0
        while not task.done():
            await asyncio.sleep(0.02)
            if reading.audio and engine.streams and not task.done():
                (stream,) = engine.streams.values()
                off = stream._playback.played_samples() - response._ring.played_samples(now_s())
                off_ms[tolerance_ms] = max(off_ms[tolerance_ms], abs(off) * 1000 / SAMPLE_RATE)
        ((_, told),) = reports.items()
        num_chunks = len(reading.data) // (1_920 * 2)
        assert len(told) > num_chunks if tolerance_ms == 0 else len(told) < num_chunks / 4
        await registry.aclose()
    assert off_ms[10] <= off_ms[0] + 10


async def test_a_client_that_pauses_gets_no_more_than_the_lead(registry: SessionRegistry):
    response = registry.create(settings=PACED).create_response(text=LONG, text_closed=True)
    reading, task = reading_task(response)
    await asyncio.sleep(3)
    num_samples = reading.num_samples
    for _ in range(100):
        response.report_playback(1_000)
        await asyncio.sleep(0.1)
    assert reading.num_samples == num_samples
    await task
    assert reading.done.status is ResponseStatus.COMPLETED


async def test_playback_reports_ahead_are_limited(registry: SessionRegistry):
    response = registry.create(settings=PACED).create_response(text=LONG, text_closed=True)
    reading, task = reading_task(response)
    for _ in range(100):
        await asyncio.sleep(0.1)
        response.report_playback(1e9)
    assert reading.num_samples / SAMPLE_RATE <= 10 + 2 + 1
    response.cancel()
    await task


@pytest.mark.parametrize("lead_ms", [2_000, None])
async def test_messages_hold_a_codec_frame_of_packets(registry: SessionRegistry, lead_ms: int | None):
    settings = replace(PACED, lead_ms=lead_ms)
    reading = await read(registry.create(settings=settings).create_response(text=LONG, text_closed=True))
    assert max(len(message.packets) for message in reading.audio) == 4
    assert sum(len(message.packets) for message in reading.audio) / len(reading.audio) > 3.5


async def test_underruns_are_counted_by_cause(
    registry: SessionRegistry, engine: RecordingEngine, metrics: CountingMetrics
):
    engine.script = FakeScript(stalls_s={20: 5.0})
    await read(registry.create(settings=PACED).create_response(text=LONG[:70], text_closed=True))
    assert (metrics.counts["audio_underruns_total", "engine"], metrics.counts["audio_underruns_total", "text"]) == (
        1,
        0,
    )
    engine.script = FakeScript()
    response = registry.create(settings=PACED).create_response(text=LONG[:70])
    _, task = reading_task(response)
    await asyncio.sleep(20)
    response.push_text("And more.")
    response.end_input()
    await task
    assert (metrics.counts["audio_underruns_total", "engine"], metrics.counts["audio_underruns_total", "text"]) == (
        1,
        1,
    )


async def test_response_with_two_underruns_counts_once(
    registry: SessionRegistry, engine: RecordingEngine, metrics: CountingMetrics
):
    engine.script = FakeScript(stalls_s={20: 5.0, 50: 5.0})
    await read(registry.create(settings=PACED).create_response(text=LONG[:70], text_closed=True))
    assert metrics.counts["audio_underruns_total", "engine"] == 2
    assert metrics.counts["underrun_responses_total", "engine"] == 1


async def test_a_reader_that_takes_late_is_not_called_an_underrun(registry: SessionRegistry, metrics: CountingMetrics):
    response = registry.create(settings=PACED).create_response(text=LONG, text_closed=True)
    await anext(response)
    await asyncio.sleep(9)
    await read_rest(response)
    assert not metrics.counts["audio_underruns_total", "engine"]


async def read_rest(response) -> None:
    async for _ in response:
        pass


async def test_skipped_tokens_are_counted(registry: SessionRegistry, engine: RecordingEngine, metrics: CountingMetrics):
    engine.script = FakeScript(num_skipped_tokens=7)
    await read(registry.create(settings=BURST).create_response(text=LONG, text_closed=True))
    num_segments = metrics.counts["segments_total", "stop"]
    assert num_segments > 1
    assert metrics.counts[("skipped_silence_tokens_total",)] == 7 * num_segments


async def test_unread_burst_reply_holds_nothing_of_the_engine(registry: SessionRegistry, engine: RecordingEngine):
    response = registry.create(settings=BURST).create_response(text=LONG * 5, text_closed=True)
    await asyncio.sleep(5.0)
    num_begun = len(engine.ever)
    assert not engine.streams
    assert num_begun < 5, "no segment begins while its audio is not read for a second"
    reading = await read(response)
    assert reading.done.status is ResponseStatus.COMPLETED
    assert len(engine.ever) > 2 * num_begun, "the reader is back"


async def test_requests_are_grouped_by_session_unless_named(registry: SessionRegistry, engine: RecordingEngine):
    one, other = registry.create(), registry.create()
    named = registry.create("key", group="key")
    for session in (one, other, named):
        await read(session.create_response(text="Some words.", text_closed=True))
    assert [request.group for request in engine.requests] == [one.session_id, other.session_id, "key"]
