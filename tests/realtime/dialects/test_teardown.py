"""What a connection leaves behind: no object, whatever ended it, and no line in the log of a client that left."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
from typing import Any

import pytest

from realtime.protocol import events as ev
from tests.fakes.engine import FakeScript
from tests.realtime.dialects.clients import VendorClient
from tests.realtime.dialects.talk import KEY, LONG, TEXT, dial, every, hear, hear_first_audio, send
from tests.realtime.dialects.test_wires_http import HTTP
from tests.realtime.leftovers import leaves_no_object
from tests.realtime.live import WAIT_S, Live, speak

FASTEST = FakeScript(ms_per_char=60.0, first_chunk_s=0.0, real_time_factor=0.0)
REQUESTS = [(path, body) for path, body, _ in HTTP]
REQUESTS.append(("/v1/audio/speech", {"input": TEXT, "voice": "ada", "response_format": "pcm"}))
REQUESTS.append(("/v1/text-to-dialogue", {"inputs": [{"text": TEXT, "voice_id": voice} for voice in ("ada", "ben")]}))


@every
@pytest.mark.parametrize("end", ["spoken", "closed", "dropped"])
async def test_closed_socket_is_free_without_a_collection(live: Live, client: VendorClient, end: str) -> None:
    async def visit() -> None:
        socket = await dial(live, client)
        await send(socket, client, client.say("t1", TEXT if end == "spoken" else LONG))
        if end == "spoken":
            await send(socket, client, client.end("t1"))
            await hear(socket, client, "t1")
        else:
            await hear_first_audio(socket, client)
        if end == "dropped":
            socket.transport.abort()
        await socket.close()

    await leaves_no_object(live, visit)


@pytest.mark.parametrize("end", ["spoken", "closed", "dropped"])
async def test_closed_native_session_is_free_without_a_collection(live: Live, end: str) -> None:
    async def visit() -> None:
        async with live.session(KEY) as client:
            if end == "spoken":
                await speak(client, TEXT)
                return
            await client.send(ev.ResponseCreate(response_id="r", text=LONG, end=True))
            async for message in client:
                if isinstance(message, ev.AudioMessage):
                    break
            if end == "dropped":
                client.abort()

    await leaves_no_object(live, visit)


@pytest.mark.parametrize(("path", "body"), REQUESTS)
@pytest.mark.parametrize("end", ["spoken", "dropped"])
async def test_request_is_free_without_a_collection(live: Live, path: str, body: dict[str, Any], end: str) -> None:
    async def visit() -> None:
        await leave_while_it_speaks(live, path, body, to_the_end=end == "spoken")

    await leaves_no_object(live, visit)


@every
async def test_client_that_leaves_a_socket_logs_nothing(
    live: Live, client: VendorClient, caplog: pytest.LogCaptureFixture
) -> None:
    live.engine.script = FASTEST
    for _ in range(3):
        line = await dial(live, client)
        await send(line, client, client.say("t1", LONG) + client.end("t1"))
        await hear_first_audio(line, client)
        reset(line.transport.get_extra_info("socket"))
        line.transport.abort()
        await live.freed()
    assert complaints(caplog) == []


@every
async def test_client_that_closes_amid_much_audio_logs_nothing(
    live: Live, client: VendorClient, caplog: pytest.LogCaptureFixture
) -> None:
    """The server's end is closed by the client's close message while many messages are ready to be sent."""
    live.engine.script = FASTEST
    turns = ["t1"] if client.one_turn else [f"t{number}" for number in range(1, 9)]
    for _ in range(4):
        line = await dial(live, client)
        for turn in turns:
            await send(line, client, client.say(turn, LONG) + client.end(turn))
        await hear_first_audio(line, client)
        await line.close()
        await live.freed()
    assert complaints(caplog) == []


@pytest.mark.parametrize(("path", "body"), REQUESTS)
async def test_client_that_leaves_a_request_logs_nothing(
    live: Live, path: str, body: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    live.engine.script = FASTEST
    long = json.loads(json.dumps(body).replace(TEXT, LONG))
    for _ in range(3):
        await leave_while_it_speaks(live, path, long)
        await live.freed()
    assert complaints(caplog) == []


async def leave_while_it_speaks(live: Live, path: str, body: dict[str, Any], to_the_end: bool = False) -> None:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nxi-api-key: {KEY}\r\nAuthorization: Bearer {KEY}\r\n"
    head += f"Content-Type: application/json\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    writer.write(head.encode() + data)
    async with asyncio.timeout(WAIT_S):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await reader.read(-1 if to_the_end else 1_000)
    if not to_the_end:
        reset(writer.get_extra_info("socket"))
    writer.close()


def reset(transport_socket: socket.socket) -> None:
    """The close is told as a reset, so that the server's next write fails."""
    transport_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
