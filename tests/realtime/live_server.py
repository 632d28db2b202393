"""A server on a real loopback socket, with the fake engine behind it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import httpx2 as httpx
import msgspec

from realtime.app import create_app
from realtime.client import NativeClient, open_session
from realtime.config import ServerConfig, constants, load_config
from realtime.protocol import events as ev
from realtime.server import SpeechServer
from realtime.transports.listener import DrainingServer, UvicornConfig
from realtime.transports.listening_sockets import open_listeners
from tests.fakes.engine import FAKE_INFO, FakeScript, FakeSpeechEngine

# Fifty times faster than speech.
QUICK = FakeScript(ms_per_char=40.0, first_chunk_s=0.005, real_time_factor=0.02)
# Only a test that fails waits so long; on two busy cores the engine takes 20 s to come back.
WAIT_S = 60.0
# For clients that speak plain HTTP: to read those of the machine takes each of them 40 ms.
NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class LiveServer(NamedTuple):
    port: int
    speech: SpeechServer
    engine: FakeSpeechEngine
    uvicorn: DrainingServer
    tls_port: int | None = None

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def session(self, api_key: str | None = None) -> SessionContext:
        return SessionContext(self.url, api_key)

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}", trust_env=False, verify=NO_CERTIFICATES, timeout=60
        )

    async def freed(self) -> None:
        """Wait until nothing is held for anybody: free + held = total."""
        await until(lambda: self.speech.registry.statistics().num_sessions == 0)
        await until(lambda: self.speech.num_connections == 0)
        await until(lambda: not self.engine.streams)
        stats = self.engine.stats()
        assert (stats.slots_free, stats.blocks_free) == (stats.slots_total, stats.blocks_total)
        assert self.speech.num_active_responses == 0


class SessionContext:
    """``async with live.session() as client``."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._url, self._api_key = url, api_key

    async def __aenter__(self) -> NativeClient:
        self._client = await open_session(self._url, api_key=self._api_key)
        return self._client

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()


def load_test_config(flags: Mapping[str, object]) -> ServerConfig:
    """Load settings, and constants as well. Speech is not marked unless a flag says so: vectors hold it as it is."""
    names = {name: f"debug.constants.{name}" for name in constants()}
    given = {names.get(name, name): value for name, value in flags.items()}
    return load_config(environment={"VOICEWIRE_DEBUG": "1"}, flags={"watermark.enabled": False} | given)


@asynccontextmanager
async def live_server(
    engine: FakeSpeechEngine | None = None, exchange: Path | None = None, gateway: int = 0, **flags: object
) -> AsyncIterator[LiveServer]:
    """A server of which everything is free again in the end."""
    async with unchecked_server(engine, exchange, gateway, **flags) as live:
        yield live
        if isinstance(live.engine, FakeSpeechEngine):
            await live.freed()


@asynccontextmanager
async def unchecked_server(
    engine: FakeSpeechEngine | None = None, exchange: Path | None = None, gateway: int = 0, **flags: object
) -> AsyncIterator[LiveServer]:
    """Flags are settings or constants, with two underscores for the dot."""
    settings = {name.replace("__", "."): value for name, value in flags.items()}
    config = load_test_config(
        {
            "listen.port": 0,
            "listen.drain_timeout_s": 0,
            "listen.close_timeout_s": 0.2,
            "speech.aligner": "even",  # a hum holds no words
        }
        | settings
    )
    engine = engine or FakeSpeechEngine(QUICK)
    app = create_app(config, engine, exchange=exchange, gateway=gateway)
    server_config = UvicornConfig(app, config.listen, config.limits)
    server_config.load()
    listeners = open_listeners(config.listen)
    uvicorn = DrainingServer(server_config, app.state.server, listeners)
    uvicorn.lifespan = server_config.lifespan_class(server_config)
    await uvicorn.startup()
    try:
        yield LiveServer(listeners.ports.main, app.state.server, engine, uvicorn, listeners.ports.tls)
    finally:
        app.state.server.resumption.evict_all()  # as in a drain
        await close(uvicorn)


async def close(uvicorn: DrainingServer) -> None:
    """What uvicorn does to shut down, without its waits; the drain has tests of its own."""
    uvicorn.acceptor.close()
    for connection in list(uvicorn.server_state.connections):
        connection.shutdown()
    await asyncio.gather(*uvicorn.server_state.tasks, return_exceptions=True)
    await uvicorn.lifespan.shutdown()
    await uvicorn.acceptor.wait_closed()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)


class SpokenResponse(NamedTuple):
    """What came of one response, in order."""

    messages: list[ev.ServerEvent | ev.AudioMessage]

    @property
    def audio(self) -> list[ev.AudioMessage]:
        return [message for message in self.messages if isinstance(message, ev.AudioMessage)]

    @property
    def created(self) -> ev.ResponseCreated:
        return next(message for message in self.messages if isinstance(message, ev.ResponseCreated))

    @property
    def done(self) -> ev.ResponseDone:
        assert isinstance(self.messages[-1], ev.ResponseDone)
        return self.messages[-1]


M = TypeVar("M")


async def hear(client: NativeClient, response_id: str | None = None) -> SpokenResponse:
    """Everything up to the next ``response.done``, or that of one response."""
    messages = []
    async with asyncio.timeout(WAIT_S):
        async for message in client:
            messages.append(message)
            if isinstance(message, ev.ResponseDone) and response_id in (None, message.response_id):
                return SpokenResponse(messages)
    raise AssertionError(f"closed with {client.close_code} after {messages}")


async def next_of(client: NativeClient, kind: type[M]) -> M:
    """The next message of this kind, whatever comes before it."""
    async with asyncio.timeout(WAIT_S):
        async for message in client:
            if isinstance(message, kind):
                return message
    raise AssertionError(f"closed with {client.close_code} before any {kind.__name__}")


async def speak(client: NativeClient, text: str, response_id: str = "r", **settings: object) -> SpokenResponse:
    """Say a whole text and hear it to its end."""
    given = ev.NativeSpeechSettings(**({"pace": "burst"} | settings))  # type: ignore[arg-type]
    await client.send(ev.ResponseCreate(response_id=response_id, settings=given, text=text, end=True))
    return await hear(client, response_id)


async def close_code(client: NativeClient) -> int | None:
    """Listen to the end."""
    async with asyncio.timeout(WAIT_S):
        async for _ in client:
            pass
    return client.close_code


EMBEDDING_SIZE = 8
BASE_INFO = msgspec.structs.replace(
    FAKE_INFO,
    model="a fake base",
    task="base",
    can_clone=True,
    can_encode=True,
    embedding_size=EMBEDDING_SIZE,
    num_codebooks=4,
    codebook_size=2_048,
)


def cloning_engine(**changes: object) -> FakeSpeechEngine:
    return FakeSpeechEngine(QUICK, info=msgspec.structs.replace(BASE_INFO, **changes))
