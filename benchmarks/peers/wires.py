"""The wires: each opens a connection, speaks replies on it, and closes it.

All ask for 16-bit PCM at 24 kHz. ``extra`` is added to the message that describes a request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from benchmarks.peers.http_connection import OK, HttpConnection, open_connection
from benchmarks.peers.reply import SAMPLE_RATE, Reply, now_s
from realtime.client import NativeClient, open_session
from realtime.protocol import events as ev

TIMEOUT_S = 60.0
MAX_MESSAGE_BYTES = 2**24


class WireError(OSError):
    """The server answered a request with an error."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A server and what to ask of it."""

    # ``http://HOST:PORT``.
    url: str
    key: str | None = None
    model: str | None = None
    voice: str | None = None
    extra: Mapping[str, Any] = {}

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}

    @property
    def socket_url(self) -> str:
        return self.url.replace("http", "ws", 1)

    def settings(self, **more: Any) -> dict[str, Any]:
        """Model and voice, as far as they are given, with ``extra`` last."""
        named = {"model": self.model, "voice": self.voice}
        return more | {name: value for name, value in named.items() if value is not None} | dict(self.extra)


class Wire(Protocol):
    async def open(self, target: Target) -> None: ...

    async def speak(self, reply: Reply) -> None:
        """Send the text and receive all audio. Raises ``OSError`` or an exception of the wire's library."""

    async def aclose(self) -> None: ...


class NativeWire:
    def __init__(self) -> None:
        self._client: NativeClient | None = None
        self._num = 0

    async def open(self, target: Target) -> None:
        self._client = await open_session(target.socket_url, api_key=target.key)
        audio = {"encoding": "pcm_s16le", "sample_rate": SAMPLE_RATE}
        fields = {"voice": target.voice} if target.voice else {}
        self._settings = msgspec.convert({**fields, **target.extra, "format": audio}, ev.NativeSpeechSettings)

    async def speak(self, reply: Reply) -> None:
        client, self._num = self._client, self._num + 1
        assert client is not None
        name = f"r{self._num}"
        await client.send(ev.ResponseCreate(response_id=name, settings=self._settings))

        async def write() -> None:
            await reply.write(lambda text: client.send(ev.TextAppend(response_id=name, text=text)))
            await client.send(ev.TextEnd(response_id=name))

        async with writing(write()):
            async for message in client:
                if isinstance(message, ev.AudioMessage):
                    reply.receive(sum(len(packet) for packet in message.packets), now_s())
                elif isinstance(message, ev.ResponseDone):
                    if message.status != "completed":
                        raise WireError(message.error.code if message.error else message.status)
                    return
                elif isinstance(message, ev.ErrorEvent):
                    raise WireError(message.code)
        raise WireError(f"closed_{client.close_code}")

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()


class OpenAIWire:
    """``POST /v1/audio/speech``: the whole text, raw PCM as it is generated. Nari and vLLM-Omni need ``stream``.

    The request is encoded before the clock starts, and leaves in one write.
    """

    def __init__(self) -> None:
        self._http: HttpConnection | None = None

    async def open(self, target: Target) -> None:
        self._target = target
        self._http = http = await open_connection(target.url, target.headers)
        with suppress(ConnectionError):
            # The server has accepted the connection once it answers, whatever it answers.
            await http.send(http.encode("GET", "/v1/models"), lambda num_bytes, at_s: None)

    async def speak(self, reply: Reply) -> None:
        if self._http is None or not self._http.is_reusable:
            await self.aclose()
            self._http = await open_connection(self._target.url, self._target.headers)
        fields = self._target.settings(input=reply.text, response_format="pcm")
        request = self._http.encode("POST", "/v1/audio/speech", msgspec.json.encode(fields))
        reply.start()
        status = await self._http.send(request, reply.receive)
        if status != OK:
            raise WireError(f"http_{status}")

    async def aclose(self) -> None:
        if self._http is not None:
            self._http.close()


class SocketWire:
    """Common part of the wires with JSON in, and JSON and binary PCM out."""

    path = ""
    subprotocols: tuple[Subprotocol, ...] = ()

    def __init__(self) -> None:
        self._socket: ClientConnection | None = None

    async def open(self, target: Target) -> None:
        self._target = target
        await self._connect()

    async def _connect(self) -> None:
        self._socket = await connect(
            self._target.socket_url + self.path, subprotocols=self.subprotocols or None, compression=None, proxy=None,
            additional_headers=self._target.headers, max_size=MAX_MESSAGE_BYTES,
        )  # fmt: skip

    async def _send(self, **event: Any) -> None:
        assert self._socket is not None
        await self._socket.send(json.dumps(event))

    async def _receive(self, wanted: str, reply: Reply | None = None) -> None:
        """Receive up to an event of this type; binary messages are audio of ``reply``."""
        assert self._socket is not None
        while True:
            message = await self._socket.recv()
            if isinstance(message, bytes):
                if reply is not None:
                    reply.receive(len(message), now_s())
                continue
            event = json.loads(message)
            if event["type"] == "error":
                raise WireError(self.error_of(event))
            if event["type"] == wanted:
                return

    def error_of(self, event: dict[str, Any]) -> str:
        return str(event.get("message") or event.get("error"))

    async def aclose(self) -> None:
        if self._socket is not None:
            await self._socket.close()


class VllmOmniWire(SocketWire):
    """``/v1/audio/speech/stream``: utterances one after the other on one connection."""

    path = "/v1/audio/speech/stream"

    async def open(self, target: Target) -> None:
        await super().open(target)
        config = {"response_format": "pcm", "stream_audio": True, "split_granularity": "sentence"}
        await self._send(type="session.config", **target.settings(**config))

    async def speak(self, reply: Reply) -> None:
        async def write() -> None:
            await reply.write(lambda text: self._send(type="input.text", text=text))
            await self._send(type="input.done")

        async with writing(write()):
            await self._receive("session.done", reply)


class NariWire(SocketWire):
    """``/v1/audio/speech/ws``: one request per connection, which is configured before its time counts."""

    path = "/v1/audio/speech/ws"
    subprotocols = (Subprotocol("nari.speech.v1"),)

    async def open(self, target: Target) -> None:
        await super().open(target)
        await self._configure()

    async def _configure(self) -> None:
        await self._receive("session.created")
        await self._send(type="request.start", **self._target.settings())
        await self._receive("request.configured")

    async def speak(self, reply: Reply) -> None:
        if self._socket is None:
            await self._connect()
            await self._configure()
        sequence = 0

        async def append(text: str) -> None:
            nonlocal sequence
            await self._send(type="input_text.append", sequence=sequence, text=text)
            sequence += 1

        async def write() -> None:
            await reply.write(append)
            await self._send(type="input_text.end", sequence=sequence)

        try:
            async with writing(write()):
                await self._receive("response.done", reply)
        finally:
            await self.aclose()
            self._socket = None

    def error_of(self, event: dict[str, Any]) -> str:
        return str(event["error"]["code"])


@asynccontextmanager
async def writing(write: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Write a text beside the block that reads its audio, and no longer than that."""
    task = asyncio.create_task(write)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


WIRES: dict[str, Callable[[], Wire]] = {
    "native": NativeWire,
    "openai": OpenAIWire,
    "nari": NariWire,
    "vllm-omni": VllmOmniWire,
}
