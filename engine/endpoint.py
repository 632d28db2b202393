"""Transports from a gateway to an engine."""

from __future__ import annotations

import asyncio
from typing import Protocol

from engine.address import HANDSHAKE_TIMEOUT_S, EngineAddress, TlsFiles
from engine.api import EngineDead, EngineStats

# A step of a thousand rows is many small reads otherwise.
READ_AHEAD_BYTES = 4 * 2**20
CONNECT_TIMEOUT_S = 5.0

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class EngineEndpoint(Protocol):
    """Transport to an engine."""

    # Why requests failed when the connection broke.
    end_reason: str
    # Whether the connection can stay open although the engine is gone.
    is_remote: bool

    async def connect(self) -> Connection:
        """Start the engine again if this endpoint owns it, and connect to it."""
        ...

    async def stop(self) -> None:
        """End what ``connect`` started."""
        ...

    def current_stats(self) -> EngineStats | None:
        """The engine's statistics now, or ``None`` where only its reports are known."""
        ...


class EngineSocket:
    """An engine that another process keeps running."""

    end_reason = "the engine process ended"

    def __init__(self, address: EngineAddress, tls: TlsFiles | None = None) -> None:
        address.check_protected(tls)
        self.address, self._tls = address, tls
        self.is_remote = address.is_tcp

    def __str__(self) -> str:
        return str(self.address)

    async def connect(self) -> Connection:
        """Raises ``EngineDead`` after ``CONNECT_TIMEOUT_S``, ``OSError`` or ``InvalidRequest``."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await self._open()
        except TimeoutError:
            raise EngineDead(f"no connection within {CONNECT_TIMEOUT_S:g} s") from None

    async def _open(self) -> Connection:
        address = self.address
        if not address.is_tcp:
            return await asyncio.open_unix_connection(address.path, limit=READ_AHEAD_BYTES)
        if self._tls is None:
            return await asyncio.open_connection(address.host, address.port, limit=READ_AHEAD_BYTES)
        context = await asyncio.to_thread(self._tls.client_context)
        return await asyncio.open_connection(
            address.host,
            address.port,
            ssl=context,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
            limit=READ_AHEAD_BYTES,
        )

    async def stop(self) -> None:
        """Leave the engine running."""

    def current_stats(self) -> EngineStats | None:
        return None
