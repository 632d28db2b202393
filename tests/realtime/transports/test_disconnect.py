"""A disconnect cancels the client's work and logs no error."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.types import Message

from engine.api import ClonedVoice, ReferenceAudio
from realtime.transports.transport import ClientLeft, cancel_on_disconnect
from sessions.audio.wav import wav_file
from tests.realtime.live_server import LiveServer, cloning_engine, live_server, until
from tests.sessions.audio.signals import tone

WAV = wav_file(tone(1.5, 16_000), 16_000)
DATA_URI = f"data:audio/wav;base64,{base64.b64encode(WAV).decode()}"
# No test waits for it.
LONG_S = 500.0


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[LiveServer]:
    flags = {
        "voices__folder": str(tmp_path),
        "voices__allow_plain_http_fetch": True,
        "voices__allowed_private_networks": "127.0.0.1/32",
        "voices__fetch_timeout_s": 300,
        "voices__decode_timeout_s": 300,
    }
    async with live_server(cloning_engine(), **flags) as server:
        yield server


class Silent:
    """A web server that takes requests and answers none."""

    def __init__(self) -> None:
        self.num_asking = 0
        self.num_asked = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_asking += 1
        self.num_asked += 1
        await reader.read()
        self.num_asking -= 1
        writer.transport.abort()


async def leave(live: LiveServer, path: str, when: asyncio.Event, **request: object) -> None:
    """Ask, and hang up as soon as ``when`` says so."""
    async with live.http() as http:
        asking = asyncio.create_task(http.post(path, **request))  # type: ignore[arg-type]
        await when.wait()
        assert live.speech.cloning.gate.num_inside == 1
        asking.cancel()
        await asyncio.wait([asking])


SPEECH, BATCH, VOICES = "/v1/audio/speech", "/v1/audio/speech/batch", "/v1/audio/voices"


def asking(path: str, reference: str) -> dict[str, object]:
    if path == VOICES:
        parts = [("name", (None, "ann")), ("consent", (None, "yes")), ("audio_sample", ("a.wav", WAV, "audio/wav"))]
        return {"files": parts}
    body = {"ref_audio": reference}
    return {"json": body | ({"input": "Hello."} if path == SPEECH else {"items": [{"input": "One."}] * 4})}


@pytest.mark.parametrize("path", [SPEECH, BATCH])
async def test_while_a_recording_is_fetched(live: LiveServer, path: str) -> None:
    silent, asked = Silent(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await silent.serve(reader, writer)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        await leave(live, path, asked, **asking(path, f"http://127.0.0.1:{port}/a.wav"))
        await until(lambda: live.speech.cloning.gate.num_inside == 0)
        await until(lambda: silent.num_asking == 0)
        assert silent.num_asked == 1, "the other items went on asking"
    assert live.engine.samples == []


@pytest.mark.parametrize("path", [SPEECH, BATCH, VOICES])
async def test_while_it_is_decoded(live: LiveServer, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sessions.audio.recordings import sandbox

    decoding = asyncio.Event()
    start = asyncio.create_subprocess_exec

    async def start_child(*arguments: object, **options: object) -> asyncio.subprocess.Process:
        child = await start(*arguments, **options)  # type: ignore[arg-type]
        decoding.set()
        children.append(child)
        return child

    children: list[asyncio.subprocess.Process] = []
    monkeypatch.setattr(sandbox, "MODULE", "tests.sessions.audio.hanging_decoder")
    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_child)
    await leave(live, path, decoding, **asking(path, DATA_URI))
    await until(lambda: live.speech.cloning.gate.num_inside == 0)
    (child,) = children
    assert await child.wait() != 0
    assert live.engine.samples == []


@pytest.mark.parametrize("path", [SPEECH, BATCH, VOICES])
async def test_while_it_is_encoded(live: LiveServer, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding, cancelled = asyncio.Event(), asyncio.Event()

    async def encode_voice(sample: ReferenceAudio) -> ClonedVoice:
        encoding.set()
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError

    monkeypatch.setattr(live.engine, "encode_voice", encode_voice)
    await leave(live, path, encoding, **asking(path, DATA_URI))
    await cancelled.wait()
    await until(lambda: live.speech.cloning.gate.num_inside == 0)
    await until(lambda: live.speech.cloning.uploads.num_inside == 0)
    async with live.http() as http:
        assert (await http.get(VOICES)).json()["uploaded_voices"] == []


ADDRESSES = ("/v1/tokens", "/v1/calls/call-1", SPEECH, BATCH, VOICES, "/v1/text-to-speech/zoe")


@pytest.mark.parametrize("path", ADDRESSES)
async def test_a_client_that_leaves_in_mid_request_is_no_error(
    live: LiveServer, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[str] = []
    live.speech.metrics.refused = refused.append  # type: ignore[method-assign]
    content_type = "multipart/form-data; boundary=x" if path == VOICES else "application/json"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\nContent-Length: 500\r\n\r\n"
    _, writer = await asyncio.open_connection("127.0.0.1", live.port)
    writer.write(head.encode() + b"--x")
    await writer.drain()
    writer.close()
    await until(lambda: bool(refused))
    assert refused == ["unknown_call" if "calls" in path else "session_closed"]
    await until(lambda: not live.uvicorn.config.http_connections)  # type: ignore[attr-defined]
    await until(lambda: live.speech.cloning.uploads.num_inside == 0)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_client_that_leaves_is_no_cancel_of_the_task() -> None:
    async def leave() -> Message:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientLeft):
        await cancel_on_disconnect(Request({"type": "http"}, leave), asyncio.sleep(LONG_S))
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_cancel_while_the_client_leaves_remains_one() -> None:
    async def leave() -> Message:
        serving.cancel()
        return {"type": "http.disconnect"}

    work = cancel_on_disconnect(Request({"type": "http"}, leave), asyncio.sleep(LONG_S))
    serving = asyncio.create_task(work)
    with pytest.raises(asyncio.CancelledError):
        await serving


async def test_connection_that_fails_hides_no_error_of_the_work() -> None:
    failed = asyncio.Event()

    async def fail() -> Message:
        failed.set()
        raise RuntimeError("of the connection")

    async def work() -> None:
        await failed.wait()
        raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        await cancel_on_disconnect(Request({"type": "http"}, fail), work())
