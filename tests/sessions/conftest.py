"""A registry over the fake engine in virtual time, and a reader of responses that checks what holds for each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from engine.api import EngineInfo, SpeechRequest
from sessions.alignment.uniform_aligner import UniformAligner
from sessions.clock import now_s
from sessions.config import AudioFormat, Encoding, RegistryLimits, SpeechSettings
from sessions.events import FlushCompleted, ResponseAudio, ResponseEvent, ResponseFinished
from sessions.registry import SessionRegistry
from sessions.response import Response
from tests.fakes.engine import FAKE_INFO, FakeScript, FakeSpeechEngine
from tests.fakes.engine_stream import FakeSpeechStream

PCM = AudioFormat(encoding=Encoding.PCM_S16LE)
BURST = SpeechSettings(format=PCM, lead_ms=None)
PACED = SpeechSettings(format=PCM, lead_ms=2_000)
LIMITS = RegistryLimits(encoder_threads=0)


class RecordingEngine(FakeSpeechEngine):
    """Remembers what it was given to say."""

    def __init__(self, script: FakeScript | None = None, *, info: EngineInfo = FAKE_INFO) -> None:
        super().__init__(script, info=info)
        self.ever: list[FakeSpeechStream] = []

    def submit(self, request: SpeechRequest, wake: Callable[[], None] | None = None) -> FakeSpeechStream:
        self.ever.append(super().submit(request, wake))
        return self.ever[-1]

    @property
    def texts(self) -> list[str]:
        return [stream._text for stream in self.ever]


@pytest.fixture
async def engine() -> AsyncIterator[RecordingEngine]:
    engine = RecordingEngine()
    await engine.start()
    yield engine
    await engine.aclose()


@pytest.fixture
def metrics() -> CountingMetrics:
    return CountingMetrics()


@pytest.fixture
async def registry(engine: RecordingEngine, metrics: CountingMetrics) -> AsyncIterator[SessionRegistry]:
    registry = SessionRegistry(engine, LIMITS, metrics, make_aligner=UniformAligner)
    yield registry
    await registry.aclose()
    assert_all_free(engine)


def assert_all_free(engine: FakeSpeechEngine) -> None:
    stats = engine.stats()
    assert not engine.streams
    assert stats.slots_free == stats.slots_total
    assert stats.blocks_free == stats.blocks_total


@dataclass
class ResponseRecord:
    events: list[ResponseEvent] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    # Of audio.
    num_messages: int = 0
    num_samples: int = 0

    def note(self, event: ResponseEvent) -> None:
        self.check(event)
        if isinstance(event, ResponseAudio):
            self.num_messages += 1
            self.num_samples += event.num_samples
        self.events.append(event)
        self.times_s.append(now_s())

    def check(self, event: ResponseEvent) -> None:
        assert not self.ended, "an event after the terminal one"
        if isinstance(event, ResponseAudio):
            assert event.sequence == self.num_messages
            assert event.start_sample == self.num_samples
            assert event.num_samples > 0 or any(event.packets), "neither sound nor the end of a stream"
            assert event.packets

    @property
    def ended(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], ResponseFinished)

    @property
    def audio(self) -> list[ResponseAudio]:
        return [event for event in self.events if isinstance(event, ResponseAudio)]

    @property
    def flushes(self) -> list[FlushCompleted]:
        return [event for event in self.events if isinstance(event, FlushCompleted)]

    @property
    def data(self) -> bytes:
        return b"".join(packet for message in self.audio for packet in message.packets)

    @property
    def done(self) -> ResponseFinished:
        end = self.events[-1]
        assert isinstance(end, ResponseFinished)
        return end


async def read(response: Response, into: ResponseRecord | None = None) -> ResponseRecord:
    """To the end."""
    reading = into or ResponseRecord()
    async for event in response:
        reading.note(event)
    assert reading.ended
    return reading


def reading_task(response: Response) -> tuple[ResponseRecord, asyncio.Task[ResponseRecord]]:
    """Beside whatever else the test does."""
    reading = ResponseRecord()
    return reading, asyncio.create_task(read(response, reading))


@asynccontextmanager
async def evenly_aligned_response(speech: SpeechSettings) -> AsyncIterator[tuple[Response, ResponseRecord]]:
    """A response of a registry and an engine of its own; at the end of the context it ends its text and is read."""
    engine = RecordingEngine()
    await engine.start()
    registry = SessionRegistry(engine, LIMITS, make_aligner=UniformAligner)
    try:
        response = registry.create(settings=speech).create_response()
        record, task = reading_task(response)
        yield response, record
        response.end_input()
        await task
    finally:
        await registry.aclose()
        await engine.aclose()


class CountingMetrics:
    def __init__(self) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.values: dict[str, list[float]] = {}

    def inc(self, name: str, count: float = 1, **labels: str) -> None:
        self.counts[(name, *labels.values())] += count

    def observe(self, name: str, value: float, **labels: str) -> None:
        self.values.setdefault(name, []).append(value)
