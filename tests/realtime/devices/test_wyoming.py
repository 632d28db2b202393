"""Wyoming peers over TCP, and the examples for devices."""

from __future__ import annotations

import asyncio
import re
import sys
import wave
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import Describe, Info
from wyoming.ping import Ping, Pong
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeVoice,
)

from realtime.app import create_app
from realtime.config import ConfigError, load_config
from realtime.protocol.mqtt import messages
from realtime.transports import transport
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.live_server import WAIT_S, LiveServer, live_server, until
from tests.realtime.mqtt.mqtt_client import bridged, running

TEXT = "Hello there, how are you today?"
PORT = {"wyoming__address": "127.0.0.1:0"}


@pytest.fixture
async def live() -> AsyncIterator[LiveServer]:
    async with live_server(**PORT) as server:
        yield server


def dial(live: LiveServer) -> AsyncTcpClient:
    return AsyncTcpClient("127.0.0.1", live.uvicorn.config.app.state.wyoming.port)


async def heard(client: AsyncTcpClient, last: str) -> list[Event]:
    events: list[Event] = []
    async with asyncio.timeout(WAIT_S):
        while not events or events[-1].type != last:
            event = await client.read_event()
            assert event is not None, f"left after {events}"
            events.append(event)
    return events


def seconds_of(events: list[Event]) -> float:
    start = AudioStart.from_event(next(event for event in events if AudioStart.is_type(event.type)))
    assert (start.rate, start.width, start.channels) == (24_000, 2, 1)
    chunks = [AudioChunk.from_event(event) for event in events if AudioChunk.is_type(event.type)]
    assert {(chunk.rate, chunk.width, chunk.channels) for chunk in chunks} <= {(24_000, 2, 1)}
    return sum(len(chunk.audio) for chunk in chunks) / 48_000


async def test_what_there_is(live: LiveServer) -> None:
    async with dial(live) as client:
        await client.write_event(Describe().event())
        info = Info.from_event((await heard(client, "info"))[0])
        (program,) = info.tts
        assert program.supports_synthesize_streaming
        assert [voice.name for voice in program.voices] == [voice.name for voice in live.engine.info.voices]
        assert program.voices[0].languages
        await client.write_event(Ping("x").event())
        assert Pong.from_event((await heard(client, "pong"))[0]).text == "x"


async def test_a_text_at_once_and_another_on_the_same_connection(live: LiveServer) -> None:
    async with dial(live) as client:
        for voice in (None, SynthesizeVoice(name="ben"), SynthesizeVoice(language="de"), SynthesizeVoice(name="who")):
            await client.write_event(Synthesize(TEXT, voice).event())
            events = await heard(client, "audio-stop")
            assert AudioStop.is_type(events[-1].type)
            assert seconds_of(events) > 1
    assert [request.voice for request in live.engine.requests][1] == "ben"


async def test_a_text_in_chunks_is_spoken_while_it_arrives(live: LiveServer) -> None:
    async with dial(live) as client:
        await client.write_event(SynthesizeStart().event())
        for word in TEXT.split():
            await client.write_event(SynthesizeChunk(f"{word} ").event())
        early = await heard(client, "audio-chunk")
        await client.write_event(Synthesize(TEXT).event())  # for servers of yesterday
        await client.write_event(SynthesizeChunk("And one more.").event())
        await client.write_event(SynthesizeStop().event())
        events = early + await heard(client, "synthesize-stopped")
        assert SynthesizeStopped.is_type(events[-1].type)
        assert [event.type for event in events].count("audio-start") == 1
        assert [event.type for event in events].count("audio-stop") == 1
        assert seconds_of(events) > 1.5


async def test_empty_and_wrong_texts_end_too(live: LiveServer) -> None:
    async with dial(live) as client:
        await client.write_event(Synthesize(" ").event())
        assert [event.type for event in await heard(client, "audio-stop")] == ["audio-start", "audio-stop"]
        await client.write_event(Event("synthesize", {"text": 5}))
        assert Error.from_event((await heard(client, "error"))[0]).code == "invalid_event"
        await client.write_event(Synthesize("x" * 60_000).event())
        events = await heard(client, "audio-stop")
        assert Error.from_event(events[0]).code == "request_too_long"
        await client.write_event(Synthesize(TEXT).event())
        assert seconds_of(await heard(client, "audio-stop")) > 1


