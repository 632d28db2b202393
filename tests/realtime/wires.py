"""Every wire and every phone line as a table: what a law needs to run on each, over real sockets.

A law takes a ``Peer``: it starts a server for it, and has it visited by a client that ends in one of its endings.
``WIRES`` are clients that send text and receive audio. ``LINES`` are callers; an agent speaks to them.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from websockets.asyncio.client import ClientConnection
from wyoming.client import AsyncTcpClient
from wyoming.tts import Synthesize

from realtime.integration_config import parse_broker_url
from realtime.protocol import events as ev
from realtime.protocol.telephony.audiosocket import frame
from tests.realtime.calls import twilio_simulator
from tests.realtime.calls.test_sockets import PUBLIC, SIGNED, TOKEN, told
from tests.realtime.calls.test_sockets import dial as dial_call
from tests.realtime.devices import test_xiaozhi_mqtt
from tests.realtime.dialects.test_wires import HTTP
from tests.realtime.dialects.vendor_clients import CLIENTS, KEY, TEXT, VendorClient, dial, hear, hear_first_audio, send
from tests.realtime.live_server import WAIT_S, LiveServer, live_server, next_of, speak
from tests.realtime.mqtt.mqtt_client import bridged, client, running
from tests.realtime.protocol.telephony.lines import message_of
from tests.realtime.test_auth import connect_packet

# The whole reply is received; or, in the middle of it, a close as the wire has it, a cut, or a cut by a reset; or the
# reset comes amid the server's writes, which is what ``LateWrites`` does.
Ending = Literal["spoken", "closed", "dropped", "reset", "reset in write"]
Visit = Callable[[LiveServer, Ending, str], Awaitable[None]]
ENDINGS: tuple[Ending, ...] = ("spoken", "closed", "dropped", "reset", "reset in write")
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}


@dataclass(frozen=True)
class Peer:
    name: str
    # Connect, have a text spoken, and end.
    visit: Visit
    endings: tuple[Ending, ...] = ENDINGS
    settings: Mapping[str, object] = field(default_factory=dict)
    needs_broker: bool = False
    # What is spoken to the end.
    text: str = TEXT

    @asynccontextmanager
    async def server(self, folder: Path) -> AsyncIterator[LiveServer]:
        settings = {"auth__api_keys": f"agent:{KEY}", **self.settings}
        if self.needs_broker:
            with running(folder) as broker:
                async with bridged(broker, mqtt__default_key_name="agent", **settings) as live:
                    yield live
        else:
            async with live_server(**settings) as live:
                yield live


async def cut(connection: socket.socket, transport: asyncio.BaseTransport, ending: Ending) -> None:
    if ending == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if ending in ("dropped", "reset"):
        assert isinstance(transport, asyncio.WriteTransport)
        transport.abort()


async def cut_socket(line: ClientConnection, ending: Ending) -> None:
    await cut(line.transport.get_extra_info("socket"), line.transport, ending)


def visit_vendor(vendor: VendorClient) -> Visit:
    async def visit(live: LiveServer, ending: Ending, text: str) -> None:
        line = await dial(live, vendor)
        await send(line, vendor, vendor.say("t1", text))
        if ending in ("spoken", "reset in write") or vendor.one_turn:
            await send(line, vendor, vendor.end("t1"))
        if ending == "spoken":
            await hear(line, vendor, "t1")
        elif ending != "reset in write":
            await hear_first_audio(line, vendor)
        await cut_socket(line, ending)
        await line.close()

    return visit


async def visit_native(live: LiveServer, ending: Ending, text: str) -> None:
    async with live.session(KEY) as session:
        if ending == "spoken":
            await speak(session, text)
            return
        await session.send(ev.ResponseCreate(response_id="r", text=text, end=True))
        if ending != "reset in write":
            await next_of(session, ev.AudioMessage)
        await cut_socket(session._socket, ending)


def visit_request(path: str, body: dict[str, Any]) -> Visit:
    async def visit(live: LiveServer, ending: Ending, text: str) -> None:
        data = json.dumps(body).replace(TEXT, text, 1).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nxi-api-key: {KEY}\r\nAuthorization: Bearer {KEY}\r\n"
        head += f"Content-Type: application/json\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        writer.write(head.encode() + data)
        async with asyncio.timeout(WAIT_S):
            if ending != "reset in write":
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                assert await reader.read(-1 if ending == "spoken" else 1_000)
        await cut(writer.get_extra_info("socket"), writer.transport, ending)
        writer.close()

    return visit


async def visit_wyoming(live: LiveServer, ending: Ending, text: str) -> None:
    async with AsyncTcpClient("127.0.0.1", live.uvicorn.config.app.state.wyoming.port) as peer:
        await peer.write_event(Synthesize(text).event())
        last = "audio-stop" if ending == "spoken" else "audio-chunk"
        async with asyncio.timeout(WAIT_S):
            kind = "" if ending != "reset in write" else last
            while kind != last:
                event = await peer.read_event()
                assert event is not None
                kind = event.type
        assert peer._writer is not None
        await cut(peer._writer.get_extra_info("socket"), peer._writer.transport, ending)


async def visit_broker(live: LiveServer, ending: Ending, text: str) -> None:
    assert ending == "spoken", "a client's connection ends at the broker"
    async with client(parse_broker_url(live.speech.config.mqtt.url)) as agent:
        session = await agent.open(lead_ms=0)
        await session.say({"t": "text", "d": text}, {"t": "end"}, {"t": "close"})
        assert (await session.told("closed"))["reason"] == "close"


REQUESTS = [(path, body) for path, body, _ in HTTP]
REQUESTS.append(("/v1/audio/speech", {"input": TEXT, "voice": "ada", "response_format": "pcm"}))
REQUESTS.append(("/v1/audio/speech", {"input": TEXT, "response_format": "pcm", "stream_format": "sse"}))
REQUESTS.append(("/v1/audio/speech/batch", {"items": [{"input": TEXT}, {"input": TEXT}], "response_format": "wav"}))
REQUESTS.append(("/v1/text-to-dialogue", {"inputs": [{"text": TEXT, "voice_id": voice} for voice in ("ada", "ben")]}))
WIRES: tuple[Peer, ...] = (
    Peer("native", visit_native),
    *(Peer(vendor.name, visit_vendor(vendor)) for vendor in CLIENTS.values()),
    *(
        Peer(f"POST {path} {number}", visit_request(path, body), ("spoken", "dropped", "reset", "reset in write"))
        for number, (path, body) in enumerate(REQUESTS)
    ),
    Peer(
        "wyoming",
        visit_wyoming,
        settings={"wyoming__address": "127.0.0.1:0", "wyoming__default_key_name": "agent"},
    ),
)
WIRES += (Peer("broker", visit_broker, ("spoken",), needs_broker=True),)


async def speak_into_call(agent: ClientConnection, text: str) -> None:
    call = await told(agent, "call.connected")
    await agent.send(json.dumps({"type": "say", "call_id": call["call_id"], "text": text}))


def visit_line(path: str, *first: str, answer: Callable[[str], str | None] = lambda _: None, **headers: str) -> Visit:
    """A call over WebSocket that begins with these messages. ``answer`` gives what returns a mark."""

    async def play_out(line: ClientConnection) -> None:
        async for message in line:
            if isinstance(message, str) and "vw" in message and (returned := answer(message)):
                await line.send(returned)

    async def visit(live: LiveServer, ending: Ending, text: str) -> None:
        headers_sent = AUTHORIZED | headers
        async with dial_call(live, "/v1/calls", **AUTHORIZED) as agent, dial_call(live, path, **headers_sent) as line:
            for message in first:
                await line.send(message)
            await speak_into_call(agent, text)
            if ending == "spoken":
                playing = asyncio.create_task(play_out(line))
                await told(agent, "reply.played")
                playing.cancel()
                return
            async with asyncio.timeout(WAIT_S):
                for _ in range(0 if ending == "reset in write" else 4):
                    await line.recv()
            await cut_socket(line, ending)
            await line.close()
            assert (await told(agent, "reply.interrupted"))["cause"] == "hang_up"
            await told(agent, "call.hung_up")

    return visit


def return_checkpoint(message: str) -> str | None:
    told = json.loads(message)
    played = {"event": "playedStream", "streamId": "S1", "name": told.get("name")}
    return json.dumps(played) if told["event"] == "checkpoint" else None


def return_notify(message: str) -> str | None:
    told = json.loads(message)
    returned = {"event": "websocket:notify", "payload": told.get("payload")}
    return json.dumps(returned) if told.get("action") == "notify" else None


def return_media_mark(message: str) -> str | None:
    name = re.search(r"vw\d+", message)
    return json.dumps({"event": "MEDIA_MARK_PROCESSED", "correlation_id": name[0]}) if name else None


def return_mark(message: str) -> str | None:
    return message if json.loads(message)["event"] == "mark" else None


async def visit_audiosocket(live: LiveServer, ending: Ending, text: str) -> None:
    async with dial_call(live, "/v1/calls", **AUTHORIZED) as agent:
        reader, writer = await asyncio.open_connection("127.0.0.1", live.uvicorn.config.app.state.audiosocket.port)
        writer.write(frame(0x01, bytes(range(16))) + frame(0x10, bytes(320)))
        await speak_into_call(agent, text)
        if ending == "spoken":
            await told(agent, "reply.played")
        else:
            async with asyncio.timeout(WAIT_S):
                await reader.readexactly(0 if ending == "reset in write" else 4 * 323)
            await cut(writer.get_extra_info("socket"), writer.transport, ending)
        writer.close()
        await told(agent, "call.hung_up")


async def visit_agent(live: LiveServer, ending: Ending, text: str) -> None:
    async with dial_call(live, "/v1/calls", **AUTHORIZED) as agent, dial_call(live, LINE, **AUTHORIZED) as line:
        await line.send(message_of("telnyx", "StreamStarted"))
        await speak_into_call(agent, text)
        await cut_socket(agent, ending)


async def visit_agent_by_http(live: LiveServer, ending: Ending, text: str) -> None:
    async with dial_call(live, "/v1/calls", **AUTHORIZED) as agent, dial_call(live, LINE, **AUTHORIZED) as line:
        await line.send(message_of("telnyx", "StreamStarted"))
        call_id = (await told(agent, "call.connected"))["call_id"]
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        head = f"GET /v1/calls/{call_id}/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\r\n"
        writer.write(head.encode())
        async with asyncio.timeout(WAIT_S):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        line.transport.abort()
        await cut(writer.get_extra_info("socket"), writer.transport, ending)
        await told(agent, "call.hung_up")
    writer.close()


async def visit_device(live: LiveServer, ending: Ending, text: str) -> None:
    """A device by MQTT."""
    async with dial_call(live, "/v1/calls", **AUTHORIZED) as agent:
        reader, writer = await asyncio.open_connection("127.0.0.1", live.uvicorn.config.app.state.device_ports.port)
        hello = b"\x00\x02up" + json.dumps(test_xiaozhi_mqtt.HELLO).encode()
        writer.write(connect_packet(KEY) + bytes([0x30, len(hello) % 128 | 128, len(hello) // 128]) + hello)
        await reader.readexactly(4)
        await speak_into_call(agent, text)
        await cut(writer.get_extra_info("socket"), writer.transport, ending)
        await told(agent, "call.hung_up")
        writer.close()


LINE = "/v1/calls/telnyx"
CALLS = {
    "calls__twilio_auth_token": TOKEN,
    "calls__public_url": PUBLIC,
    "calls__default_key_name": "agent",
    "calls__barge_in": False,
    "calls__audiosocket": "127.0.0.1:0",
    "xiaozhi__end_of_speech_delay_ms": 100,
}
LINE_VISITS = {
    "twilio": visit_line(
        "/v1/calls/twilio", twilio_simulator.connected(), twilio_simulator.start(), answer=return_mark, **SIGNED
    ),
    "telnyx": visit_line("/v1/calls/telnyx", message_of("telnyx", "StreamStarted"), answer=return_mark),
    "plivo": visit_line("/v1/calls/plivo", message_of("plivo", "StreamStarted"), answer=return_checkpoint),
    "vonage": visit_line("/v1/calls/vonage", message_of("vonage", "StreamStarted"), answer=return_notify),
    "asterisk": visit_line("/v1/calls/asterisk", message_of("asterisk", "StreamStarted"), answer=return_media_mark),
    "audiosocket": visit_audiosocket,
    "xiaozhi": visit_line(
        "/xiaozhi/v1/", message_of("xiaozhi", "StreamStarted"), **{"Protocol-Version": "1", "Device-Id": "aa:bb:cc"}
    ),
}
LINES = tuple(Peer(name, visit, settings=CALLS, text="Hello.") for name, visit in LINE_VISITS.items())
DEVICES = CALLS | {"xiaozhi__mqtt": "127.0.0.1:0", "xiaozhi__udp": "127.0.0.1:0"}
AGENTS = (
    Peer("/v1/calls", visit_agent, ("reset in write",), CALLS),
    Peer("GET /v1/calls/{call_id}/events", visit_agent_by_http, ("reset in write",), CALLS),
    Peer(
        "xiaozhi mqtt",
        visit_device,
        ("reset",),
        CALLS | {"xiaozhi__mqtt": "127.0.0.1:0", "xiaozhi__udp": "127.0.0.1:0"},
    ),
)
