"""Lets a client resume its session at any gateway of a server.

The gateway that a client reaches forwards the client's messages to the gateway that has the session. There they are
carried out as if the client had connected to it, so that nothing of the session moves, and all packets stay the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from engine.api import SpeechError
from realtime.auth import Principal
from realtime.dialect_connection import DialectConnection
from realtime.errors import CloseCode
from realtime.protocol import model
from realtime.protocol.dialects.registry import NATIVE_ROUTE
from realtime.resumption import RefusalCause, ResumableConversation, TokenClaims, resume_refused
from realtime.server import SpeechServer
from realtime.transports.relay_transport import RelayTransport
from realtime.transports.transport import MessageTransport, write_timeout_s

log = logging.getLogger("voicewire.gateways")

# The session's gateway answers within this time, or counts as gone.
ANSWER_TIMEOUT_S = 2.0
ACCEPTED = "accepted"
GATEWAY_LOST = (CloseCode.SERVICE_RESTART, "gateway_lost")


class RelayRequest(msgspec.Struct, frozen=True):
    """Asks the gateway of a session to serve a client that has reached another one."""

    caller: Principal
    command: model.ResumeSession


class RelayedClient:
    """A client of this gateway whose session is at another one."""

    def __init__(self, peer: RelayTransport) -> None:
        self._peer = peer

    async def forward(self, link: MessageTransport) -> tuple[int, str]:
        """Forward messages until either side closes; returns code and reason for the client's close."""
        both = [
            asyncio.create_task(self._forward_to_session(link), name="voicewire relay up"),
            asyncio.create_task(self._forward_to_client(link), name="voicewire relay down"),
        ]
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in both:
                task.cancel()
            await asyncio.wait(both)
            await self._peer.aclose()
        if self._peer.close_code is None:
            return GATEWAY_LOST
        return self._peer.close_code, self._peer.close_reason

    async def _forward_to_session(self, link: MessageTransport) -> None:
        while (message := await link.receive()) is not None:
            await self._peer.send(message)
        await self._peer.close(link.close_code)

    async def _forward_to_client(self, link: MessageTransport) -> None:
        while (message := await self._peer.receive()) is not None:
            await link.send(message)


class SessionRelay:
    """The relay of one gateway. Does nothing without a ``folder``, which is private and the same for all gateways."""

    def __init__(self, server: SpeechServer, folder: Path | None) -> None:
        self._server, self._folder = server, folder
        self._write_timeout_s = write_timeout_s(server.config.limits)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Take clients of other gateways while the context is open; raises ``OSError``."""
        if self._folder is None:
            yield
            return
        path = self._path(self._server.resumption.gateway)
        path.unlink(missing_ok=True)  # of a gateway of this number that is gone
        listener = await asyncio.start_unix_server(self._serve, path)
        self._server.relay = self
        try:
            yield
        finally:
            self._server.relay = None
            listener.close()

    def _path(self, gateway: int) -> Path:
        assert self._folder is not None
        return self._folder / f"sessions-{gateway}"

    async def connect(self, gateway: int, caller: Principal, command: model.ResumeSession) -> RelayedClient:
        """Reach the gateway of a session. Raises ``RequestRefused`` if it is gone or refuses the client."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(self._path(gateway))
                peer = RelayTransport(reader, writer, self._write_timeout_s)
                await peer.write(msgspec.json.encode(RelayRequest(caller, command)))
                answer = await peer.receive()
        except OSError:  # also a time-out
            raise resume_refused(cause=RefusalCause.GONE) from None
        if answer != ACCEPTED:
            await peer.aclose()
            raise resume_refused()
        return RelayedClient(peer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a client of another gateway."""
        peer = RelayTransport(reader, writer, self._write_timeout_s)
        try:
            request = msgspec.json.decode(await peer.receive() or b"", type=RelayRequest)
            connection = self._take_over(request)
        except (SpeechError, msgspec.MsgspecError):
            peer.abort()
            return
        await peer.write(ACCEPTED)
        try:
            await connection.run(peer)
        finally:
            await connection.aclose()
            await peer.aclose()

    def _take_over(self, request: RelayRequest) -> RelayedConnection:
        """Take a session from its connection. Raises ``RequestRefused``."""
        table = self._server.resumption
        claims = table.check(request.command.session_id, request.command.token, request.caller)
        dialect = table.find(ResumableConversation, claims).dialect
        connection = RelayedConnection(self._server, NATIVE_ROUTE, dialect)
        connection.open_relayed(request, claims)
        return connection


class RelayedConnection(DialectConnection):
    """The connection of a client that has reached another gateway, which has authenticated and counts it."""

    _resumed: model.ResumedSession

    def open_relayed(self, request: RelayRequest, claims: TokenClaims) -> None:
        """Take over the session. Raises ``RequestRefused``."""
        self._caller = request.caller
        self._has_received = True
        self._resumed = self.take_over(request.command, claims)
        self._entered.enter_context(self._server.track_connection(self, request.caller, count=0))

    async def run(self, link: MessageTransport, body: bytes | None = None) -> None:
        await self._run(link)

    async def _start(self) -> None:
        self._apply_all(self._dialect.send_session(self._resumed))
