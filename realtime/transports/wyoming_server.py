"""A TCP port for Wyoming, the protocol of Home Assistant's voices. It has no keys: every client that reaches it can
speak.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from engine.api import SpeechError
from realtime.config import gateway_address
from realtime.dialect_connection import DialectConnection
from realtime.errors import RequestRefused
from realtime.protocol.dialects.base import DialectRoute
from realtime.protocol.wyoming import Data, WyomingDialect, WyomingEvent, build_info, serialize
from realtime.transports.tcp_server import close_writer, create_stream_transport, run_server
from realtime.version import VERSION
from sessions.languages import CODES
from sessions.voices.lookup import voices_for

if TYPE_CHECKING:
    from realtime.server import SpeechServer

log = logging.getLogger("voicewire.wyoming")

WIRE = DialectRoute("wyoming", WyomingDialect, serial=True)


class WyomingServer:
    """Listen at ``wyoming.address``, if it is set. The constructor raises ``ConfigError``."""

    def __init__(self, server: SpeechServer) -> None:
        self._server, self._settings = server, server.config.wyoming
        self._num_connections = 0
        # Set while it is open.
        self.port: int | None = None
        self._address = gateway_address(server.config, "wyoming.address", self._settings.address)
        if self._address is not None:
            self._owner = server.gatekeeper.resolve_owner("wyoming.default_key_name", self._settings.default_key_name)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Listen while the context is open. Raises ``OSError``."""
        if self._address is None:
            yield
            return
        async with run_server(self._server, "Wyoming", *self._address, self._serve) as port:
            self.port = port
            yield

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._num_connections += 1
        try:
            await self._serve_connection(reader, writer)
        finally:
            self._num_connections -= 1
            await close_writer(self._server, writer)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        limit = self._server.config.limits.max_message_bytes
        try:
            self._check_capacity()
            dialect = WyomingDialect(await self._info(), self._settings.sample_rate, limit)
            connection = DialectConnection(self._server, WIRE, dialect)
            connection.open(self._owner)
        except SpeechError as error:
            info = error.info
            self._server.metrics.refused(info.code)
            log.info("connection rejected", extra={"code": info.code, "dialect": WIRE.path})
            writer.write(serialize(WyomingEvent("error", {"text": info.message, "code": info.code})))
            return
        try:
            await connection.run(create_stream_transport(self._server, reader, writer))
        finally:
            await connection.aclose()

    def _check_capacity(self) -> None:
        self._server.check_connection_limits(self._owner)
        limit = self._settings.max_connections
        if self._num_connections > limit:
            wait_ms = self._server.config.limits.retry_after_ms
            raise RequestRefused("too_many_connections", f"wyoming.max_connections is {limit}", retry_after_ms=wait_ms)

    async def _info(self) -> Data:
        info = self._server.engine.info
        voices = [(voice.name, voice.description or voice.name, codes(voice.languages)) for voice in info.voices]
        if info.can_clone:
            stored = await asyncio.to_thread(voices_for, self._server.voices, self._owner.name)
            voices += [(manifest.name, manifest.name, codes(info.languages)) for manifest in stored]
        return build_info(VERSION, info.model, voices)


def codes(languages: tuple[str, ...]) -> list[str]:
    """Return the names that Home Assistant uses."""
    return [CODES.get(language.lower(), language) for language in languages if language != "auto"]
