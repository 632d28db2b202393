from __future__ import annotations

import threading

import pytest

from sessions import audio_track
from sessions.audio.opus_library import OpusUnavailable
from sessions.config import RegistryLimits
from sessions.registry import SessionRegistry
from tests.fakes.engine import FakeSpeechEngine


async def test_the_first_listener_finds_the_encoders_at_work() -> None:
    registry = SessionRegistry(FakeSpeechEngine(), RegistryLimits(encoder_threads=1))
    before = {thread.name for thread in threading.enumerate()}
    await registry.warm_up()
    made = {thread.name for thread in threading.enumerate()} - before
    assert any(name.startswith("voicewire-encoder") for name in made)
    assert registry.statistics().num_sessions_ever == 0
    await registry.aclose()


async def test_a_machine_without_libopus_still_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def unavailable(audio: object) -> None:
        asked.append(audio)
        raise OpusUnavailable("no libopus")

    monkeypatch.setattr(audio_track, "create_packetizer", unavailable)
    registry = SessionRegistry(FakeSpeechEngine())
    await registry.warm_up()
    assert asked
    await registry.aclose()
