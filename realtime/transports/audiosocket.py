"""A TCP port for Asterisk's AudioSocket. It has no keys: every connection is a call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from msgspec import structs

from engine.api import SpeechError
from realtime.auth import Principal
from realtime.calls.call_registry import CallRegistry
from realtime.calls.connection import CallConnection
from realtime.config import gateway_address
from realtime.protocol.telephony.audiosocket import HEADER, AudioSocketDialect
from realtime.server import SpeechServer
from realtime.transports.listener import listening_sockets, warn_if_public_without_auth
from realtime.transports.transport import WRITE_GRACE_S, MessageTransport

log = logging.getLogger("voicewire.calls")

WRITE_BUFFER_BYTES = 16_384
# Time to send the rest when a connection is closed.
CLOSE_TIMEOUT_S = 2.0


class AudioSocketTransport(MessageTransport):
    """Messages are whole frames."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        write_timeout_s: float,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._write_timeout_s, self._close_timeout_s = write_timeout_s, close_timeout_s
        self._closed = False

    async def receive(self) -> bytes | None:
        if self._closed:
            return None
        try:
            header = await self._reader.readexactly(HEADER.size)
            return header + await self._reader.readexactly(HEADER.unpack(header)[1])
        except (asyncio.IncompleteReadError, OSError):
            self._closed = True
            return None

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


class AudioSocketServer:
    """Listen at ``calls.audiosocket``, if it is set. The constructor raises ``ConfigError``."""

    def __init__(self, server: SpeechServer, switchboard: CallRegistry, owner: Principal) -> None:
        self._address = gateway_address(server.config, "calls.audiosocket", server.config.calls.audiosocket)
        self._server, self._switchboard, self._owner = server, switchboard, owner
        # Set while it is open.
        self.port: int | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Listen while the context is open. Raises ``OSError``."""
        if self._address is None:
            yield
            return
        listen = self._server.config.listen
        place = structs.replace(listen, host=self._address.host, port=self._address.port)
        sockets = listening_sockets(place, share_port=listen.gateways > 1)
        async with AsyncExitStack() as listeners:
            for one in sockets:
                listener = await asyncio.start_server(self._serve, sock=one, backlog=listen.backlog)
                listeners.callback(listener.close)
            self.port = sockets[0].getsockname()[1]
            log.info("listening for AudioSocket", extra={"host": self._address.host, "port": self.port})
            warn_if_public_without_auth("AudioSocket", sockets)
            yield

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        config = self._server.config
        link = AudioSocketTransport(
            reader, writer, config.limits.reader_timeout_s + WRITE_GRACE_S, config.listen.close_timeout_s
        )
        try:
            self._server.check_connection_limits(self._owner)
            connection = CallConnection(self._server, self._switchboard, AudioSocketDialect(), self._owner, link)
        except SpeechError as error:
            self._server.metrics.refused(error.code)
            log.info("call rejected", extra={"code": error.code, "dialect": AudioSocketDialect.name})
            writer.close()
            return
        try:
            await connection.run()
        finally:
            writer.close()
            await connection.aclose()
            await self._until_closed(writer)

    async def _until_closed(self, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._server.config.listen.close_timeout_s):
                await writer.wait_closed()
        except (TimeoutError, OSError):
            writer.transport.abort()
