"""Brokers that vanish, hang, refuse or say nothing: sessions end once, everybody is told, nothing is left behind."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from realtime.config import ConfigError
from realtime.integration_config import MqttSettings
from realtime.mqtt.broker_connector import BrokerConnector
from realtime.mqtt.client import MqttSessionRejected, open_session
from realtime.mqtt.connection import BrokerDisconnected
from realtime.protocol.mqtt.messages import MqttOpen
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.certificates import self_signed
from tests.realtime.live_server import LiveServer, live_server, until
from tests.realtime.mqtt.mqtt_client import (
    Mosquitto,
    MqttTestClient,
    MqttTestSession,
    bridge_of,
    bridged,
    client,
    free_port,
    mqtt_settings,
    ready,
    running,
)

TEXT = "Hello there, how are you today? " * 20
SLOW = FakeScript(ms_per_char=60.0, real_time_factor=0.4)
NUM_SESSIONS = 8
HASH_ROUNDS = 101  # the default of mosquitto_passwd


@asynccontextmanager
async def speaking(broker: Mosquitto, live: LiveServer) -> AsyncIterator[tuple[MqttTestClient, list[MqttTestSession]]]:
    """A client with sessions in mid-speech."""
    async with client(broker) as agent:
        sessions = [await agent.open() for _ in range(NUM_SESSIONS)]
        for session in sessions:
            await session.say({"t": "text", "d": TEXT})
        await until(lambda: live.speech.num_active_responses == NUM_SESSIONS)
        yield agent, sessions


async def test_a_broker_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        async with bridged(broker, FakeSpeechEngine(SLOW)) as live:
            async with speaking(broker, live) as (agent, sessions):
                broker.kill()
                await live.freed()
                await until(agent.client._disconnected.done)
                agent.client._disconnected.exception()
            broker.start()
            async with client(broker, agent.name) as again:
                await ready(live)
                session = await again.open()
                told = [one.json for one in again.heard if one.topic in {old.events for old in sessions}]
                assert all(one == {"t": "closed", "reason": "broker_lost"} for one in told)
                await session.say({"t": "text", "d": "We speak again."}, {"t": "end"})
                assert (await session.told("done"))["heard"] == "We speak again."


async def test_a_line_of_ours_that_breaks_while_the_broker_lives(tmp_path: Path) -> None:
    """Each client is told once that its session is over, and all that we were gone."""
    with running(tmp_path) as broker:
        async with bridged(broker, FakeSpeechEngine(SLOW), mqtt__retry_min_s=0.3) as live:
            status = f"voice/v1/status/{bridge_of(live).worker}"
            async with speaking(broker, live) as (agent, sessions):
                await agent.client.subscribe("voice/v1/status/+", qos=1)
                cut_line(live)
                await agent.next_on(status, lambda heard: heard.json["state"] == "offline")
                await agent.next_on(status, lambda heard: heard.json["state"] == "online")
                for session in sessions:
                    assert await farewell(agent, session) == {"t": "closed", "reason": "broker_lost"}
                ends = [one for one in agent.heard if one.payload.startswith(b'{"t":"closed"')]
                assert len(ends) == NUM_SESSIONS
                await live.freed()


def cut_line(live: LiveServer) -> None:
    visit = bridge_of(live).handler
    assert visit is not None
    visit._line._client.socket.shutdown(2)


async def farewell(agent: MqttTestClient, session: MqttTestSession) -> object:
    for heard in agent.heard:
        if heard.topic == session.events and heard.json["t"] == "closed":
            return heard.json
    return await session.told("closed")


async def test_a_broker_that_hangs_is_given_up(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        async with bridged(broker, FakeSpeechEngine(SLOW), mqtt__response_timeout_s=0.3) as live:
            async with speaking(broker, live) as (agent, sessions):
                await sessions[0].say({"t": "flush"})  # its answer will be the first that is not acknowledged
                broker.stop_answering()
                await until(lambda: bridge_of(live).handler is None)
                await live.freed()
                broker.kill()
                await until(agent.client._disconnected.done)
                agent.client._disconnected.exception()
            broker.start()
            await ready(live)


async def test_silent_broker_is_left() -> None:
    held: list[asyncio.StreamWriter] = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = {"mqtt__url": f"mqtt://127.0.0.1:{port}", "mqtt__response_timeout_s": 0.2, "mqtt__retry_min_s": 0.05}
    async with live_server(**settings):
        await until(lambda: len(held) >= 3)
    await until(lambda: all(writer.transport.is_closing() for writer in held))
    server.close()


async def test_a_server_starts_and_stops_without_its_broker(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "voicewire.mqtt")
    async with live_server(mqtt__url=f"mqtt://127.0.0.1:{free_port()}", mqtt__retry_min_s=0.01) as live:
        async with live.http() as http:
            assert (await http.get("/readyz")).status_code == 200
        await until(lambda: len(caplog.records) >= 3)
    pauses = [record.args[1] for record in caplog.records if isinstance(record.args, tuple)]
    assert [pauses[1] / pauses[0], pauses[2] / pauses[1]] == [2, 2], "it asks less and less often"


async def test_passwords_and_what_is_forbidden(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = ("allow_anonymous false", *strict(tmp_path))
    with running(tmp_path, *files) as broker:
        at_broker = {"mqtt__url": f"mqtt://speech@127.0.0.1:{broker.port}", "mqtt__retry_min_s": 0.05}
        async with live_server(**at_broker, mqtt__password="wrong-secret"):
            await until(lambda: "broker unavailable" in caplog.text)
        assert "ot authorized" in caplog.text
        assert "secret" not in caplog.text
        async with bridged(broker, **at_broker, mqtt__password="speech-secret"):
            mine = {"username": "agent", "password": "agent-secret"}
            async with client(broker, "agent", **mine) as agent, client(broker, "thief", **mine) as thief:
                session = await agent.open()
                await thief.client.publish(session.inbox, b'{"t": "leave"}', 1)
                await session.say({"t": "text", "d": "Mine alone."}, {"t": "end"})
                assert (await session.told("done"))["heard"] == "Mine alone."


def strict(folder: Path) -> tuple[str, str]:
    """Settings by which everybody needs a password and may do what the ACL says."""
    passwords, acl = folder / "passwords", folder / "acl"
    passwords.touch(mode=0o600)
    passwords.write_text("".join(password_line(name, f"{name}-secret") for name in ("speech", "agent")))
    acl.write_text(ACL)
    return f"password_file {passwords}", f"acl_file {acl}"


def password_line(name: str, password: str) -> str:
    """A line as ``mosquitto_passwd`` writes it: PBKDF2 with SHA-512."""
    salt = os.urandom(12)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, HASH_ROUNDS)
    return f"{name}:$7${HASH_ROUNDS}${b64encode(salt).decode()}${b64encode(digest).decode()}\n"


ACL = """\
user speech
topic readwrite voice/v1/#
user agent
topic write voice/v1/open
pattern readwrite voice/v1/c/%c/#
pattern readwrite voice/v1/s/%c/#
"""


@pytest.mark.parametrize("forbidden", ["c", "s"])
async def test_session_with_forbidden_topic_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, forbidden: str
) -> None:
    """The server may not write its answers, or its events."""
    caplog.set_level(logging.INFO, "voicewire.mqtt")
    acl, allowed = tmp_path / "acl", {"c": "s/#", "s": "c/#"}[forbidden]
    written = (f"topic write voice/v1/{one}" for one in (allowed, "open", "status/#", "s/+/+/in"))
    acl.write_text("\n".join(("topic read voice/v1/#", *written, "")))
    with running(tmp_path, f"acl_file {acl}") as broker:
        async with bridged(broker) as live, client(broker) as agent:
            await agent.ask("voice/v1/open", {"sid": "deaf"})
            if forbidden == "s":
                await agent.next_on(agent.answers)
                assert sessions_of(live) == 1
                await agent.client.publish(f"voice/v1/s/{agent.name}/deaf/in", b'{"t": "ping"}', 1)
                await until(lambda: f"broker rejected publish to voice/v1/s/{agent.name}/deaf/ev" in caplog.text)
            else:
                await until(lambda: "client message rejected" in caplog.text)
            await until(lambda: sessions_of(live) == 0)


def sessions_of(live: LiveServer) -> int:
    visit = bridge_of(live).handler
    assert visit is not None
    return visit.sessions.num_sessions


async def test_a_broker_that_refuses_a_subscription(caplog: pytest.LogCaptureFixture) -> None:
    """Mosquitto says yes to all of them, and keeps to itself what may not be read."""

    async def strict_broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_000)
        writer.write(b"\x20\x03\0\0\0")  # CONNACK
        subscribe = await reader.read(1_000)
        writer.write(b"\x90\x04" + subscribe[2:4] + b"\0\x87")  # SUBACK: not authorized
        await reader.read()
        writer.close()

    server = await asyncio.start_server(strict_broker, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with live_server(mqtt__url=f"mqtt://127.0.0.1:{port}", mqtt__retry_min_s=0.01):
        await until(lambda: caplog.text.count("the broker refuses the subscription to voice/v1/c/+/gone") >= 2)
    server.close()


async def test_tls(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    port = free_port()
    tls = (f"listener {port} 127.0.0.1", f"certfile {certificate}", f"keyfile {key}")
    with running(tmp_path, *tls) as broker:
        settings = {"mqtt__url": f"mqtts://127.0.0.1:{port}", "mqtt__tls_ca": str(certificate)}
        async with bridged(broker, **settings), client(broker) as agent:
            session = await agent.open()
            await session.say({"t": "ping"})
            await session.told("pong")
        with pytest.raises(BrokerDisconnected, match="certificate verify failed"):
            async with BrokerConnector(MqttSettings(url=f"mqtts://127.0.0.1:{port}"), "stranger").connected():
                pass


def test_files_that_are_not_there_are_named() -> None:
    with pytest.raises(ConfigError, match=r"mqtt\.tls_ca = nowhere\.pem"):
        BrokerConnector(MqttSettings(url="mqtts://127.0.0.1", tls_ca="nowhere.pem"), "x")


async def test_silent_server_times_out_the_client(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        settings = mqtt_settings(broker.port, response_timeout_s=0.2)
        with pytest.raises(MqttSessionRejected, match="no server answers on voice/v1/open"):
            async with open_session(settings, MqttOpen()):
                pass


async def test_client_cancelled_while_connecting_leaves_nothing() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    broker = BrokerConnector(mqtt_settings(port, response_timeout_s=0.3), "x")
    connecting = asyncio.create_task(broker.connected().__aenter__())
    await asyncio.sleep(0.1)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    server.close()


async def test_a_server_that_connects_while_it_drains_stands_aside(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        async with bridged(broker) as leaving:
            leaving.speech.draining = True
            cut_line(leaving)
            async with bridged(broker) as staying, client(broker) as agent:
                await agent.client.subscribe("voice/v1/status/+", qos=1)
                topic = f"voice/v1/status/{bridge_of(leaving).worker}"
                await agent.next_on(topic, lambda heard: heard.json["state"] == "draining")
                assert {(await agent.open()).answer["worker"] for _ in range(4)} == {bridge_of(staying).worker}


async def test_internal_error_in_session_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: bytes) -> None:
        raise KeyError("a fault of ours")

    monkeypatch.setattr("realtime.protocol.mqtt.messages.parse_say", broken)
    with running(tmp_path) as broker:
        async with bridged(broker) as live, client(broker) as agent:
            session, visit = await agent.open(), bridge_of(live).handler
            await agent.ask("voice/v1/say", {"text": "Hello."})
            await session.say({"t": "ping", "d": "still there?"})
            assert (await session.told("pong"))["d"] == "still there?"
            assert bridge_of(live).handler is visit
