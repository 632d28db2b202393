"""The door: real HAProxy in front of real gateways that come, drain and die."""

from __future__ import annotations

import asyncio
import signal
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2 as httpx
import pytest

from engine.address import EngineAddress
from realtime.cluster.config import ClientTls, ClusterConfig, DoorSettings
from realtime.cluster.door import DoorReplica
from realtime.cluster.haproxy import admin_command
from realtime.cluster.replica import Members, ReplicaSpec
from realtime.cluster.scaling import ReplicaStatus
from tests.cluster.callers import load, speak_reply
from tests.cluster.conftest import GatewayProcess
from tests.engine.served_engine import StoppableProxy
from tests.realtime.certificates import self_signed
from tests.realtime.live_server import NO_CERTIFICATES, WAIT_S

pytestmark = pytest.mark.timeout(240)

HAPROXY = pytest.mark.cluster("haproxy")
KEY = "0123456789abcdef"


@contextmanager
def open_door(config: ClusterConfig) -> Iterator[DoorReplica]:
    door = DoorReplica(ReplicaSpec(name="door", kind="door", generation="1", config=config), "127.0.0.1")
    try:
        yield door
    finally:
        door.kill()


def report_until(door: DoorReplica, state: str, *gateways) -> None:
    end_s = time.monotonic() + WAIT_S
    while (found := door.report(Members(gateways=gateways)).state) != state:
        assert found != "gone"
        assert time.monotonic() < end_s
        time.sleep(0.05)


def get(port: int, path: str = "/v1/where", **headers: str) -> httpx.Response:
    with httpx.Client(trust_env=False, verify=NO_CERTIFICATES) as client:
        return client.get(f"http://127.0.0.1:{port}{path}", headers=headers)


def where_config(port: int, **settings: object) -> ClusterConfig:
    return ClusterConfig(door=DoorSettings(port=port), **settings)


def test_where_without_a_ready_gateway_answers_503(free_port):
    with open_door(where_config(free_port)) as door:
        door.report(Members())
        answer = get(free_port)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_dead")
    assert answer.headers["Retry-After"] == "1"


def test_where_spreads_clients_by_their_connections(free_port):
    def gateway(name: str, state: str) -> ReplicaStatus:
        return ReplicaStatus(name=name, kind="gateway", generation="1", state=state, url=f"ws://{name}")

    first, second = gateway("a", "ready"), gateway("b", "ready")
    with open_door(where_config(free_port)) as door:
        door.report(Members(gateways=(first, second, gateway("c", "draining"))))
        urls = [get(free_port).json()["url"] for _ in range(4)]
    assert sorted(urls) == ["ws://a", "ws://a", "ws://b", "ws://b"]


def test_where_without_news_keeps_its_gateways(free_port):
    """A new controller asks before it knows."""
    gateway = ReplicaStatus(name="a", kind="gateway", generation="1", state="ready", url="ws://a")
    with open_door(where_config(free_port)) as door:
        door.report(Members(gateways=(gateway,)))
        assert door.report(None).state == "ready"
        assert get(free_port).json() == {"url": "ws://a"}


def test_where_with_keys_refuses_a_caller_without_one(free_port, tmp_path):
    (tmp_path / "keys.toml").write_text(f'[[keys]]\nname = "agent"\nkey = "{KEY}"\n')
    (tmp_path / "secret").write_text("s" * 32)
    files = {"keys_file": str(tmp_path / "keys.toml"), "token_secret_file": str(tmp_path / "secret")}
    with open_door(where_config(free_port, **files)) as door:
        door.report(Members())
        assert get(free_port).status_code == 401
        assert get(free_port, Authorization=f"Bearer {KEY}").status_code == 503


@HAPROXY
async def test_haproxy_keeps_sockets_over_membership_changes(free_port, start_gateway):
    """Gateways come and go behind the door; every reply that began is heard whole, also on a gateway that drains."""
    first, second = (start_gateway(name) for name in "ab")
    with open_door(ClusterConfig(door=DoorSettings(port=free_port, haproxy=True))) as door:
        await asyncio.to_thread(report_until, door, "ready", first.status())

        async def url() -> str:
            return f"ws://127.0.0.1:{free_port}"

        async with load(url, num_callers=12) as work:
            await completed(work, 12)
            for members in (
                (first.status(), second.status()),
                (first.status("draining"), second.status()),
            ):
                door.report(Members(gateways=members))
                await completed(work, 6)
            first.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(first.process.wait, WAIT_S) == 0
            door.report(Members(gateways=(second.status(),)))
            await completed(work, 12)
    assert work.cut == []
    assert set(work.outcomes) == {"completed"}


@HAPROXY
async def test_haproxy_kill_of_a_gateway_leaves_others(free_port, start_gateway):
    first, second = (start_gateway(name) for name in "ab")
    with open_door(ClusterConfig(door=DoorSettings(port=free_port, haproxy=True))) as door:
        await asyncio.to_thread(report_until, door, "ready", second.status())
        url = f"ws://127.0.0.1:{free_port}"
        others = [asyncio.create_task(speak_reply(url, "x" * 80)) for _ in range(4)]
        await until_connected(second, 4)
        door.report(Members(gateways=(first.status(), second.status())))
        lost = [asyncio.create_task(speak_reply(url, "x" * 80)) for _ in range(4)]
        await until_connected(first, 4)
        first.process.kill()
        assert await asyncio.gather(*others) == ["completed"] * 4
        assert all(outcome.startswith("cut") for outcome in await asyncio.gather(*lost))
        # Before the next report too: the connection is refused, and HAProxy takes another gateway.
        assert await speak_reply(url, "x") == "completed"


