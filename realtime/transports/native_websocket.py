"""The native wire on a WebSocket: the handshake, then a connection that reads while it speaks."""

from __future__ import annotations

import asyncio
import logging

from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from engine.api import INTERNAL_ERROR, ErrorInfo, SpeechError
from realtime.errors import ProtocolError, RemoteProtocolError, RequestRefused, rule_for
from realtime.event_bridge import EventBridge
from realtime.protocol import events as ev
from realtime.protocol.native import SUBPROTOCOL, parse_client, serialize
from realtime.server import SpeechServer
from realtime.setting_mapping import wire_settings
from realtime.transports.http_routes import refusal_response
from realtime.transports.transport import WRITE_GRACE_S, MessageReader, MessageTransport, WebSocketTransport, check_size
from realtime.version import VERSION
from sessions.session import Session
from sessions.voices.lookup import voices_for
from sessions.weak import weak_method

log = logging.getLogger("voicewire.connection")

# Stored voices that are listed on connect; ``GET /v1/voices`` lists all.
MAX_LISTED_VOICES = 1_000
# A connection that the server ends waits at most so long until each response was told its end.
CLOSE_GRACE_S = 0.5


class NativeEndpoint:
    """The ASGI application of ``/v1/speech``."""

    def __init__(self, server: SpeechServer) -> None:
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        websocket = WebSocket(scope, receive, send)
        try:
            caller = self._server.gatekeeper.authenticate(websocket)
            offered = scope.get("subprotocols", [])
            if offered and SUBPROTOCOL not in offered:
                raise RequestRefused("unsupported_subprotocol", f"this address speaks {SUBPROTOCOL}")
            self._server.check_connection_limits(caller)
            session = self._server.open_session(caller)
        except SpeechError as error:
            self._server.metrics.refused(error.code)
            log.info("handshake rejected", extra={"code": error.code})
            await websocket.send_denial_response(refusal_response(error.info))
            return
        timeout_s = self._server.config.limits.reader_timeout_s + WRITE_GRACE_S
        link = WebSocketTransport(scope, receive, send, timeout_s)
        connection = NativeConnection(self._server, session, link)
        try:
            with self._server.track_connection(connection, caller):
                await websocket.accept(subprotocol=SUBPROTOCOL if offered else None)
                log.info("session opened", extra={"session_id": session.session_id, "api_key_name": caller.name})
                await connection.run()
        finally:
            await session.aclose()
            log.info("session closed", extra={"session_id": session.session_id, "close_code": link.close_code})


class NativeConnection:
    """One session on one line, from ``session.created`` to the close."""

    def __init__(self, server: SpeechServer, session: Session, link: MessageTransport) -> None:
        self._server = server
        self._session = session
        self._link = link
        self._limits = server.config.limits
        self._num_errors = 0
        # Not to be ended: not yet begun, or about to end.
        self._ending = True
        self._opened_s = asyncio.get_running_loop().time()
        self._tasks = asyncio.TaskGroup()
        self._bridge = EventBridge(
            session,
            link,
            self._tasks,
            check_can_start=server.check_not_draining,
            on_silent=weak_method(self._wait_idle),
            default_lead_ms=server.config.speech.lead_ms,
            max_retained_responses=self._limits.max_retained_responses,
        )

    async def run(self) -> None:
        """Returns when the line is closed and nothing of the session is left."""
        try:
            created = self._created(await self._voices())
            async with self._tasks:
                self._ending = False
                await self._link.send(serialize(created))
                await self._read()
                self._ending = True
                self._session.detach()
        except ExceptionGroup:
            self._ending = True
            log.exception("internal error in connection", extra={"session_id": self._session.session_id})
            await self._close(INTERNAL_ERROR)

    def on_tick(self, now_s: float) -> None:
        if now_s - self._opened_s >= self._limits.max_session_duration_s:
            self.close("session_expired")
        elif self._session.detached.is_set():
            self.close("idle_timeout")
        elif self._server.draining and not self._bridge.num_live:
            self.close("draining")

    def close(self, code: str) -> None:
        if not self._ending:
            self._ending = True
            reason = RequestRefused(code, rule_for(code).meaning).info
            self._tasks.create_task(self._close(reason), name="voicewire close")

    async def _read(self) -> None:
        reader = MessageReader(self._link)
        while (message := await reader.receive()) is not None:
            event: ev.ClientEvent | None = None
            try:
                event = self._parse(message)
                await self._bridge.handle_event(event)
            except SpeechError as error:
                await self._send_error(error, getattr(event, "response_id", None))

    def _parse(self, message: str | bytes) -> ev.ClientEvent:
        if isinstance(message, bytes):
            raise RemoteProtocolError("binary_not_accepted", "clients send text messages only")
        check_size(message, self._limits.max_message_bytes)
        return parse_client(message)

    async def _send_error(self, error: SpeechError, response_id: str | None) -> None:
        """Tell the client what it did wrong, and close if that broke the wire."""
        info = error.info
        self._server.metrics.refused(info.code)
        log.info("client event rejected", extra={"session_id": self._session.session_id, "code": info.code})
        self._num_errors += 1
        if isinstance(error, ProtocolError) and rule_for(info.code).close is not None:
            await self._close(info, response_id)
            return
        await self._link.send(serialize(ev.ErrorEvent.from_info(info, response_id)))
        if self._num_errors >= self._limits.max_errors_per_connection:
            limit = f"max_errors_per_connection is {self._limits.max_errors_per_connection}"
            await self._close(ErrorInfo("too_many_errors", limit))

    async def _close(self, info: ErrorInfo, response_id: str | None = None) -> None:
        self._ending = True
        code = rule_for(info.code).close
        assert code is not None
        self._session.detach()
        await self._bridge.wait_idle(CLOSE_GRACE_S)
        await self._link.send(serialize(ev.ErrorEvent.from_info(info, response_id)))
        await self._link.close(code, info.code)
        log.info("closed", extra={"session_id": self._session.session_id, "close_code": int(code), "code": info.code})

    def _wait_idle(self) -> None:
        if self._bridge.closing and not self._ending:
            self._ending = True
            self._tasks.create_task(self._link.close(1000), name="voicewire close")

    async def _voices(self) -> tuple[str, ...]:
        """Of the model, and those stored for this key."""
        info = self._server.engine.info
        names = tuple(voice.name for voice in info.voices)
        if not info.can_clone:
            return names
        stored = await asyncio.to_thread(voices_for, self._server.voices, self._session.key)
        return names + tuple(manifest.name for manifest in stored[:MAX_LISTED_VOICES])

    def _created(self, voices: tuple[str, ...]) -> ev.SessionCreated:
        info = self._server.engine.info
        limits = self._limits
        return ev.SessionCreated(
            session_id=self._session.session_id,
            resume_token=self._session.resume_token,
            protocol=SUBPROTOCOL,
            server_version=VERSION,
            model=info.model,
            voices=voices,
            languages=info.languages,
            settings=wire_settings(self._session.settings),
            limits=ev.SessionLimitsInfo(
                max_message_bytes=limits.max_message_bytes,
                max_response_chars=limits.max_response_chars,
                max_active_responses=limits.max_active_responses_per_session,
                idle_timeout_s=limits.idle_timeout_s,
                max_session_s=limits.max_session_duration_s,
            ),
        )
