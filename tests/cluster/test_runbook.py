"""Procedures of docs/guides/operations.md: real servers with the embedded voice behind HAProxy, under callers."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import httpx2 as httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from realtime.client import NativeClient, open_session
from realtime.cluster.haproxy import admin_command
from realtime.protocol import events as ev
from tests.realtime.live_server import until
from tests.realtime.server_process import wire_address

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not shutil.which("haproxy"), reason="no program haproxy here"),
]

OLD_KEY, NEW_KEY = "the-old-key-of-ann-1", "the-new-key-of-ann-2"
TEXT = "One two three four five. Six seven eight nine ten."
HAPROXY = """\
global
    stats socket {socket} mode 600 level admin
defaults
    mode http
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    timeout tunnel 25h
frontend door
    bind 127.0.0.1:{door}
    default_backend voicewire
backend voicewire
    option httpchk GET /readyz
    server blue 127.0.0.1:{blue} check inter 200ms
    server green 127.0.0.1:{green} check inter 200ms
"""


class Site:
    """HAProxy before two addresses, blue and green, and the keys file of the servers there."""

    def __init__(self, folder: Path, ports: list[int], servers: ExitStack) -> None:
        """``servers`` ends the servers that still run."""
        self.folder = folder
        self.ports = dict(zip(("door", "blue", "green"), ports, strict=True))
        self.admin_socket = folder / "haproxy.sock"
        self.keys_file = folder / "keys.toml"
        self.config = folder / "haproxy.cfg"
        self.config.write_text(HAPROXY.format(socket=self.admin_socket, **self.ports))
        self.write_keys(OLD_KEY)
        self._servers = servers

    def url(self, name: str = "door") -> str:
        return f"ws://127.0.0.1:{self.ports[name]}"

    def write_keys(self, *keys: str) -> None:
        entries = (f'[[keys]]\nname = "ann-{number}"\nkey = "{key}"\n' for number, key in enumerate(keys))
        self.keys_file.write_text("".join(entries))

    async def start(self, name: str) -> subprocess.Popen[bytes]:
        """Start a server, and wait until the door sends connections to it."""
        process = self._servers.enter_context(self._serve(name))
        assert process.stdout is not None
        await asyncio.to_thread(wire_address, process.stdout)
        admin_command(self.admin_socket, f"set server voicewire/{name} state ready")
        await until(lambda: self._is_up(name))
        return process

    async def replace(self, process: subprocess.Popen[bytes], name: str) -> None:
        """Stop a server: it gets no new connection first, and drains."""
        admin_command(self.admin_socket, f"set server voicewire/{name} state drain")
        process.terminate()
        assert await asyncio.to_thread(process.wait, 60) == 0

    def _is_up(self, name: str) -> bool:
        lines = admin_command(self.admin_socket, "show stat").splitlines()
        return any(line.startswith(f"voicewire,{name},") and ",UP," in line for line in lines)

    @contextmanager
    def _serve(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        options = ["--port", str(self.ports[name]), "--keys-file", str(self.keys_file)]
        environment = os.environ | {"XDG_DATA_HOME": str(self.folder)}
        command = [sys.executable, "-m", "realtime.cli", "serve", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as process:
            yield process
            process.kill()


@pytest.fixture
def site(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> Iterator[Site]:
    with ExitStack() as servers:
        found = Site(tmp_path, free_ports(3), servers)
        with subprocess.Popen(["haproxy", "-f", found.config], stderr=subprocess.DEVNULL) as haproxy:
            yield found
            haproxy.kill()


class Caller:
    """Speaks reply after reply at the door, and connects again where a server drains."""

    def __init__(self, url: str, key: str) -> None:
        self.url, self.key = url, key
        self.ends: Counter[str] = Counter()
        self.num_connections = 0
        self.is_stopped = False

    async def run(self) -> None:
        while not self.is_stopped:
            try:
                async with await open_session(self.url, api_key=self.key) as client:
                    self.num_connections += 1
                    while not self.is_stopped:
                        self.ends[await self._speak(client)] += 1
            except ConnectionClosed:
                self.ends["closed between replies"] += 1
            except InvalidStatus as error:
                self.ends[f"refused {error.response.status_code}"] += 1
                await asyncio.sleep(0.05)

    async def _speak(self, client: NativeClient) -> str:
        await client.send(ev.ResponseCreate(settings=ev.NativeSpeechSettings(pace="burst"), text=TEXT, end=True))
        has_audio = False
        async for event in client:
            has_audio = has_audio or isinstance(event, ev.AudioMessage)
            if isinstance(event, ev.ResponseDone):
                return event.error.code if event.error else event.status
        if has_audio:
            return "cut"
        raise ConnectionClosed(None, None)


@asynccontextmanager
async def calling(site: Site, *keys: str) -> AsyncIterator[list[Caller]]:
    """Callers that have spoken once. At the end each completes another reply, and none was cut."""
    callers = [Caller(site.url(), key) for key in keys]
    async with asyncio.TaskGroup() as tasks:
        for caller in callers:
            tasks.create_task(caller.run())
        await until(lambda: all(caller.ends["completed"] for caller in callers))
        yield callers
        before = {caller: caller.ends["completed"] for caller in callers}
        await until(lambda: all(caller.ends["completed"] > before[caller] for caller in callers))
        for caller in callers:
            caller.is_stopped = True
    for caller in callers:
        # What a client repeats without a loss: no word of it was spoken.
        assert caller.ends.keys() <= {"completed", "draining", "closed between replies"}, caller.ends


async def test_upgrade_behind_a_proxy_cuts_no_reply(site: Site) -> None:
    old = await site.start("blue")
    async with calling(site, OLD_KEY, OLD_KEY) as callers:
        new = await site.start("green")
        await site.replace(old, "blue")
        await until(lambda: all(caller.num_connections == 2 for caller in callers))
        await site.start("blue")
        await site.replace(new, "green")
        await until(lambda: all(caller.num_connections == 3 for caller in callers))


async def test_key_is_rotated_while_clients_speak(site: Site) -> None:
    first = await site.start("blue")
    async with calling(site, OLD_KEY) as [caller]:
        site.write_keys(OLD_KEY, NEW_KEY)
        second = await site.start("green")
        await site.replace(first, "blue")
        caller.key = NEW_KEY
        site.write_keys(NEW_KEY)
        await site.start("blue")
        await site.replace(second, "green")
        await until(lambda: caller.num_connections == 3)
        await refuses(site.url(), OLD_KEY)


async def refuses(url: str, key: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await open_session(url, api_key=key)
    assert refused.value.response.status_code == 401


async def accepts(url: str, key: str) -> None:
    await (await open_session(url, api_key=key)).aclose()


async def test_new_token_secret_ends_all_tokens(site: Site) -> None:
    url = site.url("blue")

    async def mint() -> str:
        async with httpx.AsyncClient(base_url=url.replace("ws", "http", 1), trust_env=False, timeout=60) as http:
            return str((await http.post("/v1/tokens", json={}, headers={"x-api-key": OLD_KEY})).json()["token"])

    server = await site.start("blue")
    token = await mint()
    await site.replace(server, "blue")
    server = await site.start("blue")  # a restart alone changes nothing
    await accepts(url, token)
    await site.replace(server, "blue")
    (site.folder / "voicewire" / "token-secret").unlink()
    await site.start("blue")
    await refuses(url, token)
    await accepts(url, await mint())