@HAPROXY
def test_haproxy_slot_of_a_gone_gateway_is_used_again(free_port, start_gateway):
    with open_door(ClusterConfig(door=DoorSettings(port=free_port, haproxy=True))) as door:
        gateways = [start_gateway("a")] * 3
        for number, gateway in enumerate(gateways):
            gateway.name = str(number)
            report_until(door, "ready", gateway.status())
        servers = admin_command(door._admin_socket, "show servers state gateways").splitlines()
        assert [line.split()[18] for line in servers if " 127.0.0.1 " in line and line.split()[18] != "9"] == [
            str(gateways[0].port)
        ]


@HAPROXY
async def test_haproxy_drained_door_keeps_tunnels(free_port, start_gateway):
    gateway = start_gateway("a")
    config = ClusterConfig(door=DoorSettings(port=free_port, haproxy=True))
    with open_door(config) as old, open_door(config) as new:
        for door in (old, new):
            await asyncio.to_thread(report_until, door, "ready", gateway.status())
        url = f"ws://127.0.0.1:{free_port}"
        replies = [asyncio.create_task(speak_reply(url, "x" * 80)) for _ in range(8)]
        await until_connected(gateway, 8)
        old.drain()
        assert await asyncio.gather(*replies) == ["completed"] * 8
        await asyncio.to_thread(report_until, old, "gone")
        assert await speak_reply(url, "x") == "completed"
        assert get(free_port).json() == {"url": gateway.url}


@HAPROXY
async def test_haproxy_over_tls_speaks_with_known_gateways_only(free_port, start_gateway, tmp_path):
    """Clients check the door's certificate, and the door that of each gateway."""
    known, stranger = tmp_path / "known", tmp_path / "stranger"
    certificates = {}
    for folder in (known, stranger):
        folder.mkdir()
        certificate, key = self_signed(folder, "voice.test")
        certificates[folder] = {"listen__tls_certificate": certificate, "listen__tls_key": key}
    gateways = [start_gateway(folder.name, **files) for folder, files in certificates.items()]
    tls = ClientTls(
        certificate=str(known / "cert.pem"), key=str(known / "key.pem"), ca=str(known / "cert.pem"), name="voice.test"
    )
    trust = ssl.create_default_context(cafile=tls.ca)
    trust.check_hostname = False
    with open_door(ClusterConfig(door=DoorSettings(port=free_port, haproxy=True), tls=tls)) as door:
        url = f"wss://127.0.0.1:{free_port}"
        await asyncio.to_thread(report_until, door, "ready", gateways[1].status())
        assert "503" in await speak_reply(url, "x", trust)
        door.report(Members(gateways=tuple(gateway.status() for gateway in gateways)))
        assert [await speak_reply(url, "x" * 20, trust) for _ in range(3)] == ["completed"] * 3
        assert "CERTIFICATE_VERIFY_FAILED" in await speak_reply(url, "x", ssl.create_default_context())
        assert (await speak_reply(url.replace("wss", "ws"), "x")).startswith("refused")


@HAPROXY
async def test_haproxy_cut_off_from_gateways_refuses_new_clients(free_port, start_gateway):
    """What speaks is late and whole afterwards, and nothing is spoken twice; new clients go elsewhere or get 503."""
    gateway, other = (start_gateway(name) for name in "ab")
    target = EngineAddress(host="127.0.0.1", port=gateway.port)
    config = ClusterConfig(door=DoorSettings(port=free_port, haproxy=True))
    async with StoppableProxy(target).open() as proxy:
        cut_off = gateway.status(port=proxy.address.port)
        with open_door(config) as door:
            await asyncio.to_thread(report_until, door, "ready", cut_off)
            url = f"ws://127.0.0.1:{free_port}"
            replies = [asyncio.create_task(speak_reply(url, "x" * 200)) for _ in range(8)]
            await until_connected(gateway, 8)
            proxy.stop()
            await until_down(door)
            assert "503" in await speak_reply(url, "x")
            door.report(Members(gateways=(cut_off, other.status())))
            assert [await speak_reply(url, "x") for _ in range(3)] == ["completed"] * 3
            assert not any(reply.done() for reply in replies)
            proxy.go_on()
            assert await asyncio.gather(*replies) == ["completed"] * 8


async def until_down(door: DoorReplica) -> None:
    """Wait until HAProxy takes its first slot for down: column 5 is the operational state."""
    async with asyncio.timeout(WAIT_S):
        while True:
            lines = (await asyncio.to_thread(admin_command, door._admin_socket, "show servers state gateways")).split(
                "\n"
            )
            if next(line.split()[5] for line in lines if "gateway1 " in line) == "0":
                return
            await asyncio.sleep(0.1)


async def completed(work, num_more: int) -> None:
    """Wait until so many more replies are complete."""
    wanted = work.outcomes["completed"] + num_more
    async with asyncio.timeout(WAIT_S):
        while work.outcomes["completed"] < wanted:
            assert work.cut == []
            await asyncio.sleep(0.05)


async def until_connected(gateway: GatewayProcess, num_connections: int) -> None:
    async with asyncio.timeout(WAIT_S), httpx.AsyncClient(trust_env=False, verify=NO_CERTIFICATES) as client:
        while True:
            text = (await client.get(f"http://127.0.0.1:{gateway.port}/metrics")).text
            if f"voicewire_active_responses {num_connections}.0" in text:
                return
            await asyncio.sleep(0.05)
