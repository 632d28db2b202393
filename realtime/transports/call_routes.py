"""The text side of calls: a WebSocket or HTTP by which an agent sends replies and receives events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from engine.api import SpeechError
from realtime.auth import Principal
from realtime.calls.call_registry import AgentSubscription, CallRegistry
from realtime.connection import Connection
from realtime.errors import CloseCode, RemoteProtocolError, RequestRefused
from realtime.protocol import model
from realtime.protocol.call_events import parse_command, serialize
from realtime.server import SpeechServer
from realtime.transports.http_routes import refusal_response
from realtime.transports.transport import (
    WRITE_GRACE_S,
    WebSocketTransport,
    read_limited_body,
)

log = logging.getLogger("voicewire.calls")

PATH = "/v1/calls"
KEEPALIVE_INTERVAL_S = 15.0
EVENT_STREAM = "text/event-stream"


class AgentEndpoint:
    """The WebSocket of an agent: of all calls of its key, or of the one that the address names."""

    def __init__(self, server: SpeechServer, switchboard: CallRegistry) -> None:
        self._server, self._switchboard = server, switchboard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        websocket = WebSocket(scope, receive, send)
        call_id = websocket.path_params.get("call_id")
        timeout_s = self._server.config.limits.reader_timeout_s + WRITE_GRACE_S
        link = WebSocketTransport(scope, receive, send, timeout_s)
        try:
            caller = self._server.gatekeeper.require_api_key(websocket)
            self._server.check_connection_limits(caller)
            listening = self._switchboard.subscribe(caller.name, call_id)
            agent = listening.__enter__()
        except SpeechError as error:
            self._server.metrics.refused(error.code)
            await websocket.send_denial_response(refusal_response(error.info))
            return
        connection = AgentConnection(self._server, self._switchboard, caller, agent, link)
        try:
            with self._server.track_connection(connection, caller):
                await websocket.accept()
                await connection.run()
        finally:
            listening.__exit__(None, None, None)


class AgentConnection(Connection):
    """``run`` returns when the line is closed."""

    def __init__(
        self,
        server: SpeechServer,
        switchboard: CallRegistry,
        caller: Principal,
        agent: AgentSubscription,
        link: WebSocketTransport,
    ) -> None:
        super().__init__(server)
        self._switchboard, self._caller = switchboard, caller
        self._agent, self._link = agent, link
        agent.wake = self._to_write.set

    async def run(self) -> None:
        await self._run(self._link)

    def on_tick(self, now_s: float) -> None:
        if self._server.draining and not self._switchboard.calls(self._caller.name):
            self.close("draining")

    def _pop_event(self, now: float) -> bool:
        if self._agent.events.empty():
            return False
        event = self._agent.events.get_nowait()
        if event is not None:
            self._send(serialize(event))
        elif self._agent.is_overflowed:
            self._begin_close(CloseCode.POLICY_VIOLATION, "slow_reader")
        else:
            self._begin_close(CloseCode.NORMAL, "")
        return True

    def _due_s(self, now: float) -> float | None:
        return None

    @property
    def _is_idle(self) -> bool:
        return self._agent.events.empty()

    async def _receive(self, message: model.Message) -> None:
        call_id = self._agent.call_id
        try:
            command = self._parse(message)
            call_id = call_id or command.call_id
            if call_id is None:
                raise RemoteProtocolError("invalid_event", "call_id must be given here", "call_id")
            answer = await self._switchboard.call(self._caller.name, call_id).handle_command(command)
        except SpeechError as error:
            self._agent.enqueue(model.CommandRefused.from_info(error.info, call_id))
            self._count_refusal(error.info.code)
        else:
            if answer is not None:
                self._agent.enqueue(answer)

    def _parse(self, message: model.Message) -> model.Command:
        self._check_size(message)
        if isinstance(message, bytes):
            raise RemoteProtocolError("binary_not_accepted", "this address takes text messages only")
        return parse_command(message)


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
        answer = await call.handle_command(parse_command(await self._body(request)))
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

    async def _body(self, request: Request) -> bytes:
        """Read the body; raises ``RequestRefused``."""
        config = self._server.config
        return await read_limited_body(request, config.limits.max_message_bytes, config.listen.handshake_timeout_s)


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
