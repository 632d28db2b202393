"""A client whose session is at another gateway: its messages are forwarded there, and the answers back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from realtime.auth import Principal
from realtime.connection import Connection
from realtime.errors import CloseCode
from realtime.protocol import model
from realtime.transports.relay_transport import RelayTransport
from realtime.transports.transport import MessageTransport

if TYPE_CHECKING:
    from realtime.server import SpeechServer

GATEWAY_LOST = (CloseCode.SERVICE_RESTART, "gateway_lost")


class RelayRequest(msgspec.Struct, frozen=True):
    """Asks the gateway of a session to serve a client that has reached another one."""

    caller: Principal
    # ``None`` of an agent, whose ``query`` names the session.
    command: model.ResumeSession | None = None
    query: dict[str, str] = {}


class RelayedClient:
    """The way to the gateway of a client's session."""

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

    async def aclose(self) -> None:
        """Leave the session; it is suspended."""
        await self._peer.aclose()


class RelayingConnection(Connection):
    """Connects a client with nothing but the gateway of its session."""

    def __init__(self, server: SpeechServer, relayed: RelayedClient) -> None:
        super().__init__(server)
        self._relayed = relayed

    async def run(self, link: MessageTransport) -> None:
        await self._run(link)

    def on_tick(self, now_s: float) -> None:
        if self._server.draining:
            self.close("draining")

    async def _read(self) -> None:
        self._begin_close(*await self._relayed.forward(self._link))
        await super()._read()

    async def _receive(self, message: model.Message) -> None:
        raise AssertionError("a message behind the close")

    def _pop_event(self, now: float) -> bool:
        return False

    def _due_s(self, now: float) -> float | None:
        return None
