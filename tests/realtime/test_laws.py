"""What holds for every wire and every phone line, over real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from asyncio.selector_events import _SelectorSocketTransport  # type: ignore[attr-defined]  # typeshed leaves it out
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.frames import Frame, Opcode

from realtime.protocol import events as ev
from realtime.protocol import wyoming
from realtime.protocol.native import PATH, SUBPROTOCOL, serialize
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.calls import twilio_simulator
from tests.realtime.calls.test_sockets import dial as dial_call
from tests.realtime.calls.test_sockets import first_calls, told
from tests.realtime.devices import test_xiaozhi, test_xiaozhi_mqtt
from tests.realtime.dialects.vendor_clients import (
    CLIENTS,
    KEY,
    LONG,
    TEXT,
    VendorClient,
    dial,
    every,
    hear_first_audio,
    send,
)
from tests.realtime.leftovers import complaints, leaves_no_object
from tests.realtime.live_server import WAIT_S, LiveServer, live_server, until
from tests.realtime.protocol.telephony.lines import message_of, messages
from tests.realtime.test_auth import connect_packet
from tests.realtime.wires import LINES, REQUESTS, WIRES, Ending, Peer

FASTEST = FakeScript(ms_per_char=60.0, first_chunk_s=0.0, real_time_factor=0.0)


def each(peers: Iterable[Peer], *endings: Ending) -> Any:
    """Every peer in each of these endings that it has."""
    cases = [
        pytest.param(peer, ending, id=f"{peer.name} {ending}")
        for peer in peers
        for ending in endings
        if ending in peer.endings
    ]
    return pytest.mark.parametrize(("peer", "ending"), cases)


@each((*WIRES, *LINES), "spoken", "closed", "dropped")
async def test_ended_connection_is_free_without_a_collection(peer: Peer, ending: Ending, tmp_path: Path) -> None:
    text = peer.text if ending == "spoken" else LONG
    async with peer.server(tmp_path) as live:
        await leaves_no_object(live, lambda: peer.visit(live, ending, text))


@each((*WIRES, *LINES), "closed", "reset")
async def test_client_that_leaves_in_mid_reply_logs_nothing(
    peer: Peer, ending: Ending, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with peer.server(tmp_path) as live:
        live.engine.script = FASTEST
        for _ in range(3):
            await peer.visit(live, ending, LONG)
            await live.freed()
    assert complaints(caplog) == []


@every
async def test_client_closing_amid_replies_logs_nothing(client: VendorClient, caplog: pytest.LogCaptureFixture) -> None:
    """The server's end is closed by the client's close message while many messages are ready to be sent."""
    turns = ["t1"] if client.one_turn else [f"t{number}" for number in range(1, 9)]
    async with live_server(FakeSpeechEngine(FASTEST), auth__api_keys=f"agent:{KEY}") as live:
        for _ in range(4):
            line = await dial(live, client)
            for turn in turns:
                await send(line, client, client.say(turn, LONG) + client.end(turn))
            await hear_first_audio(line, client)
            await line.close()
            await live.freed()
    assert complaints(caplog) == []


SHOWN = {"Authorization": f"Bearer {KEY}", "xi-api-key": KEY}
FLAGS = {
    "auth__api_keys": f"agent:{KEY}",
    "calls__barge_in": False,
    "calls__audiosocket": "127.0.0.1:0",
    "wyoming__address": "127.0.0.1:0",
    "xiaozhi__mqtt": "127.0.0.1:0",
    "xiaozhi__udp": "127.0.0.1:0",
}
Message = str | bytes


class DyingClient:
    """A raw socket that is reset amid the server's writes, and a count of the writes to it afterwards."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._address: tuple[str, int] | None = None
        self._writes_left: int | None = None
        self.was_reset = asyncio.Event()
        self.num_late_writes = 0
        write = _SelectorSocketTransport.write

        def counted_write(transport: Any, data: Any) -> None:
            if transport.get_extra_info("peername") == self._address:
                self._before_write(transport.is_closing())
            write(transport, data)

        monkeypatch.setattr(_SelectorSocketTransport, "write", counted_write)

    def _before_write(self, is_closing: bool) -> None:
        self.num_late_writes += is_closing
        if self._writes_left is None or self.was_reset.is_set():
            return
        self._writes_left -= 1
        if self._writes_left == 0:
            self._line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._line.close()
            self.was_reset.set()

    async def connect(self, port: int | None) -> None:
        assert port is not None
        self._line = socket.socket()
        self._line.setblocking(False)
        await asyncio.get_running_loop().sock_connect(self._line, ("127.0.0.1", port))
        self._address = self._line.getsockname()

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._line, data)

    async def send_request(self, method: str, path: str, body: bytes = b"", **headers: str) -> None:
        lines = {"Host": "localhost", "Content-Length": str(len(body)), **SHOWN, **headers}
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
        await self.send(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)

    async def upgrade(self, live: LiveServer, path: str, *subprotocols: str) -> None:
        await self.connect(live.port)
        offered = {"Sec_WebSocket_Protocol": ", ".join(subprotocols)} if subprotocols else {}
        upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec_WebSocket_Version": "13"}
        await self.send_request("GET", path, **upgrade, Sec_WebSocket_Key="AAAAAAAAAAAAAAAAAAAAAA==", **offered)
        answer = await asyncio.get_running_loop().sock_recv(self._line, 4_096)
        assert answer.startswith(b"HTTP/1.1 101"), answer

    async def send_frames(self, *messages: Message) -> None:
        for message in messages:
            kind, data = (Opcode.TEXT, message.encode()) if isinstance(message, str) else (Opcode.BINARY, message)
            await self.send(Frame(kind, data).serialize(mask=True))

    async def dies_after(self, num_writes: int) -> None:
        """Reset at this write of the server, counted from now."""
        self._writes_left = num_writes
        async with asyncio.timeout(WAIT_S):
            await self.was_reset.wait()


