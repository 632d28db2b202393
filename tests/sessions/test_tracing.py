"""What a response reports at its end: its moments, and its use by key."""

from __future__ import annotations

import asyncio

import pytest

from sessions.registry import SessionRegistry
from sessions.tracing import ResponseTimes
from sessions.usage import UsageRecord
from tests.sessions.conftest import BURST, LIMITS, CountingMetrics, RecordingEngine, read, reading_task

pytestmark = pytest.mark.virtual_time


class RecordingTracer:
    def __init__(self) -> None:
        self.records: list[tuple[object, UsageRecord, ResponseTimes]] = []

    def find_parent(self) -> object:
        return "parent"

    def record(self, parent: object, usage: UsageRecord, times: ResponseTimes) -> None:
        self.records.append((parent, usage, times))


@pytest.fixture
def tracer() -> RecordingTracer:
    return RecordingTracer()


@pytest.fixture
async def registry(engine: RecordingEngine, metrics: CountingMetrics, tracer: RecordingTracer):
    registry = SessionRegistry(engine, LIMITS, metrics, tracer=tracer)
    yield registry
    await registry.aclose()


async def test_moments_of_a_reply_are_in_order(registry: SessionRegistry, tracer: RecordingTracer) -> None:
    response = registry.create("ann", BURST).create_response()
    _, task = reading_task(response)
    await asyncio.sleep(1)
    response.push_text("One two three.")
    response.end_input()
    await task
    ((parent, usage, times),) = tracer.records
    assert (parent, usage.key, usage.status) == ("parent", "ann", "completed")
    assert times.submitted_s == pytest.approx(times.created_s + 1, abs=0.01)
    assert times.engine is not None
    assert times.first_chunk_s == pytest.approx(times.submitted_s + 0.1, abs=0.01)
    moments = [times.created_s, times.submitted_s, times.first_chunk_s, times.first_packet_s, times.first_sent_s]
    assert [*moments, times.ended_s] == sorted([*moments, times.ended_s])


async def test_reply_without_speech_has_no_later_moments(registry: SessionRegistry, tracer: RecordingTracer) -> None:
    session = registry.create("ann", BURST)
    session.create_response()
    await session.aclose()
    ((_, usage, times),) = tracer.records
    assert usage.status == "cancelled"
    assert (times.submitted_s, times.first_sent_s) == (None, None)
    assert times.ended_s is not None


async def test_use_is_counted_by_key(registry: SessionRegistry, metrics: CountingMetrics) -> None:
    for key, text in (("ann", "One two."), ("ann", "Three."), ("bob", "Four.")):
        await read(registry.create(key, BURST).create_response(text=text, text_closed=True))
    assert metrics.counts["key_responses_total", "ann", "completed"] == 2
    assert metrics.counts["key_characters_total", "ann"] == len("One two.Three.")
    assert metrics.counts["key_characters_total", "bob"] == len("Four.")
    assert 0 < metrics.counts["key_audio_seconds_total", "bob"] < metrics.counts["key_audio_seconds_total", "ann"]
