"""Accept xiaozhi devices by WebSocket; to agents each is a call."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from engine.api import SpeechError
from realtime.auth import Principal
from realtime.browser_tokens import TokenScope
from realtime.calls.call_registry import CallRegistry
from realtime.calls.connection import CallConnection
from realtime.errors import RequestRefused
from realtime.protocol.telephony.xiaozhi import VERSIONS, XiaozhiDialect
from realtime.transports.http_routes import refusal_response
from realtime.transports.transport import MessageTransport, WebSocketTransport, write_timeout_s
from realtime.xiaozhi.device_transport import XiaozhiTransport
from sessions.encoders import EncoderPool

if TYPE_CHECKING:
    from realtime.server import SpeechServer

log = logging.getLogger("voicewire.xiaozhi")

PATHS = ("/xiaozhi/v1", "/xiaozhi/v1/")
MAX_HEADER_CHARS = 128


class XiaozhiService:
    """Shared state of all devices on any transport. ``aclose`` ends the threads of their encoders."""

    def __init__(self, server: SpeechServer, switchboard: CallRegistry) -> None:
        self.server, self._switchboard = server, switchboard
        self._threads = EncoderPool(server.config.num_encoder_threads)

    def close(self) -> None:
        self._threads.close()

    async def run_conversation(
        self,
        line: MessageTransport,
        dialect: XiaozhiDialect,
        caller: Principal,
        version: int = 1,
        accept: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Serve one device to its end. Raises ``SpeechError``, and then it was not accepted."""
        self.server.check_connection_limits(caller)
        settings = self.server.config.xiaozhi
        link = XiaozhiTransport(
            line,
            dialect,
            self._threads,
            version=version,
            bitrate=settings.bitrate,
            linger_s=settings.end_of_speech_delay_ms / 1000,
        )
        connection = CallConnection(self.server, self._switchboard, dialect, caller, link)
        watching = asyncio.create_task(link.run_idle_timer(), name="voicewire device")
        try:
            if accept is not None:
                await accept()
            await connection.run()
        finally:
            watching.cancel()
            await connection.aclose()
            await asyncio.wait([watching])


class XiaozhiEndpoint:
    def __init__(self, devices: XiaozhiService) -> None:
        self._devices, self._server = devices, devices.server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        websocket = WebSocket(scope, receive, send)
        link = WebSocketTransport(scope, receive, send, write_timeout_s(self._server.config.limits))
        try:
            caller = self._server.gatekeeper.authenticate(websocket, TokenScope.CALLS)
            version = version_of(websocket.headers.get("protocol-version", "1"))
            dialect = XiaozhiDialect(f"device-{secrets.token_hex(8)}", device_parameters(websocket))
            await self._devices.run_conversation(link, dialect, caller, version, websocket.accept)
        except SpeechError as error:
            self._server.metrics.refused(error.code)
            log.info("device rejected", extra={"code": error.code})
            await websocket.send_denial_response(refusal_response(error.info))


def version_of(header: str) -> int:
    """Parse the protocol version; raises ``RequestRefused``."""
    if header not in map(str, VERSIONS):
        known = ", ".join(map(str, VERSIONS))
        raise RequestRefused("invalid_request", f"Protocol-Version must be one of {known}", "Protocol-Version")
    return int(header)


def device_parameters(websocket: WebSocket) -> dict[str, str]:
    """Description of the device for agents."""
    named = {"device_id": "device-id", "client_id": "client-id"}
    found = {name: websocket.headers.get(header, "")[:MAX_HEADER_CHARS] for name, header in named.items()}
    return {name: value for name, value in found.items() if value}


def device_routes(devices: XiaozhiService) -> list[BaseRoute]:
    endpoint = XiaozhiEndpoint(devices)
    return [WebSocketRoute(path, endpoint) for path in PATHS]
