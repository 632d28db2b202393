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
from typing import TYPE_CHECKING

import msgspec

from engine.api import ErrorInfo, SpeechError
from realtime.auth import Principal
from realtime.calls.agent_connection import AgentConnection
from realtime.calls.call_registry import CallRegistry
from realtime.dialect_connection import DialectConnection
from realtime.errors import RequestRefused
from realtime.protocol import model
from realtime.protocol.dialects.native import NATIVE_ROUTE
from realtime.relayed_client import RelayedClient, RelayRequest
from realtime.resumption import RefusalCause, ResumableConversation, TokenClaims, resume_refused
from realtime.transports.relay_transport import RelayTransport
from realtime.transports.transport import MessageTransport, write_timeout_s

if TYPE_CHECKING:
    from realtime.server import SpeechServer

log = logging.getLogger("voicewire.gateways")

# The session's gateway answers within this time, or counts as gone.
ANSWER_TIMEOUT_S = 2.0
ACCEPTED = "accepted"


class SessionRelay:
    """The relay of one gateway. Does nothing without a ``folder``, which is private and the same for all gateways."""

    def __init__(self, server: SpeechServer, switchboard: CallRegistry, folder: Path | None) -> None:
        self._server, self._switchboard, self._folder = server, switchboard, folder
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

    async def connect(self, gateway: int, request: RelayRequest) -> RelayedClient:
        """Reach the gateway of a session. Raises ``RequestRefused`` if it is gone or refuses the client."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(self._path(gateway))
                peer = RelayTransport(reader, writer, self._write_timeout_s)
                await peer.write(msgspec.json.encode(request))
                answer = await peer.receive()
        except OSError:  # also a time-out
            raise resume_refused(cause=RefusalCause.GONE) from None
        if answer == ACCEPTED:
            return RelayedClient(peer)
        await peer.aclose()
        if answer is None:
            raise resume_refused(cause=RefusalCause.GONE)
        info = msgspec.json.decode(answer, type=ErrorInfo)
        raise RequestRefused(info.code, info.message, info.param, info.retry_after_ms)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a client of another gateway."""
        peer = RelayTransport(reader, writer, self._write_timeout_s)
        try:
            request = msgspec.json.decode(await peer.receive() or b"", type=RelayRequest)
            connection = self._open(request, peer)
        except SpeechError as error:
            await peer.write(msgspec.json.encode(error.info))
            await peer.aclose()
            return
        except msgspec.MsgspecError:
            peer.abort()
            return
        await peer.write(ACCEPTED)
        try:
            await connection.run_relayed(peer)
        finally:
            await connection.aclose()
            await peer.aclose()

    def _open(self, request: RelayRequest, peer: RelayTransport) -> RelayedConnection | RelayedAgent:
        """Take a session from its connection. Raises ``RequestRefused``."""
        if request.command is None:
            agent = RelayedAgent(self._server, self._switchboard, request.caller, peer)
            agent.open(None, request.query, num_counted=0)
            return agent
        table = self._server.resumption
        claims = table.check(request.command.session_id, request.command.token, request.caller)
        dialect = table.find(ResumableConversation, claims).dialect
        connection = RelayedConnection(self._server, NATIVE_ROUTE, dialect)
        connection.open_relayed(request.caller, request.command, claims)
        return connection


class RelayedConnection(DialectConnection):
    """The connection of a client that has reached another gateway, which has authenticated and counts it."""

    _resumed: model.ResumedSession

    def open_relayed(self, caller: Principal, command: model.ResumeSession, claims: TokenClaims) -> None:
        """Take over the session. Raises ``RequestRefused``."""
        self._caller = caller
        self._has_received = True
        self._resumed = self.take_over(command, claims)
        self._entered.enter_context(self._server.track_connection(self, caller, num_counted=0))

    async def run_relayed(self, link: MessageTransport) -> None:
        await self._run(link)

    async def _start(self) -> None:
        self._apply_all(self._dialect.send_session(self._resumed))


class RelayedAgent(AgentConnection):
    """The same of an agent."""

    async def run_relayed(self, link: MessageTransport) -> None:
        await self._run(link)

    async def aclose(self) -> None:
        self.release_resources()
