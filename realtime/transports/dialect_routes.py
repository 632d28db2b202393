"""The addresses of the vendors' wires: the handshake or the request, and how it is refused."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from engine.api import ErrorInfo, SpeechError
from realtime.auth import Principal
from realtime.dialect_connection import DialectConnection, refusal
from realtime.errors import RequestRefused
from realtime.protocol import model
from realtime.protocol.dialects.base import DialectRoute
from realtime.protocol.dialects.registry import DIALECT_ROUTES
from realtime.transports.http_routes import read_body
from realtime.transports.transport import HttpTransport, WebSocketTransport, write_timeout_s
from sessions.weak import weak_method

if TYPE_CHECKING:
    from realtime.server import SpeechServer

log = logging.getLogger("voicewire.dialects")


class DialectEndpoint:
    """The ASGI application of one wire."""

    def __init__(self, server: SpeechServer, wire: DialectRoute) -> None:
        self._server = server
        self._wire = wire

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            request = HTTPConnection(scope)
            caller = self._admit(request)
            dialect = self._wire.dialect(_handshake(request, self._server))
            connection = DialectConnection(self._server, self._wire, dialect)
            connection.open(caller)
        except SpeechError as error:
            await self._refuse(error, scope, receive, send)
            return
        try:
            if self._wire.transport == "http":
                await self._serve_http(connection, scope, receive, send)
            else:
                await self._serve_socket(connection, scope, receive, send)
        finally:
            await connection.aclose()

    def refusal(self, info: ErrorInfo) -> JSONResponse:
        return refusal(self._wire, info)

    def _admit(self, request: HTTPConnection) -> Principal:
        """Authenticate a request and check limits; raises ``RequestRefused``."""
        gatekeeper = self._server.gatekeeper
        anybody = Principal(max_connections=self._server.config.dialects.max_unauthenticated_connections)
        caller = (
            gatekeeper.authenticate_deferred(request) or anybody
            if self._wire.late_key
            else gatekeeper.authenticate(request)
        )
        self._server.check_connection_limits(caller)
        if self._wire.dialect.refuses_when_full:
            self._server.check_response_limits(caller)
        return caller

    async def _serve_socket(self, connection: DialectConnection, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in connection.headers().items()]
        await WebSocket(scope, receive, send).accept(subprotocol=connection.subprotocol, headers=headers)
        await connection.run(WebSocketTransport(scope, receive, send, write_timeout_s(self._server.config.limits)))

    async def _serve_http(self, connection: DialectConnection, scope: Scope, receive: Receive, send: Send) -> None:
        link = HttpTransport(scope, receive, send)
        link.head = weak_method(connection.head)
        try:
            body = await read_body(Request(scope, receive), self._server)
        except RequestRefused as error:
            await self._refuse(error, scope, receive, send)
        else:
            await connection.run(link, body)

    async def _refuse(self, error: SpeechError, scope: Scope, receive: Receive, send: Send) -> None:
        info = error.info
        self._server.metrics.refused(info.code)
        log.info("handshake rejected", extra={"code": info.code, "dialect": self._wire.path})
        answer = self.refusal(info)
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(answer)
        else:
            await answer(scope, receive, send)


def dialect_routes(server: SpeechServer) -> list[BaseRoute]:
    return [
        WebSocketRoute(wire.path, DialectEndpoint(server, wire))
        if wire.transport == "socket"
        else Route(wire.path, DialectEndpoint(server, wire), methods=["POST"])
        for wire in DIALECT_ROUTES
    ]


def _handshake(request: HTTPConnection, server: SpeechServer) -> model.ClientHandshake:
    return model.ClientHandshake(
        path={name: str(value) for name, value in request.path_params.items()},
        query=dict(request.query_params),
        headers=dict(request.headers),
        request_id=secrets.token_hex(16),
        subprotocols=tuple(request.scope.get("subprotocols", ())),
        agent="none" if server.agent is None else server.agent.ability,
    )
