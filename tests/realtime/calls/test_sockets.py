"""Calls over real sockets: a provider's line on one side, an agent on the other."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from realtime.app import create_app
from realtime.config import ConfigError, load_config
from realtime.protocol.telephony.twilio import sign
from tests.fakes.engine import FakeSpeechEngine
from tests.realtime.calls import twilio_simulator
from tests.realtime.live_server import WAIT_S, LiveServer, live_server, until

KEY, OTHER_KEY = "a-key-of-enough-characters", "another-key-of-enough-characters"
TOKEN = "a-secret-token"
PUBLIC = "https://voice.example.com"
SIGNED = {"X-Twilio-Signature": sign(TOKEN, "wss://voice.example.com/v1/calls/twilio")}
TEXT = "Hello there."


def dial(live: LiveServer, path: str, **headers: str) -> connect:
    return connect(live.url + path, compression=None, proxy=None, additional_headers=headers)


@asynccontextmanager
async def twilio_call(live: LiveServer, **headers: str) -> AsyncIterator[twilio_simulator.TwilioSimulator]:
    async with dial(live, "/v1/calls/twilio", **headers) as socket:
        outgoing: asyncio.Queue[str] = asyncio.Queue()
        far = twilio_simulator.TwilioSimulator(outgoing.put_nowait)
        tasks = [asyncio.create_task(pump(socket, far)), asyncio.create_task(drain(outgoing, socket))]
        for message in (twilio_simulator.connected(), twilio_simulator.start()):
            await socket.send(message)
        yield far
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def pump(socket: ClientConnection, far: twilio_simulator.TwilioSimulator) -> None:
    async for message in socket:
        far.receive(message)


async def drain(outgoing: asyncio.Queue[str], socket: ClientConnection) -> None:
    while True:
        await socket.send(await outgoing.get())


async def told(agent: ClientConnection, kind: str) -> dict[str, Any]:
    async with asyncio.timeout(WAIT_S):
        while True:
            event = json.loads(await agent.recv())
            if event["type"] == kind:
                return event  # type: ignore[no-any-return]


@pytest.fixture
async def live() -> AsyncIterator[LiveServer]:
    flags = {"calls__twilio_auth_token": TOKEN, "calls__public_url": PUBLIC, "calls__default_key_name": "agent"}
    async with live_server(auth__api_keys=f"other:{OTHER_KEY},agent:{KEY}", **flags) as server:
        yield server


async def test_an_agent_speaks_into_a_call_by_websocket(live: LiveServer) -> None:
    async with dial(live, "/v1/calls", Authorization=f"Bearer {KEY}") as agent, twilio_call(live, **SIGNED) as far:
        call_id = (await told(agent, "call.connected"))["call_id"]
        await agent.send(json.dumps({"type": "say", "call_id": call_id, "text": TEXT}))
        accepted, played = await told(agent, "reply.accepted"), await told(agent, "reply.played")
        assert accepted["reply_id"] == played["reply_id"]
        assert played["confirmed"]
        assert far.played_s == pytest.approx(played["played_ms"] / 1000, abs=0.02)
        await agent.send(json.dumps({"type": "hang_up", "call_id": call_id}))
        assert (await told(agent, "call.hung_up"))["reason"] == "agent"
        await agent.send(json.dumps({"type": "say", "call_id": call_id, "text": TEXT}))
        assert (await told(agent, "error"))["code"] == "unknown_call"


async def test_an_agent_speaks_into_a_call_by_http(live: LiveServer) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    async with live.http() as http, twilio_call(live, **SIGNED):
        calls = await first_calls(lambda: http.get("/v1/calls", headers=headers))
        path = f"/v1/calls/{calls[0]['call_id']}"
        events: list[dict[str, Any]] = []
        async with http.stream("GET", path + "/events", headers=headers, timeout=WAIT_S) as stream:
            lines = stream.aiter_lines()
            assert "call.connected" in await anext(lines)
            answer = await http.post(path, headers=headers, json={"type": "say", "text": TEXT, "reply_id": "r"})
            assert (answer.status_code, answer.json()["reply_id"]) == (202, "r")
            later = {"type": "hang_up", "after_speech": True}
            assert (await http.post(path, headers=headers, json=later)).json() == {}
            events += [json.loads(line.removeprefix("data: ")) async for line in lines if line]
        assert [event["type"] for event in events] == ["reply.played", "call.hung_up"]
        await until(lambda: live.speech.num_connections == 0)
        assert (await http.post(path, headers=headers, json={"type": "interrupt"})).status_code == 404


async def first_calls(ask: Callable[[], Any]) -> list[dict[str, Any]]:
    async with asyncio.timeout(WAIT_S):
        while not (calls := (await ask()).json()["calls"]):
            await asyncio.sleep(0.01)
        return calls  # type: ignore[no-any-return]


async def test_calls_belong_to_their_key(live: LiveServer) -> None:
    async with dial(live, "/v1/calls", Authorization=f"Bearer {KEY}") as agent, twilio_call(live, **SIGNED):
        call_id = (await told(agent, "call.connected"))["call_id"]
        other = {"Authorization": f"Bearer {OTHER_KEY}"}
        async with live.http() as http:
            assert (await http.get("/v1/calls", headers=other)).json() == {"calls": []}
            answer = await http.post(f"/v1/calls/{call_id}", headers=other, json={"type": "interrupt"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_call")
            assert (await http.get(f"/v1/calls/{call_id}/events", headers=other)).status_code == 404
            assert (await http.get("/v1/calls")).status_code == 401
        with pytest.raises(InvalidStatus):
            async with dial(live, f"/v1/calls/{call_id}", **other):
                pass


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Twilio-Signature": "AAAA"},
        {"X-Twilio-Signature": sign(TOKEN, "wss://other.example.com/v1/calls/twilio")},
        {"X-Twilio-Signature": sign("another-token", "wss://voice.example.com/v1/calls/twilio")},
        {"Authorization": f"Bearer {KEY}"},
    ],
)
async def test_call_without_twilio_signature_is_rejected(live: LiveServer, headers: dict[str, str]) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with dial(live, "/v1/calls/twilio", **headers):
            pass
    assert refused.value.response.status_code == 401
    assert TOKEN.encode() not in (refused.value.response.body or b"")


async def test_other_lines_show_a_key(live: LiveServer) -> None:
    for path in ("telnyx", "plivo", "vonage"):
        with pytest.raises(InvalidStatus):
            async with dial(live, f"/v1/calls/{path}"):
                pass
    async with dial(live, f"/v1/calls/vonage?token={KEY}") as line, dial(live, f"/v1/calls?token={KEY}") as agent:
        await line.send('{"event":"websocket:connected","content-type":"audio/l16;rate=16000","uuid":"U1"}')
        call_id = (await told(agent, "call.connected"))["call_id"]
        await agent.send(json.dumps({"type": "say", "call_id": call_id, "text": "Hi."}))
        frames = 0
        async with asyncio.timeout(WAIT_S):
            while isinstance(message := await line.recv(), bytes):
                assert len(message) == 640
                frames += 1
        assert frames > 2
        await line.send(json.dumps({"event": "websocket:notify", "payload": json.loads(message)["payload"]}))
        assert (await told(agent, "reply.played"))["confirmed"]


async def test_http_event_reader_counts_as_connected() -> None:
    async with live_server(limits__max_connections=3) as live, live.http() as http:
        async with dial(live, "/v1/calls") as agent, dial(live, "/v1/calls/vonage") as line:
            await line.send('{"event":"websocket:connected","content-type":"audio/l16;rate=16000","uuid":"U1"}')
            path = f"/v1/calls/{(await told(agent, 'call.connected'))['call_id']}/events"
            async with http.stream("GET", path, timeout=WAIT_S) as stream:
                assert "call.connected" in await anext(stream.aiter_lines())
                assert live.speech.num_connections == 3
                refused = await http.get(path)
                assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_connections")
            await until(lambda: live.speech.num_connections == 2)
        await until(lambda: live.speech.num_connections == 0)


@asynccontextmanager
async def stalled_reader(live: LiveServer) -> AsyncIterator[socket.socket]:
    """Reads a call's events by HTTP, and nothing of them, while very many keys are pressed."""
    async with live.http() as http, dial(live, "/v1/calls/vonage") as line:
        await line.send('{"event":"websocket:connected","content-type":"audio/l16;rate=16000","uuid":"U1"}')
        (call,) = await first_calls(lambda: http.get("/v1/calls"))
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", live.port))
            path = f"/v1/calls/{call['call_id']}/events"
            reader.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            await until(lambda: live.speech.num_connections == 2)
            for _ in range(2_000):
                await line.send('{"event":"websocket:dtmf","digit":"5","duration":260}')
            yield reader
            await until(lambda: live.speech.num_connections == 1)


