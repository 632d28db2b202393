"""The text side of calls: a WebSocket or HTTP by which an agent sends replies and receives events."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from engine.api import SpeechError
from realtime.auth import Principal
from realtime.calls.call_registry import AgentSubscription, CallRegistry
from realtime.connection import ResumableConnection
from realtime.errors import CloseCode, RemoteProtocolError, RequestRefused
from realtime.protocol import model
from realtime.protocol.call_events import AgentSession, parse_command, serialize
from realtime.protocol.native import parse_flag
from realtime.relayed_client import RelayedClient, RelayingConnection, RelayRequest
from realtime.resumption import ResumableState, resume_refused
from realtime.server import SpeechServer
from realtime.transports.http_routes import read_body, refusal_response
from realtime.transports.transport import MessageTransport, WebSocketTransport, write_timeout_s

log = logging.getLogger("voicewire.calls")

PATH = "/v1/calls"
# Sent events that a resumable session of an agent retains.
MAX_RETAINED_EVENTS = 1_024
MAX_COUNT_DIGITS = 15
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


@dataclass(slots=True, eq=False)
class AgentState(ResumableState):
    agent: AgentSubscription
    # Ends the subscription.
    held: ExitStack
    num_commands: int = 0
    num_sent: int = 0
    # The last events that were sent.
    sent: deque[model.CallEvent] = field(default_factory=lambda: deque(maxlen=MAX_RETAINED_EVENTS))

    def lacking(self, num_received: int) -> list[model.CallEvent]:
        """Return the sent events that a client lacks. Raises ``RequestRefused``."""
        num_lacking = self.num_sent - num_received
        if not 0 <= num_lacking <= len(self.sent):
            first = self.num_sent - len(self.sent)
            raise resume_refused(f"received_events must be between {first} and {self.num_sent}, is {num_received}")
        return list(self.sent)[len(self.sent) - num_lacking :]


class AgentConnection(ResumableConnection):
    """Call ``open``, ``run``, ``release_resources``."""

    def __init__(
        self, server: SpeechServer, switchboard: CallRegistry, caller: Principal, link: MessageTransport
    ) -> None:
        super().__init__(server)
        self._switchboard, self._caller, self._link = switchboard, caller, link
        # Set by ``open``.
        self._state: AgentState
        self._agent: AgentSubscription
        self._held: ExitStack

    def open(self, call_id: str | None, query: Mapping[str, str], num_counted: int = 1) -> None:
        """Subscribe to calls, or go on with the session of a lost connection. Raises ``RequestRefused``."""
        if "session_id" in query:
            self._resume(query["session_id"], query.get("resume_token", ""), query.get("received_events", ""))
        else:
            with ExitStack() as held:
                agent = held.enter_context(self._switchboard.subscribe(self._caller.name, call_id))
                is_resumable = parse_flag(query, "resume") and self._limits.resume_grace_s > 0
                held = held.pop_all()
            self._use(AgentState(secrets.token_hex(8), self._caller.name, agent, held))
            if is_resumable:
                self._attach(self._state)
                self._send_session("session.created")
        self._entered.enter_context(self._server.track_connection(self, self._caller, num_counted))

    def _resume(self, session_id: str, token: str, received_events: str) -> None:
        table = self._server.resumption
        claims = table.check(session_id, token, self._caller)
        state = table.find(AgentState, claims)
        if not received_events.isdecimal() or len(received_events) > MAX_COUNT_DIGITS:
            raise RequestRefused(
                "invalid_request", f"received_events must be a count, is {received_events[:20]!r}", "received_events"
            )
        lacking = state.lacking(int(received_events))
        table.take(state, claims)
        self._use(state)
        self._attach(state)
        self._send_session("session.resumed")
        self._send(*map(serialize, lacking))

    def _use(self, state: AgentState) -> None:
        self._state, self._agent, self._held = state, state.agent, state.held
        self._agent.wake = self._to_write.set
        self._has_received = True

    def _send_session(self, kind: Literal["session.created", "session.resumed"]) -> None:
        state, token = self._state, self._server.resumption.token(self._state)
        grace_s = self._limits.resume_grace_s
        self._send(serialize(AgentSession(kind, state.session_id, token, grace_s, state.num_commands)))

    def release_resources(self) -> None:
        self._entered.close()
        self._held.close()

    def release(self) -> None:
        self._held = ExitStack()
        super().release()

    async def run(self) -> None:
        await self._run(self._link)

    def on_tick(self, now_s: float) -> None:
        if self._server.draining and not self._switchboard.calls(self._caller.name):
            self.close("draining")

    def _pop_event(self, now: float) -> bool:
        if self._is_idle:
            return False
        event = self._agent.events.get_nowait()
        if event is not None:
            self._state.num_sent += 1
            self._state.sent.append(event)
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
        return self._is_released.is_set() or self._agent.events.empty()

    async def _receive(self, message: model.Message) -> None:
        self._confirm()
        self._state.num_commands += 1
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
