"""A session at a broker whose client loses its connection at any byte: nothing is lost, comes twice or out of turn."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiomqtt
import pytest

from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.mqtt.mqtt_client import Mosquitto, MqttTestClient, bridged, client
from tests.realtime.test_resume import CuttingProxy

# Each is one message: the segments of a text depend on when its parts come, and with them the samples.
TEXTS = ("One two three four five six seven. ", "Eight nine ten, eleven twelve! ", "Thirteen. ", "Fourteen fifteen.")
SCRIPT = FakeScript(ms_per_char=20.0, first_chunk_s=0.005, real_time_factor=0.1)
# Of an audio message, beside its payload.
HEAD_BYTES = 120
# Of the handshake, the subscriptions and the answer to ``open``.
OPENING_BYTES = 1_500
NUM_CUTS = 6
# An answer that was cut off does not come any more.
ANSWER_TIMEOUT_S = 2.0


class ResumingClient:
    """It keeps what comes in order, and sends again what the server lacks."""

    def __init__(self, port: int, name: str, **wanted: object) -> None:
        self.port, self.name, self._wanted = port, name, wanted
        self.packets: list[list[bytes]] = [[] for _ in TEXTS]
        self.ends: list[list[dict[str, Any]]] = [[] for _ in TEXTS]
        self.num_connections = 0
        self._topic = f"voice/v1/s/{name}/1"
        said = [message for text in TEXTS for message in ({"t": "text", "d": text}, {"t": "end"})]
        self._messages = [{"seq": seq, **message} for seq, message in enumerate(said)]
        self._is_over = False
        # That audio came of last on this connection.
        self._speaking_reply = 0

    async def run(self) -> None:
        will = aiomqtt.Will(f"voice/v1/c/{self.name}/gone", qos=1)
        while not self._is_over:
            self.num_connections += 1
            with suppress(aiomqtt.MqttError, TimeoutError):
                async with client(self, self.name, will=will, timeout=ANSWER_TIMEOUT_S) as agent:  # type: ignore[arg-type]
                    try:
                        await self._converse(agent)
                    finally:
                        if (ended := agent.client._disconnected).done():
                            ended.exception()  # was raised already

    async def _converse(self, agent: MqttTestClient) -> None:
        """Open the session. If it is open already, resume it and pass over what comes before the answer to that."""
        has_resumed, self._speaking_reply = self.num_connections == 1, 0
        await agent.ask("voice/v1/open", {"sid": "1", "resume": True} | self._wanted)
        while not self._is_over:
            message = await agent.next_on_any(lambda _: True)
            if message.topic == agent.answers:
                await self._on_answer(agent, message.json)
            elif message.topic == f"{self._topic}/ev":
                has_resumed |= message.json["t"] == "resumed"
                if has_resumed:
                    await self._on_event(agent, message.json)
            elif has_resumed and message.topic == f"{self._topic}/audio" and not message.last:
                self._on_audio(int(message.user["reply"]), int(message.user["seq"]), message.payload)

    async def _on_answer(self, agent: MqttTestClient, answer: dict[str, Any]) -> None:
        if "error" not in answer and self.num_connections == 1:
            await self._send(agent, self._messages)
            return
        assert "error" not in answer or answer["error"]["param"] == "sid", answer
        missing = [
            {"reply": reply, "received": len(packets)}
            for reply, packets in enumerate(self.packets)
            if not self.ends[reply]
        ]
        await self._send(agent, [{"t": "resume", "replies": missing}])

    async def _on_event(self, agent: MqttTestClient, event: dict[str, Any]) -> None:
        assert event["t"] not in ("error", "closed"), event
        match event["t"]:
            case "resumed":
                await self._send(agent, self._messages[event["seq"] :])
            case "done":
                self.ends[event["reply"]].append(event)
            case "pong":
                self._is_over = True
        if all(self.ends) and not self._is_over:  # another end would come before the answer
            await self._send(agent, [{"t": "ping"}])

    def _on_audio(self, reply: int, seq: int, packet: bytes) -> None:
        assert reply >= self._speaking_reply, "audio of a reply behind that of the next one"
        self._speaking_reply = reply
        packets = self.packets[reply]
        assert seq <= len(packets), "a gap"
        if seq == len(packets):
            packets.append(packet)
        assert packets[seq] == packet

    async def _send(self, agent: MqttTestClient, messages: list[dict[str, object]]) -> None:
        for message in messages:
            await agent.client.publish(f"{self._topic}/in", json.dumps(message), 1)


@asynccontextmanager
async def cutting_proxy(port: int) -> AsyncIterator[tuple[CuttingProxy, int]]:
    proxy = CuttingProxy(port)
    async with await asyncio.start_server(proxy.serve, "127.0.0.1", 0) as server:
        yield proxy, server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("num_sessions", "seed"), [(3, 0), *(pytest.param(100, n, marks=pytest.mark.slow) for n in range(1, 4))]
)
@pytest.mark.parametrize("encoding", ["pcm_s16le", "opus"])
@pytest.mark.timeout(600)
async def test_cuts_at_any_byte_lose_and_repeat_nothing(
    broker: Mosquitto, encoding: str, num_sessions: int, seed: int
) -> None:
    """Every reply ends once, as it does without a cut."""
    rng, wanted = random.Random(f"{encoding} {seed}"), {"format": {"encoding": encoding}, "lead_ms": 0}
    num_connections = 0
    async with bridged(broker, FakeSpeechEngine(SCRIPT), limits__resume_grace_s=30) as live:
        whole = ResumingClient(broker.port, f"whole-{encoding}-{seed}", **wanted)
        await whole.run()
        num_bytes = sum(HEAD_BYTES + len(packet) for packets in whole.packets for packet in packets)
        for number in range(num_sessions):
            async with cutting_proxy(broker.port) as (proxy, port):
                proxy.budgets = [
                    rng.randrange(OPENING_BYTES) + rng.randrange(num_bytes // NUM_CUTS) for _ in range(NUM_CUTS)
                ]
                cut = ResumingClient(port, f"cut-{encoding}-{seed}-{number}", **wanted)
                async with asyncio.timeout(60):
                    await cut.run()
            assert cut.packets == whole.packets
            assert cut.ends == whole.ends
            assert [len(ends) for ends in cut.ends] == [1] * len(TEXTS)
            num_connections += cut.num_connections
        live.speech.resumption.evict_all()
    assert num_connections > 3 * num_sessions