async def test_limits_and_silence() -> None:
    limits = {"wyoming__max_connections": 1, "limits__idle_timeout_s": 0.4}
    async with live_server(**PORT, **limits) as live, dial(live) as client:
        await client.write_event(Ping().event())
        await heard(client, "pong")
        async with dial(live) as another:
            assert Error.from_event((await heard(another, "error"))[0]).code == "too_many_connections"
            assert await another.read_event() is None
        assert Error.from_event((await heard(client, "error"))[0]).code == "idle_timeout"
        assert await client.read_event() is None


async def test_a_client_that_reads_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "WRITE_GRACE_S", 0.1)
    fast = FakeSpeechEngine(FakeScript(ms_per_char=200.0, first_chunk_s=0.001, real_time_factor=0.0005))
    limits = {"limits__reader_timeout_s": 0.2, "limits__max_response_chars": 100_000}
    async with live_server(fast, **PORT, **limits) as live:
        port = live.uvicorn.config.app.state.wyoming.port
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_000)
        text = "This goes on and on without an end. " * 300
        writer.write(b'{"type": "synthesize", "data": {"text": "%s"}}\n' % text.encode())
        await until(lambda: live.speech.num_active_responses == 1)
        await live.freed()
        writer.close()


async def test_without_the_setting_there_is_no_port() -> None:
    async with live_server() as live:
        assert live.uvicorn.config.app.state.wyoming.port is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"wyoming.default_key_name": "nobody"}, "wyoming.default_key_name = 'nobody'"),
        ({"wyoming.address": "127.0.0.1:0", "listen.gateways": 2}, "wyoming.address = 127.0.0.1:0"),
    ],
)
def test_settings_that_cannot_be_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create_app(load_config(flags={"wyoming.address": "127.0.0.1:10200", **settings}), FakeSpeechEngine())


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("0.0.0.0", True)])
async def test_public_port_without_keys_logs_warning(host: str, warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    addresses = {"wyoming__address": f"{host}:0", "calls__audiosocket": f"{host}:0"}
    with caplog.at_level("WARNING"):
        async with live_server(**addresses):
            pass
    told = {record.getMessage() for record in caplog.records if "without authentication" in record.getMessage()}
    assert {message.split()[0] for message in told} == ({"Wyoming", "AudioSocket"} if warns else set())


ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "mqtt-topics.md").read_text()


async def run(name: str, *arguments: str) -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "ignore", str(ROOT / "examples" / name), *arguments, stderr=PIPE, stdout=PIPE
    )
    _, told = await program.communicate()
    assert program.returncode == 0, told.decode()


def seconds_in(path: Path) -> float:
    with wave.open(str(path)) as file:
        return file.getnframes() / file.getframerate()


async def test_an_agent_at_a_broker(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        async with bridged(broker):
            await run("mqtt_agent.py", f"127.0.0.1:{broker.port}", str(tmp_path / "x.wav"))
    assert 1 < seconds_in(tmp_path / "x.wav") < 6


async def test_a_text_by_wyoming(tmp_path: Path) -> None:
    async with live_server(**PORT) as live:
        port = live.uvicorn.config.app.state.wyoming.port
        await run("wyoming_say.py", "127.0.0.1", str(port), "Hello there, how are you?", str(tmp_path / "x.wav"))
    assert 0.5 < seconds_in(tmp_path / "x.wav") < 3


def test_mqtt_page_lists_every_message_and_field() -> None:
    for kind in msgspec.inspect.type_info(messages.ClientMessage).types:  # type: ignore[attr-defined]
        assert f'{{"t":"{kind.tag}"' in PAGE
    for kind in msgspec.inspect.type_info(messages.ServerMessage).types:  # type: ignore[attr-defined]
        row = re.search(rf"^\| `{kind.tag}` \| (.*?) \|", PAGE, re.MULTILINE)
        assert row is not None, kind.tag
        assert [f"`{field.name}`" for field in kind.fields] == row[1].split()
    for field in (*msgspec.structs.fields(messages.MqttOpen), *msgspec.structs.fields(messages.MqttSay)):
        assert f"`{field.name}`" in PAGE
