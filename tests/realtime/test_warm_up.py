"""Requests that a server serves to itself before others."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from engine.ipc import SubmitRequest
from engine.silent import SilentEngine
from realtime.app import create_silent_server
from realtime.warm_up import NUM_REQUESTS, warm_up
from tests.realtime.live_server import live_server


def counted(metrics: bytes) -> list[bytes]:
    names = (b"voicewire_responses_total", b"voicewire_time_to_first_audio_seconds_count", b"voicewire_refusals_total")
    return [line for line in metrics.splitlines() if line.startswith(names)]


async def test_warm_up_speaks_and_counts_nowhere(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken: list[str] = []
    speak = SilentEngine._speak

    def note(engine: SilentEngine, command: SubmitRequest, writer: asyncio.StreamWriter) -> None:
        spoken.append(command.request.text)
        speak(engine, command, writer)

    monkeypatch.setattr(SilentEngine, "_speak", note)
    async with live_server(watermark__enabled=True) as live:
        before = counted(live.speech.metrics.exposition())
        await warm_up(partial(create_silent_server, live.speech))
        assert counted(live.speech.metrics.exposition()) == before
        await live.freed()
    assert before == [b"voicewire_time_to_first_audio_seconds_count 0.0"]
    assert len(spoken) == NUM_REQUESTS
    assert not caplog.records


async def test_warm_up_that_is_refused_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("realtime.warm_up.REQUEST", b"GET /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with live_server() as live:
        await warm_up(partial(create_silent_server, live.speech))
    assert [record.message for record in caplog.records] == ["warm-up failed"]