Reply = Callable[[LiveServer, DyingClient], Awaitable[None]]


async def native(live: LiveServer, client: DyingClient) -> None:
    await client.upgrade(live, PATH, SUBPROTOCOL)
    settings = ev.NativeSpeechSettings(pace="burst")
    await client.send_frames(serialize(ev.ResponseCreate(response_id="r", settings=settings, text=LONG, end=True)))
    await client.dies_after(4)


async def vendor(wire: VendorClient, live: LiveServer, client: DyingClient) -> None:
    await client.upgrade(live, wire.path, *wire.subprotocols)
    await client.send_frames(*(wire.pack(message) for message in wire.say("t1", LONG) + wire.end("t1")))
    await client.dies_after(4)


async def request(path: str, body: dict[str, Any], live: LiveServer, client: DyingClient) -> None:
    await client.connect(live.port)
    await client.send_request("POST", path, json.dumps(body).replace(TEXT, LONG).encode())
    await client.dies_after(4)


async def wyoming_port(live: LiveServer, client: DyingClient) -> None:
    await client.connect(live.uvicorn.config.app.state.wyoming.port)
    await client.send(wyoming.serialize(wyoming.WyomingEvent("synthesize", {"text": LONG})))
    await client.dies_after(4)


@asynccontextmanager
async def agent(live: LiveServer) -> AsyncIterator[ClientConnection]:
    async with dial_call(live, "/v1/calls", **SHOWN) as line:
        yield line


async def speak_into(call: ClientConnection, text: str = LONG) -> None:
    call_id = (await told(call, "call.connected"))["call_id"]
    await call.send(json.dumps({"type": "say", "call_id": call_id, "text": text}))


async def phone(path: str, start: list[Message], live: LiveServer, client: DyingClient) -> None:
    async with agent(live) as line:
        await client.upgrade(live, path)
        await client.send_frames(*start)
        await speak_into(line)
        await client.dies_after(4)
        await told(line, "call.hung_up")


