"""Requests that a server serves to itself before others."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from functools import partial
from typing import Any

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from engine.ipc import SubmitRequest
from engine.silent import SilentEngine
from realtime.app import create_app, create_silent_server, serve
from realtime.metrics import ServerMetrics
from realtime.server import SpeechServer
from realtime.transports.listener import UvicornConfig
from realtime.transports.listening_sockets import Ports
from realtime.warm_up import NUM_REQUESTS, warm_up
from tests.fakes.engine import FAKE_INFO, FakeSpeechEngine
from tests.realtime.live_server import LiveServer, live_server, load_test_config


async def warm(live: LiveServer) -> None:
    await warm_up(partial(create_silent_server, live.speech))


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The records of this project: exporters of other tests may still log."""
    return [record for record in caplog.records if record.name.startswith("voicewire")]


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that silent engines were given."""
    texts: list[str] = []
    speak = SilentEngine._answer_request

    def note(engine: SilentEngine, command: SubmitRequest, writer: asyncio.StreamWriter) -> None:
        texts.append(command.request.text)
        speak(engine, command, writer)

    monkeypatch.setattr(SilentEngine, "_answer_request", note)
    return texts


async def test_warm_up_speaks_and_counts_nowhere(
    spoken: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[object] = []
    async with live_server(watermark__enabled=True) as live:
        # The metrics of any server: those of gateways share files.
        for name in ("inc", "observe"):
            monkeypatch.setattr(ServerMetrics, name, lambda *given, **_: counted.append(given))
        await warm(live)
        await live.freed()
    assert not counted
    assert len(spoken) == NUM_REQUESTS
    assert not logged(caplog)


async def test_warm_up_records_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(recorded))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    async with live_server() as live:
        await warm(live)
        assert not recorded.get_finished_spans()
        async with live.http() as http:
            await http.post("/v1/audio/speech", json={"input": "Hello.", "response_format": "pcm"})
    assert "reply" in [span.name for span in recorded.get_finished_spans()]


async def test_server_is_ready_after_its_warm_up(spoken: list[str]) -> None:
    num_spoken: list[int] = []

    def on_ready(_: Ports) -> None:
        num_spoken.append(len(spoken))
        os.kill(os.getpid(), signal.SIGTERM)

    config = load_test_config({"listen.port": 0, "limits.gc_freeze_on_start": False})
    await serve(config, create_app(config, FakeSpeechEngine()), on_ready)
    assert num_spoken == [NUM_REQUESTS]


async def test_warm_up_that_is_refused_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("realtime.warm_up.REQUEST", b"GET /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with live_server() as live:
        await warm(live)
    assert [record.message for record in logged(caplog)] == ["warm-up failed"]


async def test_warm_up_that_takes_too_long_is_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("realtime.warm_up.TIMEOUT_S", 0.05)
    speak = SilentEngine._answer_request

    def speak_late(*given: Any) -> None:
        asyncio.get_running_loop().call_later(0.1, speak, *given)

    monkeypatch.setattr(SilentEngine, "_answer_request", speak_late)
    async with live_server() as live:
        await warm(live)
    assert [(record.levelno, record.exc_info) for record in logged(caplog)] == [(logging.WARNING, None)]


async def test_long_frames_are_read_to_their_end(spoken: list[str], caplog: pytest.LogCaptureFixture) -> None:
    second = msgspec.structs.replace(FAKE_INFO, frame_samples=FAKE_INFO.sample_rate)
    async with live_server(FakeSpeechEngine(info=second)) as live:
        await warm(live)
    assert len(spoken) == NUM_REQUESTS
    assert not logged(caplog)


async def test_connection_of_another_process_is_closed(spoken: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    connect, others = socket.create_connection, []

    def connect_later(*given: Any) -> socket.socket:
        others.append(connect(*given))
        return connect(*given)

    async with live_server() as live:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "create_connection", connect_later)
            await warm(live)
    [other] = others
    with other:
        assert other.recv(1) == b""
    assert len(spoken) == NUM_REQUESTS


async def test_server_of_a_warm_up_that_fails_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[SpeechServer] = []
    close = SpeechServer.aclose

    async def note(server: SpeechServer) -> None:
        closed.append(server)
        await close(server)

    async with live_server() as live:
        silent = create_silent_server(live.speech)
        with monkeypatch.context() as patch:
            patch.setattr(SpeechServer, "aclose", note)
            patch.setattr(UvicornConfig, "load", None)
            await warm_up(lambda: silent)
    assert closed == [silent]