SMALL = {"listen__send_buffer_bytes": 4096, "listen__write_buffer_bytes": 4096}


async def test_http_reader_that_stops_reading_is_cut() -> None:
    async with live_server(limits__reader_timeout_s=0.2, **SMALL) as live, stalled_reader(live):
        pass


async def test_slow_reader_gets_the_last_event() -> None:
    async with live_server(calls__max_queued_events=16, **SMALL) as live, stalled_reader(live) as reader:
        told = await asyncio.to_thread(lambda: b"".join(iter(lambda: reader.recv(65_536), b"")))
        last = json.loads(told.rsplit(b"data: ", 1)[1].splitlines()[0])
        assert (last["type"], last["code"]) == ("error", "slow_reader")


async def test_simultaneous_readers_are_counted_in_order() -> None:
    async with (
        live_server(limits__max_connections=5, limits__max_http_connections=100) as live,
        live.http() as http,
        dial(live, "/v1/calls") as agent,
        dial(live, "/v1/calls/vonage") as line,
    ):
        await line.send('{"event":"websocket:connected","content-type":"audio/l16;rate=16000","uuid":"U1"}')
        path = f"/v1/calls/{(await told(agent, 'call.connected'))['call_id']}/events"
        codes: list[int] = []

        async def read() -> None:
            async with http.stream("GET", path, timeout=WAIT_S) as stream:
                codes.append(stream.status_code)
                await asyncio.sleep(WAIT_S if stream.status_code == 200 else 0)

        readers = [asyncio.create_task(read()) for _ in range(20)]
        await until(lambda: len(codes) == 20)
        assert sorted(codes) == 3 * [200] + 17 * [429]
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)
        await until(lambda: live.speech.num_connections == 2)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "malformed_json"),
        ('{"type":"shout"}', "invalid_event"),
        ('{"type":"say","text":5}', "invalid_event"),
        ('{"type":"say","txt":"x"}', "invalid_event"),
        ('{"type":"say","text":"x"}', "invalid_event"),
        ('{"type":"say","text":"x","call_id":"none"}', "unknown_call"),
        (b"\0", "binary_not_accepted"),
        (json.dumps({"type": "say", "text": "x" * 300_000}), "message_too_big"),
    ],
)
async def test_forbidden_agent_message_is_answered(live: LiveServer, message: str | bytes, code: str) -> None:
    async with dial(live, "/v1/calls", Authorization=f"Bearer {KEY}") as agent:
        await agent.send(message)
        assert (await told(agent, "error"))["code"] == code
        await agent.send('{"type":"interrupt","call_id":"x"}')
        assert (await told(agent, "error"))["code"] == "unknown_call", "the connection lives on"


