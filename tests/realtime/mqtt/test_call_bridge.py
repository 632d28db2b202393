"""Calls at a broker: an agent receives call events, speaks and hangs up."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

from realtime.errors import LocalProtocolError
from realtime.mqtt.call_bridge import MqttCallBridge
from realtime.mqtt.connection import Publication
from realtime.protocol import model
from realtime.protocol.mqtt.topics import Topics
from tests.realtime.calls import twilio_simulator
from tests.realtime.calls.test_sockets import dial
from tests.realtime.live_server import LiveServer, until
from tests.realtime.mqtt.mosquitto import Mosquitto
from tests.realtime.mqtt.mqtt_client import Json, MqttTestClient, bridge_of, bridged, client


async def told(agent: MqttTestClient, kind: str) -> Json:
    heard = await agent.next_on_any(lambda one: one.topic.endswith("/ev") and one.json.get("type") == kind)
    return {**heard.json, "topic": heard.topic}


async def command(agent: MqttTestClient, call: Json, **said: object) -> None:
    await agent.client.publish(call["topic"].removesuffix("ev") + "in", json.dumps(said), 1)


async def test_an_agent_speaks_into_a_call(broker: Mosquitto) -> None:
    async with bridged(broker, mqtt__calls_enabled=True) as live, client(broker) as agent:
        async with dial(live, "/v1/calls/twilio") as line:
            await line.send(twilio_simulator.connected())
            await line.send(twilio_simulator.start())
            call = await told(agent, "call.connected")
            assert call["topic"] == f"voice/v1/calls/{bridge_of(live).worker}/{call['call_id']}/ev"
            await command(agent, call, type="say", text="Hello, you.", reply_id="a")
            assert (await told(agent, "reply.accepted"))["reply_id"] == "a"
            assert json.loads(await line.recv())["event"] == "media"
            await line.send(twilio_simulator.dtmf("5"))
            assert (await told(agent, "call.dtmf"))["digit"] == "5"
            await command(agent, call, type="interrupt")
            assert (await told(agent, "reply.interrupted"))["cause"] == "agent"
            await command(agent, call, type="say")
            await command(agent, call, type="shout")
            assert (await told(agent, "error"))["code"] == "invalid_event"
            await command(agent, call, type="hang_up")
            assert (await told(agent, "call.hung_up"))["reason"] == "agent"
            assert [json.loads(message)["event"] async for message in line]
        await command(agent, call, type="interrupt")
        assert (await told(agent, "error"))["code"] == "unknown_call"
        await agent.client.publish(call["topic"].removesuffix("ev") + "in", b"x" * 300_000, 1)
        assert (await told(agent, "error"))["code"] in {"message_too_big", "unknown_call"}


async def test_calls_are_not_published_without_setting(broker: Mosquitto, live: LiveServer) -> None:
    async with client(broker) as agent, dial(live, "/v1/calls/twilio") as line:
        await line.send(twilio_simulator.connected())
        await line.send(twilio_simulator.start())
        await until(lambda: live.speech.num_connections == 1)
        session = await agent.open()
        await session.say({"t": "ping"})
        await session.told("pong")
        assert not [one.topic for one in agent.heard if "/calls/" in one.topic]


async def test_call_event_above_broker_limit_affects_nothing_else() -> None:
    refused: list[str] = []
    said: list[Publication] = []
    metrics = SimpleNamespace(refused=refused.append)
    server = SimpleNamespace(config=SimpleNamespace(mqtt=SimpleNamespace(max_queued_per_session=1)), metrics=metrics)

    async def publish(publication: Publication) -> None:
        said.append(publication)
        raise LocalProtocolError("the broker takes 100 bytes in a message, this one has 101")

    line = cast(Any, SimpleNamespace(publish=publish))
    desk = MqttCallBridge(
        cast(Any, server), cast(Any, None), cast(Any, None), line, Topics("voicewire", "servers"), "worker"
    )
    await asyncio.wait_for(desk._publish("call", model.CallDtmf(call_id="call", digit="1")), 1)
    assert said
    assert refused == ["internal_error"]
