"""TLS connections that do not finish their handshake, and one server for plain and TLS clients."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import httpx2 as httpx
import pytest

from realtime.client import open_session
from realtime.config import ConfigError, ListenSettings
from realtime.transports.listener import open_listeners
from tests.realtime.certificates import self_signed
from tests.realtime.live_server import WAIT_S, LiveServer, live_server, speak, until

DEVICES = {"xiaozhi__mqtt_enabled": True, "xiaozhi__mqtt_port": 0, "xiaozhi__udp_port": 0}


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, str]:
    certificate, key = self_signed(tmp_path)
    return {"listen__tls_certificate": str(certificate), "listen__tls_key": str(key)}


def http_port(live: LiveServer) -> int:
    return live.port


def device_port(live: LiveServer) -> int:
    port = live.uvicorn.config.app.state.device_ports.port
    assert isinstance(port, int)
    return port


@pytest.mark.parametrize("port_of", [http_port, device_port])
async def test_silent_tls_connections_end_in_time(tls: dict[str, str], port_of: Callable[[LiveServer], int]) -> None:
    async with live_server(**tls, **DEVICES, listen__handshake_timeout_s=0.5) as live:
        async with asyncio.timeout(WAIT_S):
            readers = [await dial(port_of(live)) for _ in range(30)]
            for reader, writer in readers:
                assert await has_ended(reader)
                writer.close()


@pytest.mark.parametrize("port_of", [http_port, device_port])
async def test_silent_tls_connections_make_way(tls: dict[str, str], port_of: Callable[[LiveServer], int]) -> None:
    """The oldest handshakes end where there are more than max_http_connections, and honest clients come through."""
    limits = {"limits__max_http_connections": 8, "listen__handshake_timeout_s": 60}
    async with live_server(**tls, **DEVICES, **limits) as live, AsyncExitStack() as opened:
        dialled = []
        for _ in range(40):
            dialled.append(await dial(port_of(live)))
            opened.callback(dialled[-1][1].close)
        async with asyncio.timeout(WAIT_S):
            trust = ssl.create_default_context(cafile=tls["listen__tls_certificate"])
            _, writer = await asyncio.open_connection("127.0.0.1", port_of(live), ssl=trust)
            writer.close()
            for reader, _ in dialled[:33]:
                assert await has_ended(reader)
        await asyncio.sleep(0.1)
        assert not any(reader.at_eof() for reader, _ in dialled[33:])


async def dial(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def has_ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def test_one_server_listens_plain_and_with_tls(tls: dict[str, str]) -> None:
    async with live_server(**tls, listen__tls_port=0) as live:
        assert live.tls_port not in (None, live.port)
        secure = f"//127.0.0.1:{live.tls_port}"
        trust = ssl.create_default_context(cafile=tls["listen__tls_certificate"])
        async with await open_session(live.url) as plain, await open_session(f"wss:{secure}", trust=trust) as client:
            for one in (plain, client):
                assert (await speak(one, "Hello there.")).done.status == "completed"
        async with live.http() as http, httpx.AsyncClient(verify=trust, trust_env=False) as https:
            assert (await http.get("/healthz")).status_code == 200
            assert (await https.get(f"https:{secure}/healthz")).status_code == 200
            page = {"Origin": f"https:{secure}"}
            assert (await https.get(f"https:{secure}/v1/voices", headers=page)).status_code == 200
        with pytest.raises(OSError):  # noqa: PT011
            await open_session(f"wss://127.0.0.1:{live.port}", trust=trust)
        await live.freed()


async def test_curl_reaches_both_ports(tls: dict[str, str]) -> None:
    if (curl := shutil.which("curl")) is None:
        pytest.skip("curl is not installed")
    async with live_server(**tls, listen__tls_port=0, listen__tls_host="localhost") as live:
        for url in (f"http://127.0.0.1:{live.port}/healthz", f"https://127.0.0.1:{live.tls_port}/healthz"):
            command = [curl, "-sS", "--noproxy", "*", "--cacert", tls["listen__tls_certificate"], url]
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            assert (await process.communicate())[0] == b'{"status":"ok"}'


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tls_port": 0}, r"listen\.tls_port = 0 needs listen\.tls_certificate"),
        ({"tls_host": "::1"}, r"listen\.tls_host = '::1' needs listen\.tls_port"),
        ({"port": 8_443, "tls_port": 8_443, "tls_certificate": "c"}, r"listen\.tls_port = 8443"),
    ],
)
def test_tls_ports_that_cannot_be_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_listeners(ListenSettings(**settings))  # type: ignore[arg-type]


async def test_out_of_file_descriptors_is_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients that wait are served when there are some again."""
    monkeypatch.setattr("realtime.transports.acceptor.ACCEPT_PAUSE_S", 0.05)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with live_server() as live:
        with socket.socket() as client:
            client.setblocking(False)
            with socket.socket() as last:
                resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno() + 1, hard))
                held = take_all_files()
                try:
                    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", live.port))
                    await until(lambda: bool(live.uvicorn.acceptor._pauses))
                    assert not live.uvicorn.server_state.connections
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                    for descriptor in held:
                        os.close(descriptor)
            await until(lambda: len(live.uvicorn.server_state.connections) == 1)
            assert not live.uvicorn.acceptor._pauses


def take_all_files() -> list[int]:
    held: list[int] = []
    with suppress(OSError):
        while True:
            held.append(os.dup(0))
    return held


async def test_a_connection_in_its_handshake_ends_with_the_server(tls: dict[str, str]) -> None:
    async with live_server(**tls) as live:
        reader, writer = await dial(live.port)
        await until(lambda: bool(live.uvicorn.acceptor._handshakes))
    assert await asyncio.wait_for(has_ended(reader), WAIT_S)
    writer.close()
