"""The text side of calls: a WebSocket or HTTP by which an agent sends replies and receives events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from engine.api import SpeechError
from realtime.auth import Principal
from realtime.calls.agent_connection import AgentConnection
from realtime.calls.call_registry import AgentSubscription, CallRegistry
from realtime.errors import RequestRefused
from realtime.protocol.call_events import parse_command, serialize
from realtime.protocol.telephony import model
from realtime.relayed_client import RelayedClient, RelayingConnection, RelayRequest
from realtime.transports.http_routes import read_body, refusal_response
from realtime.transports.transport import WebSocketTransport, write_timeout_s

if TYPE_CHECKING:
    from realtime.server import SpeechServer

PATH = "/v1/calls"
KEEPALIVE_INTERVAL_S = 15.0
RESUME_PARAMETERS = ("session_id", "resume_token", "received_events")
EVENT_STREAM = "text/event-stream"


class AgentEndpoint:
    """The WebSocket of an agent: of all calls of its key, or of the one that the address names."""

    def __init__(self, server: SpeechServer, switchboard: CallRegistry) -> None:
        self._server, self._switchboard = server, switchboard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        websocket = WebSocket(scope, receive, send)
        try:
            caller = self._server.gatekeeper.require_api_key(websocket)
            self._server.check_connection_limits(caller)
            link = WebSocketTransport(scope, receive, send, write_timeout_s(self._server.config.limits))
            if (relayed := await self._reach_session(caller, websocket.query_params)) is not None:
                await self._relay(relayed, caller, websocket, link)
                return
            connection = AgentConnection(self._server, self._switchboard, caller, link)
            connection.open(websocket.path_params.get("call_id"), websocket.query_params)
        except SpeechError as error:
            self._server.metrics.refused(error.code)
            await websocket.send_denial_response(refusal_response(error.info))
            return
        try:
            await websocket.accept()
            await connection.run()
        finally:
            connection.release_resources()

    async def _reach_session(self, caller: Principal, query: Mapping[str, str]) -> RelayedClient | None:
        """Reach the gateway of a session, if that is another one. Raises ``RequestRefused``."""
        if "session_id" not in query:
            return None
        table = self._server.resumption
        claims = table.check(query["session_id"], query.get("resume_token", ""), caller)
        if claims.gateway == table.gateway:
            return None
        wanted = {name: query[name] for name in RESUME_PARAMETERS if name in query}
        return await self._server.reach_gateway(claims.gateway, RelayRequest(caller, query=wanted))

    async def _relay(
        self, relayed: RelayedClient, caller: Principal, websocket: WebSocket, link: WebSocketTransport
    ) -> None:
        connection = RelayingConnection(self._server, relayed)
        try:
            with self._server.track_connection(connection, caller):
                await websocket.accept()
                await connection.run(link)
        finally:
            await relayed.aclose()


class CallEventStream:
    """Counts as a connection of its key, and ends with its call."""

    def __init__(self, agent: AgentSubscription) -> None:
        self._agent = agent

    def on_tick(self, now_s: float) -> None:
        """The call has its own clock."""

    def close(self, code: str) -> None:
        self._agent.end()


class LeasedStreamingResponse(StreamingResponse):
    """Holds what was entered for it, until it has been sent or the client is gone."""

    def __init__(self, events: AsyncIterator[str], held: ExitStack) -> None:
        super().__init__(events, media_type=EVENT_STREAM)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await super().__call__(scope, receive, send)


class CallHttpApi:
    """``GET`` which calls there are, ``POST`` a command, ``GET`` the events of a call."""

    def __init__(self, server: SpeechServer, switchboard: CallRegistry) -> None:
        self._server, self._switchboard = server, switchboard

    async def calls(self, request: Request) -> Response:
        caller = self._server.gatekeeper.require_api_key(request)
        return JSONResponse({"calls": [msgspec.to_builtins(one) for one in self._switchboard.calls(caller.name)]})

    async def command(self, request: Request) -> Response:
        caller = self._server.gatekeeper.require_api_key(request)
        call = self._switchboard.call(caller.name, request.path_params["call_id"])
        answer = await call.handle_command(parse_command(await read_body(request, self._server)))
        return JSONResponse({} if answer is None else msgspec.to_builtins(answer), 202)

    async def events(self, request: Request) -> Response:
        """Server-sent events until the call has ended."""
        caller = self._server.gatekeeper.require_api_key(request)
        call_id = request.path_params["call_id"]
        self._switchboard.call(caller.name, call_id)
        self._server.check_connection_limits(caller)
        with ExitStack() as entered:
            agent = entered.enter_context(self._switchboard.subscribe(caller.name, call_id))
            entered.enter_context(self._server.track_connection(CallEventStream(agent), caller))
            return LeasedStreamingResponse(self._stream(agent), entered.pop_all())

    async def _stream(self, agent: AgentSubscription) -> AsyncIterator[str]:
        while True:
            try:
                async with asyncio.timeout(KEEPALIVE_INTERVAL_S):
                    event = await agent.events.get()
            except TimeoutError:
                yield ": still there\n\n"
                continue
            if event is None:
                break
            yield f"data: {serialize(event)}\n\n"
        if agent.is_overflowed:
            error = RequestRefused("slow_reader", f"more events waited than max_events, {agent.max_events}")
            yield f"data: {serialize(model.CommandRefused.from_info(error.info, agent.call_id))}\n\n"


def call_routes(server: SpeechServer, switchboard: CallRegistry) -> list[BaseRoute]:
    over_http = CallHttpApi(server, switchboard)
    agent = AgentEndpoint(server, switchboard)
    return [
        WebSocketRoute(PATH, agent),
        WebSocketRoute(PATH + "/{call_id}", agent),
        Route(PATH, over_http.calls),
        Route(PATH + "/{call_id}", over_http.command, methods=["POST"]),
        Route(PATH + "/{call_id}/events", over_http.events),
    ]
