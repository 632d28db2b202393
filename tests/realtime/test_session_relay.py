"""A session resumes at any gateway: here two gateways in one process, and clients that reach them in turn."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import random
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from realtime.calls.gateway_hub import GatewayHub
from realtime.client import NativeClient, open_session
from realtime.protocol import events as ev
from realtime.resumption import TokenClaims, digest_key_name
from realtime.server import RESUME_PURPOSE
from tests.fakes.engine import FakeSpeechEngine
from tests.realtime.live_server import LiveServer, close_code, hear, live_server, until
from tests.realtime.test_resume import (
    FORMATS,
    KEYS,
    RESUMABLE,
    SCRIPT,
    VONAGE,
    CuttingProxy,
    Listener,
    ResumingAgent,
    check_cut_reply,
    dial_agent,
    key_press,
    resume,
    settings_of,
    speak,
    start_reply,
)

KEY, OTHER_KEY = "0123456789abcdef", "fedcba9876543210"
SECRET = "a secret of this test, which all gateways have"


@asynccontextmanager
async def gateways(**flags: object) -> AsyncIterator[list[LiveServer]]:
    """Two gateways that know each other. All that they held is free again in the end."""
    flags = {"limits__resume_grace_s": 30, "auth__token_secret": SECRET} | flags
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        await stack.enter_async_context(GatewayHub().open(folder / "exchange"))
        yield [
            await stack.enter_async_context(
                live_server(FakeSpeechEngine(SCRIPT), folder / "exchange", gateway, **flags)
            )
            for gateway in range(2)
        ]


class TurningProxy(CuttingProxy):
    """Leads each connection to the next gateway."""

    def __init__(self, lives: list[LiveServer]) -> None:
        super().__init__(0)
        self._ports = itertools.cycle(live.port for live in lives)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.upstream_port = next(self._ports)
        await super().serve(reader, writer)


@asynccontextmanager
async def turning_proxy(lives: list[LiveServer]) -> AsyncIterator[tuple[TurningProxy, str]]:
    proxy = TurningProxy(lives)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    async with server:
        yield proxy, f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("pace", "num_replies", "seed"),
    [("burst", 4, 0), ("lead", 2, 0), *(pytest.param("burst", 250, n, marks=pytest.mark.slow) for n in range(1, 6))],
)
@pytest.mark.parametrize("name", list(FORMATS))
async def test_cuts_between_gateways_change_no_packet(name: str, pace: str, num_replies: int, seed: int) -> None:
    rng = random.Random(f"{name} {pace} {seed}")
    num_connections = 0
    async with gateways(limits__resume_grace_s=3) as lives:
        whole = await speak(lives[0], settings_of(name, pace))
        for _ in range(num_replies):
            async with turning_proxy(lives) as (proxy, url):
                cut = Listener(url, settings_of(name, pace))
                await check_cut_reply(cut, proxy, whole, rng)
            num_connections += cut.num_connections
    assert num_connections > 3 * num_replies


@pytest.mark.parametrize("seed", range(3))
async def test_agent_cut_between_gateways_misses_nothing(seed: int) -> None:
    rng, num_keys, num_replies = random.Random(seed), 60, 20
    async with gateways() as lives, turning_proxy(lives) as (proxy, url):
        line = await connect(lives[seed % 2].url + "/v1/calls/vonage", compression=None, proxy=None)
        await line.send(VONAGE)
        await until(lambda: all(live.speech.relay._switchboard.calls("local") for live in lives))
        [call] = lives[0].speech.relay._switchboard.calls("local")
        proxy.budgets = [rng.randrange(400, 4_000) for _ in range(6)]
        say = {"type": "say", "call_id": call.call_id, "text": "Well,", "end": False}
        agent = ResumingAgent(url, [json.dumps(say | {"reply_id": f"r{n}"}) for n in range(num_replies)])
        async with asyncio.timeout(60):
            running = asyncio.create_task(agent.run(1 + num_keys + num_replies))
            await until(lambda: bool(agent.events))
            for digit in range(num_keys):
                await line.send(key_press(digit % 10))
                await asyncio.sleep(0.002)
            await running
        await line.close()
        assert [event["digit"] for event in agent.events if event["type"] == "call.dtmf"] == list("0123456789" * 6)
        accepted = [event["reply_id"] for event in agent.events if event["type"] == "reply.accepted"]
        assert accepted == [f"r{n}" for n in range(num_replies)]
        assert agent.num_connections > 2
        lives[0].speech.resumption.evict_all()


@pytest.mark.parametrize("wrong", [{"received_events": "9"}, {"received_events": "x"}, {"resume_token": "x"}])
async def test_refusal_by_an_agents_gateway_is_passed_on(wrong: dict[str, str]) -> None:
    async with gateways(auth__api_keys=KEYS) as (owner, other), dial_agent(owner, resume="true") as first:
        created = json.loads(await first.recv())
        given = {name: created[name] for name in ("session_id", "resume_token")} | {"received_events": "0"}
        statuses, bodies = [], []
        for live in (owner, other):
            with pytest.raises(InvalidStatus) as refusal:
                await dial_agent(live, **given | wrong)
            statuses.append(refusal.value.response.status_code)
            bodies.append(refusal.value.response.body)
        assert bodies[0] == bodies[1]
        assert statuses[0] == statuses[1]
        async with dial_agent(other, **given) as second:
            assert json.loads(await second.recv())["type"] == "session.resumed"
            with pytest.raises(ConnectionClosed) as closed:
                await first.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 4409


async def test_open_socket_at_another_gateway_is_replaced() -> None:
    async with gateways() as (owner, other):
        first = await open_session(owner.url + RESUMABLE)
        session_id, token = await start_reply(first)
        for gateway in (other, owner, other):
            second = await open_session(gateway.url + RESUMABLE)
            resumed = await resume(second, session_id, token, received_samples=0)
            assert isinstance(resumed, ev.SessionResumed)
            assert await close_code(first) == 4409
            first, token = second, resumed.token
        assert (owner.speech.num_connections, other.speech.num_connections) == (1, 1)
        await first.send(ev.TextEnd(response_id="r"))
        assert (await hear(first)).done.status == "completed"
        await first.send(ev.SessionClose())
        assert await close_code(first) == 1000


async def test_relayed_client_is_counted_by_its_own_gateway() -> None:
    async with gateways(limits__max_connections=1) as (owner, other):
        first = await open_session(owner.url + RESUMABLE)
        session_id, token = await start_reply(first)
        second = await open_session(other.url + RESUMABLE)
        assert isinstance(await resume(second, session_id, token), ev.SessionResumed)
        await until(lambda: owner.speech.registry.statistics().num_sessions == 1)
        assert other.speech.registry.statistics().num_sessions == 0
        async with owner.session():
            pass
        await second.aclose()


async def lose_gateway(owner: LiveServer) -> None:
    """What clients see of a gateway that is killed."""
    for connection in list(owner.speech._connections):
        connection._link.abort()  # type: ignore[attr-defined]


async def test_relayed_client_of_a_lost_gateway_is_closed() -> None:
    async with gateways() as (owner, other):
        first = await open_session(owner.url + RESUMABLE)
        session_id, token = await start_reply(first)
        second = await open_session(other.url + RESUMABLE)
        assert isinstance(await resume(second, session_id, token, received_samples=0), ev.SessionResumed)
        await close_code(first)
        await until(lambda: owner.speech.num_connections == 1)
        await lose_gateway(owner)
        assert await close_code(second) == 1012
        owner.speech.resumption.evict_all()


async def test_draining_gateway_closes_relayed_clients() -> None:
    async with gateways() as (owner, other):
        first = await open_session(owner.url + RESUMABLE)
        session_id, token = await start_reply(first)
        second = await open_session(other.url + RESUMABLE)
        resumed = await resume(second, session_id, token, received_samples=0)
        assert isinstance(resumed, ev.SessionResumed)
        other.speech.draining = True
        assert await close_code(second) == 1012
        # The session's gateway goes on.
        third = await open_session(owner.url + RESUMABLE)
        assert isinstance(await resume(third, session_id, resumed.token), ev.SessionResumed)
        await third.aclose()


async def refusal_of(client: NativeClient, session_id: str, token: str) -> str:
    refused = await resume(client, session_id, token)
    assert isinstance(refused, ev.ErrorEvent)
    assert refused.code == "resume_refused"
    return refused.message


CAUSES = ("malformed", "forged", "expired", "foreign", "replayed", "gone")


@pytest.mark.parametrize("where", [0, 1])
async def test_refused_tokens_differ_in_logs_alone(where: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "voicewire.connection")
    async with gateways(auth__api_keys=KEYS) as lives:
        first = await open_session(lives[0].url + RESUMABLE, api_key=KEY)
        session_id, token = await start_reply(first)
        second = await open_session(lives[0].url + RESUMABLE, api_key=KEY)
        resumed = await resume(second, session_id, token, received_samples=0)
        assert isinstance(resumed, ev.SessionResumed)
        await second.send(ev.PlaybackReport(response_id="r", played_ms=0))  # confirms the new token
        secret = lives[0].speech.gatekeeper.derive_secret(RESUME_PURPOSE)
        claims = TokenClaims.parse(resumed.token, secret)
        expired = claims._replace(expires_s=int(time.time()) - 1)
        tokens = {
            "malformed": "x" * 100_000,
            "forged": resumed.token[:-1] + ("0" if resumed.token[-1] != "0" else "1"),
            "expired": expired.sign(secret),
            "foreign": claims._replace(key_digest=digest_key_name("two")).sign(secret),
            "replayed": token,
            "gone": claims._replace(gateway=7).sign(secret),
        }
        async with open_client(lives[where], KEY) as client:
            caplog.clear()
            messages = {await refusal_of(client, session_id, tokens[cause]) for cause in CAUSES}
            logged = [record.code for record in caplog.records if record.message == "resume refused"]
            assert (len(messages), logged) == (1, list(CAUSES))
            # The refused connection has a session of its own, and the owner's goes on.
            await client.send(ev.ResponseCreate(response_id="own", text="Hello.", end=True))
            assert (await hear(client)).done.status == "completed"
        async with open_client(lives[where], OTHER_KEY) as client:
            await refusal_of(client, session_id, resumed.token)
        async with open_client(lives[where], KEY) as client:
            assert isinstance(await resume(client, session_id, resumed.token), ev.SessionResumed)
            await client.send(ev.SessionClose())


@asynccontextmanager
async def open_client(live: LiveServer, api_key: str) -> AsyncIterator[NativeClient]:
    client = await open_session(live.url + RESUMABLE, api_key=api_key)
    try:
        yield client
    finally:
        await client.aclose()


async def test_frame_beyond_the_limit_ends_that_relay_alone() -> None:
    async with gateways() as (owner, other):
        relay = owner.speech.relay
        assert relay is not None
        for junk in (b"\x01\xff\xff\xff\xff", b"\x01\0\0\0\2{}", b""):
            reader, writer = await asyncio.open_unix_connection(relay._path(0))
            writer.write(junk)
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
        first = await open_session(owner.url + RESUMABLE)
        session_id, token = await start_reply(first)
        second = await open_session(other.url + RESUMABLE)
        assert isinstance(await resume(second, session_id, token), ev.SessionResumed)
        await second.aclose()
