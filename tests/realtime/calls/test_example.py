"""The example of a telephone number that answers."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import httpx2 as httpx
import pytest
from websockets.asyncio.server import ServerConnection, serve

from realtime.protocol.telephony.twilio import sign
from tests.realtime.calls import twilio_simulator
from tests.realtime.calls.test_sockets import twilio_call
from tests.realtime.live_server import live_server, until

EXAMPLE = Path(__file__).parents[3] / "examples" / "twilio.py"
TOKEN = "a-secret-token"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("TWILIO_AUTH_TOKEN", TOKEN)
    spec = importlib.util.spec_from_file_location("twilio_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_webhook_answers_what_twilio_signed(example: ModuleType) -> None:
    fields = {"CallSid": "CA1", "From": '+1555"<0100'}
    signature = sign(TOKEN, "https://voice.example.com/voice", fields)
    transport = httpx.ASGITransport(app=example.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as http:
        assert (await http.post("/voice", data=fields)).status_code == 403
        answer = await http.post("/voice", data=fields, headers={"X-Twilio-Signature": signature})
    stream = ElementTree.fromstring(answer.text).find("Connect/Stream")
    assert stream is not None
    assert stream.attrib == {"url": "wss://voice.example.com/v1/calls/twilio"}
    assert stream[0].attrib == {"name": "from", "value": fields["From"]}


async def test_the_agent_greets_and_hangs_up(example: ModuleType) -> None:
    example.GREETING = "Hello."
    async with live_server() as live:
        agent = asyncio.create_task(example.answer_calls(live.url, ""))
        await until(lambda: live.speech.num_connections == 1)
        async with twilio_call(live) as far:
            await until(lambda: far.events.count("media") > 2)
            far._say(twilio_simulator.dtmf("#"))
            await until(lambda: live.speech.num_connections == 1)
            assert far.num_clears == 1
        agent.cancel()
        await asyncio.gather(agent, return_exceptions=True)


async def test_the_agent_outlives_a_restart_of_the_server(example: ModuleType) -> None:
    num_connections = 0

    async def leave(connection: ServerConnection) -> None:
        nonlocal num_connections
        num_connections += 1
        await connection.close(1012, "the server is draining")

    async with serve(leave, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        agent = asyncio.create_task(example.answer_calls(f"ws://127.0.0.1:{port}", ""))
        await until(lambda: num_connections >= 2)
        agent.cancel()
        await asyncio.gather(agent, return_exceptions=True)
