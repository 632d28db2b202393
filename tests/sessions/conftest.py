"""A registry over the fake engine, in virtual time, with encoders on the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from engine.api import SpeechRequest
from sessions.alignment.uniform_aligner import UniformAligner
from sessions.config import AudioFormat, Encoding, RegistryLimits, SpeechSettings
from sessions.registry import SessionRegistry
from tests.fakes.engine import FakeSpeechEngine
from tests.fakes.engine_stream import FakeSpeechStream
from tests.sessions.response_reader import CountingMetrics

PCM = AudioFormat(encoding=Encoding.PCM_S16LE)
BURST = SpeechSettings(format=PCM, lead_ms=None)
PACED = SpeechSettings(format=PCM, lead_ms=2_000)
LIMITS = RegistryLimits(encoder_threads=0)


class RecordingEngine(FakeSpeechEngine):
    """Remembers what it was given to say."""

    def __init__(self) -> None:
        super().__init__()
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
