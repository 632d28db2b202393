"""A registry over the fake engine, in virtual time, with encoders on the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sessions.config import AudioFormat, Encoding, RegistryLimits, SpeechSettings
from sessions.registry import SessionRegistry
from tests.fakes.engine import FakeSpeechEngine

PCM = AudioFormat(encoding=Encoding.PCM_S16LE)
BURST = SpeechSettings(format=PCM, lead_ms=None)
PACED = SpeechSettings(format=PCM, lead_ms=2_000)
LIMITS = RegistryLimits(encoder_threads=0)


@pytest.fixture
async def registry(engine: FakeSpeechEngine) -> AsyncIterator[SessionRegistry]:
    registry = SessionRegistry(engine, LIMITS)
    yield registry
    await registry.aclose()
    assert_all_free(engine)


def assert_all_free(engine: FakeSpeechEngine) -> None:
    stats = engine.stats()
    assert not engine.streams
    assert stats.slots_free == stats.slots_total
    assert stats.blocks_free == stats.blocks_total