async def audiosocket(live: LiveServer, client: DyingClient) -> None:
    async with agent(live) as line:
        await client.connect(live.uvicorn.config.app.state.audiosocket.port)
        await client.send(b"".join(messages("audiosocket")[:2]))
        await speak_into(line)
        await until(lambda: bool(live.engine.requests))
        await client.dies_after(4)
        await told(line, "call.hung_up")


async def device_by_mqtt(live: LiveServer, client: DyingClient) -> None:
    async with agent(live) as line:
        await client.connect(live.uvicorn.config.app.state.device_ports.port)
        hello = b"\x00\x02up" + json.dumps(test_xiaozhi_mqtt.HELLO).encode()
        assert len(hello) < 256
        await client.send(connect_packet(KEY) + bytes([0x30, len(hello) % 128 | 128, len(hello) // 128]) + hello)
        await speak_into(line)
        await client.dies_after(1)
        await told(line, "call.hung_up")


async def agents_socket(live: LiveServer, client: DyingClient) -> None:
    async with dial_call(live, "/v1/calls/twilio", **SHOWN) as far:
        await client.upgrade(live, "/v1/calls")
        await far.send(twilio_simulator.connected())
        await far.send(twilio_simulator.start())
        async with live.http() as http:
            (call,) = await first_calls(lambda: http.get("/v1/calls", headers=SHOWN))
        await client.send_frames(json.dumps({"type": "say", "call_id": call["call_id"], "text": LONG}))
        await client.dies_after(1)


async def agents_stream(live: LiveServer, client: DyingClient) -> None:
    async with agent(live) as line, dial_call(live, "/v1/calls/twilio", **SHOWN) as far:
        await far.send(twilio_simulator.connected())
        await far.send(twilio_simulator.start())
        call_id = (await told(line, "call.connected"))["call_id"]
        await client.connect(live.port)
        await client.send_request("GET", f"/v1/calls/{call_id}/events")
        await client.dies_after(2)


SSE = {"input": TEXT, "response_format": "pcm", "stream_format": "sse"}
BATCH = {"items": [{"input": TEXT}, {"input": TEXT}], "response_format": "wav"}
XIAOZHI: list[Message] = [json.dumps(test_xiaozhi.HELLO)]
PHONES: dict[str, tuple[str, list[Message]]] = {
    "twilio": ("/v1/calls/twilio", [twilio_simulator.connected(), twilio_simulator.start()]),
    "telnyx": ("/v1/calls/telnyx", [message_of("telnyx", "StreamStarted")]),
    "plivo": ("/v1/calls/plivo", [message_of("plivo", "StreamStarted")]),
    "vonage": ("/v1/calls/vonage", [message_of("vonage", "StreamStarted")]),
    "asterisk": ("/v1/calls/asterisk", [message_of("asterisk", "StreamStarted")]),
    "xiaozhi": ("/xiaozhi/v1/", XIAOZHI),
}
REPLIES: dict[str, Reply] = {
    "native": native,
    **{wire.name: partial(vendor, wire) for wire in CLIENTS.values()},
    **{f"POST {path} {number}": partial(request, path, body) for number, (path, body) in enumerate(REQUESTS)},
    "POST /v1/audio/speech sse": partial(request, "/v1/audio/speech", SSE),
    "POST /v1/audio/speech/batch": partial(request, "/v1/audio/speech/batch", BATCH),
    **{name: partial(phone, path, start) for name, (path, start) in PHONES.items()},
    "audiosocket": audiosocket,
    "xiaozhi mqtt": device_by_mqtt,
    "wyoming": wyoming_port,
    "/v1/calls": agents_socket,
    "GET /v1/calls/{call_id}/events": agents_stream,
}


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
async def test_reset_connection_gets_no_further_write(
    reply: Reply, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several messages are ready to be sent in the event loop iteration of the reset."""
    async with live_server(FakeSpeechEngine(FASTEST), **FLAGS) as live:
        client = DyingClient(monkeypatch)
        await reply(live, client)
        await live.freed()
        assert client.num_late_writes == 0
        assert complaints(caplog) == []
