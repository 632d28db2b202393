"""A client of the native wire, for the command line, the benchmark and the tests."""

from __future__ import annotations

import ssl
from types import TracebackType
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from realtime.protocol.events import AudioMessage, ClientEvent, ErrorEvent, ServerEvent, SessionCreated
from realtime.protocol.native import PATH, SUBPROTOCOL, parse_audio, parse_server, serialize

MAX_MESSAGE_BYTES = 2**24


class SessionRejected(OSError):
    """The server refused the session."""


class NativeClient:
    """A client session. ``send`` events and iterate over those of the server until the connection closes."""

    def __init__(self, socket: ClientConnection, created: SessionCreated) -> None:
        self.created = created
        self._socket = socket

    async def send(self, event: ClientEvent) -> None:
        """Send an event; raises ``ConnectionError`` if the connection is closed."""
        await self.send_raw(serialize(event))

    async def send_raw(self, message: str | bytes) -> None:
        try:
            await self._socket.send(message)
        except ConnectionClosed:
            raise ConnectionError(f"closed_{self.close_code}") from None

    def __aiter__(self) -> NativeClient:
        return self

    async def __anext__(self) -> ServerEvent | AudioMessage:
        try:
            return parse(await self._socket.recv())
        except ConnectionClosed:
            raise StopAsyncIteration from None

    @property
    def close_code(self) -> int | None:
        return self._socket.close_code

    async def aclose(self) -> None:
        await self._socket.close()

    def abort(self) -> None:
        """Abort the connection without a close frame."""
        self._socket.transport.abort()

    async def __aenter__(self) -> NativeClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def parse(message: str | bytes) -> ServerEvent | AudioMessage:
    return parse_server(message) if isinstance(message, str) else parse_audio(message)


def speech_url(url: str) -> str:
    """Return the native wire's address for ``ws://host:port`` or ``http://host:port``. Raises ``OSError``."""
    parts = urlsplit(url)
    scheme = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}.get(parts.scheme)
    if scheme is None or not parts.hostname:
        raise OSError(f"url must be ws://HOST:PORT or wss://HOST:PORT, is {url!r}")
    return parts._replace(scheme=scheme, path=PATH if parts.path in ("", "/") else parts.path).geturl()


async def open_session(url: str, *, api_key: str | None = None, trust: ssl.SSLContext | None = None) -> NativeClient:
    """Open a session. Raises ``OSError``, ``websockets.exceptions.InvalidStatus`` or ``SessionRefused``."""
    address = speech_url(url)
    socket = await connect(
        address,
        subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
        additional_headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
        compression=None,
        max_size=MAX_MESSAGE_BYTES,
        proxy=None,
        ssl=(trust or True) if address.startswith("wss:") else None,
    )
    first = parse(await socket.recv())
    if not isinstance(first, SessionCreated):
        await socket.close()
        raise SessionRejected(first.message if isinstance(first, ErrorEvent) else f"unexpected first event: {first}")
    return NativeClient(socket, first)