async def test_an_agent_that_errs_without_end_is_closed() -> None:
    async with live_server(limits__max_errors_per_connection=3) as live, dial(live, "/v1/calls") as agent:
        for _ in range(5):
            await agent.send("{")
        while agent.close_code is None:
            with suppress(ConnectionClosed):
                await asyncio.wait_for(agent.recv(), WAIT_S)
        assert agent.close_code == 1008


async def test_the_auth_token_is_in_no_log(live: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    async with twilio_call(live, **SIGNED):
        await until(lambda: live.speech.num_connections == 1)
    await until(lambda: live.speech.num_connections == 0)
    assert TOKEN not in caplog.text
    assert TEXT not in caplog.text


def test_owner_without_key_prevents_start(tmp_path: Path) -> None:
    """No thread of the server that was not assembled is left."""
    flags = {"calls.default_key_name": "nobody", "log.usage_file": str(tmp_path / "usage")}
    before = set(threading.enumerate())
    with pytest.raises(ConfigError, match=r"calls\.default_key_name"):
        create_app(load_config(flags=flags), FakeSpeechEngine())
    assert not set(threading.enumerate()) - before


@pytest.mark.parametrize(
    "url", ["voice.example.com", "ftp://x", "https://", "https://x:abc", "https://x:70000", "https://x?y"]
)
def test_a_public_address_that_is_none_stops_the_start(url: str) -> None:
    with pytest.raises(ConfigError, match=r"calls\.public_url"):
        create_app(load_config(flags={"calls.public_url": url}), FakeSpeechEngine())


@pytest.mark.parametrize("host", ["x:abc", "x:99999", "[", "", "x y"])
async def test_a_host_that_is_none_is_refused_as_unsigned(host: str) -> None:
    async with live_server(calls__twilio_auth_token=TOKEN) as live:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(live.url.rpartition(":")[2]))
        head = f"GET /v1/calls/twilio HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        keys = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        writer.write(f"{head}{keys}X-Twilio-Signature: AAAA\r\n\r\n".encode())
        async with asyncio.timeout(WAIT_S):
            assert (await reader.readline()).split()[1] in (b"401", b"400")
        writer.close()
