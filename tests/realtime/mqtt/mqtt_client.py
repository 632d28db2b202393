"""A real Mosquitto, a server at it, and a client of the bridge."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiomqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from realtime.config import replace_constants
from realtime.integration_config import MqttSettings
from realtime.mqtt.bridge import MqttBridge
from tests.fakes.engine import FakeSpeechEngine
from tests.realtime.live_server import WAIT_S, LiveServer, live_server, until

READY_S = 10.0


def program() -> str:
    """Skips the test where there is none."""
    folders = [Path(folder) for folder in os.environ.get("PATH", os.defpath).split(os.pathsep)]
    # Debian installs it into sbin, which is on the PATH of root alone.
    places = [place for folder in folders for place in (folder, folder.with_name("sbin"))]
    found = shutil.which("mosquitto", path=os.pathsep.join(map(str, places)))
    if found is None:
        pytest.skip("no mosquitto here; on Debian: apt install mosquitto")
    return found


class Mosquitto:
    """``start`` and ``kill`` as often as wanted; the port stays."""

    def __init__(self, folder: Path, *settings: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._config = folder / f"mosquitto-{self.port}.conf"
        self._log = folder / f"mosquitto-{self.port}.log"
        user = getpass.getuser()  # as root it would become another, who may not read our files
        lines = (f"user {user}", f"listener {self.port} 127.0.0.1", "set_tcp_nodelay true", "persistence false")
        anonymous = () if any(line.startswith("allow_anonymous") for line in settings) else ("allow_anonymous true",)
        self._config.write_text("\n".join([*lines, *anonymous, *settings]) + "\n")

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([program(), "-c", str(self._config)], stdout=log, stderr=log)
        give_up_s = time.monotonic() + READY_S
        while time.monotonic() < give_up_s:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.01)
        self.kill()
        raise AssertionError(f"mosquitto did not come up: {self._log.read_text()}")

    def kill(self) -> None:
        """As a machine that loses its power."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop_answering(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(folder: Path, *settings: str) -> Iterator[Mosquitto]:
    broker = Mosquitto(folder, *settings)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


Json = dict[str, Any]
names = (f"client-{number}" for number in itertools.count())


def mqtt_settings(port: int, **constants: object) -> MqttSettings:
    """Settings of a broker on this machine, with other constants."""
    settings = replace_constants(MqttSettings(url=f"mqtt://127.0.0.1:{port}"), constants)
    assert isinstance(settings, MqttSettings)
    return settings


class Heard(NamedTuple):
    topic: str
    payload: bytes
    properties: Json

    @property
    def json(self) -> Json:
        found = json.loads(self.payload)
        assert isinstance(found, dict)
        return found

    @property
    def last(self) -> bool:
        return self.user.get("last") == "1"

    @property
    def user(self) -> dict[str, str]:
        return dict(self.properties.get("UserProperty", ()))


class MqttTestClient:
    """One at the broker. ``name`` is its level of the topics."""

    def __init__(self, client: aiomqtt.Client, name: str) -> None:
        self.name = name
        self.client = client
        self.heard: list[Heard] = []

    @property
    def answers(self) -> str:
        return f"voice/v1/c/{self.name}/rsp"

    async def ask(
        self, topic: str, content: Json | bytes, answers: str | None = None, tag: bytes = b"7", **user: str
    ) -> None:
        properties = Properties(PacketTypes.PUBLISH)
        properties.ResponseTopic = answers or self.answers
        properties.CorrelationData = tag
        if user:
            properties.UserProperty = [*user.items()]
        payload = content if isinstance(content, bytes) else json.dumps(content)
        await self.client.publish(topic, payload, 1, properties=properties)

    async def open(self, **wanted: object) -> MqttTestSession:
        await self.ask("voice/v1/open", wanted)
        answer = (await self.next_on(self.answers)).json
        assert "error" not in answer, answer
        return MqttTestSession(self, answer)

    async def refused(self, content: Json | bytes, topic: str = "voice/v1/open") -> Json:
        await self.ask(topic, content)
        error = (await self.next_on(self.answers)).json["error"]
        assert isinstance(error, dict)
        return error

    async def next_on(self, topic: str, wanted: Callable[[Heard], bool] = lambda _: True) -> Heard:
        """What comes there; all else is kept in ``heard``."""
        return await self.next_on_any(lambda heard: heard.topic == topic and wanted(heard))

    async def next_on_any(self, wanted: Callable[[Heard], bool]) -> Heard:
        async with asyncio.timeout(WAIT_S):
            async for message in self.client.messages:
                found = Heard(str(message.topic), bytes(message.payload), vars(message.properties))  # type: ignore[arg-type]
                self.heard.append(found)
                if wanted(found):
                    return found
        raise AssertionError("the broker has left")

    async def die(self) -> None:
        """As one whose battery is empty."""
        self.client._client._sock.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
        await until(self.client._disconnected.done)
        self.client._disconnected.exception()


class MqttTestSession:
    def __init__(self, client: MqttTestClient, answer: Json) -> None:
        self.client, self.answer = client, answer
        self.inbox, self.audio, self.events = answer["in"], answer["audio"], answer["ev"]

    async def say(self, *messages: Json) -> None:
        for message in messages:
            await self.client.client.publish(self.inbox, json.dumps(message), 1)

    async def told(self, kind: str) -> Json:
        """The next event of this kind."""
        return (await self.client.next_on(self.events, lambda heard: heard.json["t"] == kind)).json

    def sounds(self, reply: int = 0) -> list[Heard]:
        """Of a reply, so far."""
        return [one for one in self.client.heard if one.topic == self.audio and one.user["reply"] == str(reply)]


@asynccontextmanager
async def client(broker: Mosquitto, name: str | None = None, **options: object) -> AsyncIterator[MqttTestClient]:
    name = name or next(names)
    options = {"identifier": name, "protocol": aiomqtt.ProtocolVersion.V5} | options
    async with aiomqtt.Client("127.0.0.1", broker.port, **options) as connected:  # type: ignore[arg-type]
        for topic in (f"voice/v1/c/{name}/#", f"voice/v1/s/{name}/#", "voice/v1/calls/#"):
            await connected.subscribe(topic, options=SubscribeOptions(1, noLocal=True))
        yield (agent := MqttTestClient(connected, name))
        if not agent.client._disconnected.done():
            await connected.publish(f"voice/v1/c/{name}/gone", b"", 1)


def bridge_of(live: LiveServer) -> MqttBridge:
    found = live.uvicorn.config.app.state.mqtt
    assert isinstance(found, MqttBridge)
    return found


@asynccontextmanager
async def bridged(
    broker: Mosquitto, engine: FakeSpeechEngine | None = None, **flags: object
) -> AsyncIterator[LiveServer]:
    """A server that the broker knows; when it ends nothing may be left."""
    settings = {"mqtt__url": f"mqtt://127.0.0.1:{broker.port}", "mqtt__retry_min_s": 0.05} | flags
    async with live_server(engine, **settings) as live:
        await ready(live)
        yield live


async def ready(live: LiveServer) -> None:
    """It stands at the broker, and hears."""
    await until(lambda: (visit := bridge_of(live).handler) is not None and visit.ready)
