"""A TCP port for Asterisk's AudioSocket. It has no keys: every connection is a call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from engine.api import SpeechError
from realtime.auth import Principal
from realtime.calls.call_registry import CallRegistry
from realtime.calls.connection import CallConnection
from realtime.config import gateway_address
from realtime.protocol.telephony.audiosocket import HEADER, AudioSocketDialect
from realtime.transports.tcp_server import TcpTransport, close_writer, run_server

if TYPE_CHECKING:
    from realtime.server import SpeechServer

log = logging.getLogger("voicewire.calls")


class AudioSocketTransport(TcpTransport):
    """Messages are whole frames."""

    async def receive(self) -> bytes | None:
        if self._closed:
            return None
        try:
            header = await self._reader.readexactly(HEADER.size)
            return header + await self._reader.readexactly(HEADER.unpack(header)[1])
        except (asyncio.IncompleteReadError, OSError):
            self._closed = True
            return None


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
        host, port = self._address.host, self._address.port
        async with run_server(self._server, "AudioSocket", host, port, self._serve) as self.port:
            yield

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = AudioSocketTransport.from_server(self._server, reader, writer)
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
            await close_writer(self._server, writer)
