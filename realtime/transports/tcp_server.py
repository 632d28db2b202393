"""A TCP port of its own beside the server's one, for wires that are no HTTP."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

from msgspec import structs

from realtime.transports.acceptor import Acceptor
from realtime.transports.listening_sockets import listening_sockets, warn_if_public_without_auth
from realtime.transports.transport import MessageTransport, write_timeout_s

if TYPE_CHECKING:
    from realtime.server import SpeechServer

log = logging.getLogger("voicewire.port")

READ_BYTES = 65_536
WRITE_BUFFER_BYTES = 16_384
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class TcpTransport(MessageTransport):
    """Writes to a TCP connection. Subclasses receive."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, write_timeout_s: float, close_timeout_s: float
    ) -> None:
        self._reader, self._writer = reader, writer
        self._write_timeout_s, self._close_timeout_s = write_timeout_s, close_timeout_s
        self._closed = False

    @classmethod
    def from_server(cls, server: SpeechServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Self:
        writer.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        config = server.config
        return cls(reader, writer, write_timeout_s(config.limits), config.listen.close_timeout_s)

    async def write(self, message: str | bytes) -> None:
        self._writer.write(message if isinstance(message, bytes) else message.encode())

    async def close(self, code: int, reason: str = "") -> None:
        if await self.writable():
            self._closed = True
            self._writer.close()
            # what is not sent yet is not waited for without end: until it is, nothing would be received either
            asyncio.get_running_loop().call_later(self._close_timeout_s, self._writer.transport.abort)

    async def writable(self) -> bool:
        if self._closed:
            return False
        try:
            async with asyncio.timeout(self._write_timeout_s):
                await self._writer.drain()
        except TimeoutError:
            log.info("closed unresponsive connection", extra={"code": "slow_reader"})
            self._closed = True
            self._writer.transport.abort()
        except OSError:
            self._closed = True
        return not (self._closed or self._writer.transport.is_closing())


class TcpStreamTransport(TcpTransport):
    """Messages are whatever has come, so much at most."""

    max_bytes = READ_BYTES

    async def receive(self) -> bytes | None:
        if self._closed:
            return None
        try:
            piece = await self._reader.read(self.max_bytes)
        except OSError:
            piece = b""
        self._closed = self._closed or not piece
        return piece or None


def create_stream_transport(
    server: SpeechServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> TcpStreamTransport:
    link = TcpStreamTransport.from_server(server, reader, writer)
    link.max_bytes = min(READ_BYTES, server.config.limits.max_message_bytes)
    return link


@asynccontextmanager
async def run_server(
    server: SpeechServer,
    name: str,
    host: str,
    port: int,
    serve: Serve,
    tls: ssl.SSLContext | None = None,
    requires_keys: bool = False,
    num_unknown: Callable[[], int] = int,
) -> AsyncIterator[int]:
    """The port, while this lasts. TLS handshakes and ``num_unknown`` connections together are at most
    ``max_http_connections``. Raises ``OSError``."""
    listen = server.config.listen
    sockets = listening_sockets(structs.replace(listen, host=host, port=port), share_port=listen.gateways > 1)
    max_connections = server.config.limits.max_http_connections
    acceptor = Acceptor(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader(), serve),
        listen.handshake_timeout_s,
        lambda: max_connections - num_unknown(),
    )
    found: int = sockets[0].getsockname()[1]
    if not requires_keys:
        warn_if_public_without_auth(name, sockets)
    acceptor.listen(sockets, listen.backlog, tls)
    log.info("listening for %s", name, extra={"host": host, "port": found})
    try:
        yield found
    finally:
        acceptor.close()
        await acceptor.wait_closed()


async def close_writer(server: SpeechServer, writer: asyncio.StreamWriter) -> None:
    """Close, and wait for what is still to be sent, but not for ever."""
    writer.close()
    try:
        async with asyncio.timeout(server.config.listen.close_timeout_s):
            await writer.wait_closed()
    except (TimeoutError, OSError):
        writer.transport.abort()
