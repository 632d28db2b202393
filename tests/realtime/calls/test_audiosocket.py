"""Asterisk's AudioSocket over real TCP: a port of its own, fed a frame each 20 ms whether there is speech or not."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from realtime.app import create_app
from realtime.config import ConfigError, load_config
from realtime.protocol.telephony.audiosocket import HEADER, frame
from tests.fakes.engine import FakeSpeechEngine
from tests.realtime.calls.test_sockets import dial, told
from tests.realtime.live_server import WAIT_S, LiveServer, live_server, until

UUID = frame(0x01, bytes(range(16)))
QUIET = frame(0x10, bytes(320))
FRAMES_A_SECOND = 50


@pytest.fixture
async def live() -> AsyncIterator[LiveServer]:
    async with live_server(calls__audiosocket="127.0.0.1:0") as server:
        yield server


@asynccontextmanager
async def line(live: LiveServer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    port = live.uvicorn.config.app.state.audiosocket.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        await writer.wait_closed()


async def next_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    async with asyncio.timeout(WAIT_S):
        kind, length = HEADER.unpack(await reader.readexactly(3))
        return kind, await reader.readexactly(length)


async def test_silence_speech_and_silence_again(live: LiveServer) -> None:
    async with dial(live, "/v1/calls") as agent, line(live) as (reader, writer):
        writer.write(UUID + QUIET[:100])
        writer.write(QUIET[100:])
        connected = await told(agent, "call.connected")
        assert connected["provider_call_id"] == "00010203-0405-0607-0809-0a0b0c0d0e0f"
        assert (connected["encoding"], connected["sample_rate"]) == ("pcm_s16le", 8_000)
        assert connected["digital_source_type"] == "trainedAlgorithmicMedia"
        assert await next_frame(reader) == (0x10, bytes(320))
        began_s = asyncio.get_running_loop().time()
        await agent.send(json.dumps({"type": "say", "call_id": connected["call_id"], "text": "Hello there."}))
        played = asyncio.create_task(told(agent, "reply.played"))
        frames: list[bytes] = []
        while not played.done():
            kind, payload = await next_frame(reader)
            assert (kind, len(payload)) == (0x10, 320)
            frames.append(payload)
        loud = [bool(np.frombuffer(payload, "<i2").any()) for payload in frames]
        took_s = asyncio.get_running_loop().time() - began_s
        assert 20 < sum(loud) < 30, "of 480 ms of speech"
        assert len(frames) <= took_s * FRAMES_A_SECOND + 12, "it comes as fast as it is played"
        assert not (await played)["confirmed"]
        while (await next_frame(reader))[1] != bytes(320):
            pass


async def test_keys_a_hang_up_and_what_is_broken(live: LiveServer) -> None:
    async with dial(live, "/v1/calls") as agent:
        async with line(live) as (_, writer):
            writer.write(UUID + QUIET + frame(0x03, b"9"))
            assert (await told(agent, "call.dtmf"))["digit"] == "9"
            writer.write(frame(0x00, b""))
            assert (await told(agent, "call.hung_up"))["reason"] == "caller"
        async with line(live) as (_, writer):
            writer.write(UUID + QUIET)
            await told(agent, "call.connected")
        assert (await told(agent, "call.hung_up"))["reason"] == "caller"
        async with line(live) as (reader, writer):
            writer.write(QUIET)
            assert await reader.read(100) == frame(0x00, b"")
            assert await reader.read(100) == b""
        await until(lambda: live.speech.num_connections == 1)


async def test_the_agent_hangs_up(live: LiveServer) -> None:
    async with dial(live, "/v1/calls") as agent, line(live) as (reader, writer):
        writer.write(UUID + QUIET)
        call_id = (await told(agent, "call.connected"))["call_id"]
        await agent.send(json.dumps({"type": "hang_up", "call_id": call_id}))
        while (await next_frame(reader))[0] != 0x00:
            pass
        assert await reader.read(100) == b""


async def test_a_full_server_takes_no_line() -> None:
    async with (
        live_server(calls__audiosocket="127.0.0.1:0", limits__max_connections=1) as live,
        dial(live, "/v1/calls"),
        line(live) as (reader, _),
    ):
        assert await reader.read(100) == b""


async def test_without_a_setting_there_is_no_port() -> None:
    async with live_server() as live:
        assert live.uvicorn.config.app.state.audiosocket.port is None


async def test_audiosocket_peer_that_never_reads_is_cut_at_hangup() -> None:
    flags = {"calls__audiosocket": "127.0.0.1:0", "listen__close_timeout_s": 0.2}
    async with (
        live_server(**flags, limits__reader_timeout_s=0.3) as live,
        dial(live, "/v1/calls") as agent,
        line(live) as (_, writer),
    ):
        writer.transport.pause_reading()
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
        writer.write(UUID + frame(0x16, bytes(1_920)))
        call_id = (await told(agent, "call.connected"))["call_id"]
        await asyncio.sleep(0.5)
        await agent.send(json.dumps({"type": "hang_up", "call_id": call_id}))
        assert (await told(agent, "call.hung_up"))["reason"] == "agent"
        await until(lambda: live.speech.num_connections == 1)


def test_several_gateways_share_a_port_that_is_named() -> None:
    flags = {"calls.audiosocket": "127.0.0.1:0", "listen.gateways": 2}
    with pytest.raises(ConfigError, match=r"calls\.audiosocket = 127.0.0.1:0"):
        create_app(load_config(flags=flags), FakeSpeechEngine())
