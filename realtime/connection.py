"""One client on one wire: a reader, a writer and its dialect, whatever carries the messages."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from starlette.responses import JSONResponse

from engine.api import INTERNAL_ERROR, ErrorInfo, SpeechError
from realtime.auth import UNKNOWN_KEY, Principal
from realtime.conversation import Conversation, describe_session
from realtime.errors import CloseCode, ProtocolError, RequestRefused, http_status, rule_for
from realtime.option_resolver import OptionResolver
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect
from realtime.protocol.dialects.registry import DialectRoute
from realtime.server import SpeechServer
from realtime.speech_api.overrides import merge_fields, override_settings
from realtime.transports.http_routes import refusal_headers
from realtime.transports.transport import HttpTransport, MessageReader, MessageTransport, ResponseAborted, check_size
from sessions.clock import WakeEvent, now_s
from sessions.session import Session
from sessions.validation import check_format
from sessions.voices.lookup import find_voice
from sessions.weak import weak_method

log = logging.getLogger("voicewire.connection")

# A connection that is closed waits at most so long until each context was told its end.
CLOSE_GRACE_S = 0.5
# Messages that wait to be written; a client that does not read them is not read either.
MAX_PENDING_MESSAGES = 64
# Events that are written per loop iteration, so that a flood of flushes does not delay other connections.
YIELD_EVERY_EVENTS = 50
WARNING = "X-Voicewire-Warning"


@dataclass(frozen=True, slots=True)
class CloseReason:
    """Why the server ends a connection. The first reason counts."""

    code: int
    text: str
    deadline_s: float
    # Sent right before the close.
    last_error: ErrorInfo | None = None
    # HTTP: the answer has its status, or is cut if it has begun.
    abort: ErrorInfo | None = None


class Connection:
    """One client on one wire. ``open``, ``run``, ``aclose``.

    The reader hands messages to the dialect and carries out its commands. What is to be sent waits in one queue. The
    writer empties it, then asks the conversation for events that are due: between that and the write nothing else
    runs, so that no audio follows a cancel.
    """

    def __init__(self, server: SpeechServer, route: DialectRoute, dialect: Dialect) -> None:
        self._server = server
        self._route = route
        self._dialect = dialect
        self._limits = server.config.limits
        self._entered = ExitStack()
        self._caller = Principal()
        self._resolver = OptionResolver(
            replace(
                server.settings,
                lead_ms=self._lead_ms,
                reports_heard_text=dialect.reports_heard_text,
                align_eagerly=route.serial,
            ),
            server.engine.info,
            server.config.dialects.voice_aliases,
            weak_method(self._has_stored_voice),
        )
        self._session: Session | None = None
        # There with the session: once it is known whose connection this is.
        self._conversation: Conversation
        self._link: MessageTransport
        self._warnings: tuple[str, ...] = ()
        self._speech_fields: dict[str, Any] = {}
        self._num_errors = 0
        self._opened_s = now_s()
        # Neither before it has begun nor once it ends may the server end it.
        self._is_running = False
        self._close_reason: CloseReason | None = None
        # The code that the WebSocket was closed with by either side.
        self._closed_with: int | None = None
        # To be written, in order.
        self._messages: deque[model.Message] = deque()
        self._to_write = WakeEvent()
        self._has_room = WakeEvent()

    @property
    def _lead_ms(self) -> int | None:
        config = self._server.config
        return None if self._route.transport == "http" else min(config.dialects.lead_ms, config.limits.max_lead_ms)

    def open(self, caller: Principal) -> None:
        """Take a place. Raises what refuses a handshake."""
        self._caller = caller
        if self._dialect.options is not None:
            self._warnings = self._validate_options(self._dialect.options)
        if caller.is_authenticated:
            self._open_session(caller)
        self._entered.enter_context(self._server.track_connection(self, caller))

    def _validate_options(self, wish: model.SpeechOptions) -> tuple[str, ...]:
        """What to warn of. Raises ``UnsupportedFormat``."""
        settings, warnings = self._resolver.resolve(wish)
        check_format(settings.format)
        return warnings

    def headers(self) -> dict[str, str]:
        """Of the answer to the handshake or request."""
        warning = {WARNING: "; ".join(self._warnings)} if self._warnings else {}
        return printable(self._dialect.headers() | warning)

    @property
    def subprotocol(self) -> str | None:
        """Accepted with the handshake of a WebSocket."""
        return self._dialect.subprotocol

    def head(self) -> tuple[str, dict[str, str]]:
        return self._dialect.media_type, self.headers()

    async def run(self, link: MessageTransport, body: bytes | None = None) -> None:
        """Returns when the line is closed. An HTTP request has its ``body``. Raises ``ResponseAborted``."""
        self._link = link
        self._server.metrics.inc("dialect_connections_total", dialect=self._route.path)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write(), name="voicewire writer")
                await self._start(body)
                await self._read()
                self._stop()
                self._closed_with = link.close_code
        except ExceptionGroup as faults:
            self._stop()
            if faults.split(ResponseAborted)[1] is None:
                raise ResponseAborted from None
            log.exception("internal error in connection", extra=self._facts())
            await self._end_by_internal_error()

    async def aclose(self) -> None:
        """Returns when nothing of the session is left."""
        self._entered.close()
        if self._session is not None:
            await self._session.aclose()
            log.info("session closed", extra=self._facts() | {"close_code": self._closed_with})

    def on_tick(self, now_s: float) -> None:
        if not self._is_running:
            return
        if now_s - self._opened_s >= self._limits.max_session_duration_s:
            self.close("session_expired")
        elif self._session is None:
            if now_s - self._opened_s >= self._server.config.listen.handshake_timeout_s:
                self.close("unauthorized")
        elif self._session.detached.is_set():
            self.close("idle_timeout")
        elif self._server.draining and not self._conversation.num_speaking:
            self.close("draining")
        elif self._dialect.context_timeout_s is not None:
            self._conversation.report_idle(self._dialect.context_timeout_s, now_s)

    def close(self, code: str) -> None:
        if self._is_running:
            self._end(RequestRefused(code, rule_for(code).meaning).info, rule_for(code).close)

    # The reader

    async def _start(self, body: bytes | None) -> None:
        if self._dialect.reports_session and self._session is not None:
            self._apply_all(self._dialect.send_session(await describe_session(self._server, self._session)))
        self._is_running = True
        self._apply_all(self._dialect.start())
        if body is not None:
            await self._receive(body)

    async def _read(self) -> None:
        reader = MessageReader(self._link)
        while (message := await reader.receive()) is not None:
            while len(self._messages) >= MAX_PENDING_MESSAGES:
                await self._has_room.wait()
            if self._close_reason is None:
                await self._receive(message)

    async def _receive(self, message: model.Message) -> None:
        if self._session is not None:
            self._session.touch()
        try:
            check_size(message, self._limits.max_message_bytes)
            for command in list(self._dialect.receive_message(message)):
                await self._execute(command)
        except SpeechError as error:
            self._answer(error)

    async def _execute(self, command: model.DialectCommand) -> None:
        match command:
            case model.Configure():
                await self._configure(command.fields)
            case model.QueryHeard():
                self._require_session()
                self._send_event(await self._conversation.query_heard(command))
            case _:
                self._apply(command)

    async def _configure(self, given: Mapping[str, Any]) -> None:
        """Raises what ``override_settings`` does; then what was configured before goes on to hold."""
        self._require_session()
        fields = merge_fields(self._speech_fields, given)
        base = await override_settings(self._resolver.base, fields, self._server, self._caller)
        self._speech_fields = fields
        self._conversation.resolver = replace(self._resolver, base=base)

    # Commands that wait for nothing

    def _apply_all(self, commands: Iterable[model.DialectCommand]) -> None:
        for command in list(commands):
            self._apply(command)

    def _apply(self, command: model.DialectCommand) -> None:
        match command:
            case model.SendMessage():
                self._messages.append(command.message)
                self._to_write.set()
                if command.refused_code is not None:
                    self._count_refusal(command.refused_code)
            case model.CloseConnection():
                self._begin_close(command.code, command.reason)
            case model.AbortRequest():
                self._begin_close(CloseCode.INTERNAL_ERROR, command.error.code, abort=command.error)
            case model.AuthenticateKey():
                self._authenticate(command.key)
            case model.UpdateSettings():
                self._require_session()
                self._apply_all(self._dialect.send_session(self._conversation.update(command.settings)))
            case model.Configure() | model.QueryHeard():
                raise AssertionError(f"{type(command).__name__} is given for a client's message only")
            case _:
                self._require_session()
                for event in self._conversation.handle(command):
                    self._send_event(event)
                    if isinstance(event, model.ContextEnded) and event.error is not None:
                        self._count_refusal(event.error.code)

    def _send_event(self, event: model.DialectEvent) -> None:
        if isinstance(event, model.ContextOpened) and event.warnings:
            self._warnings = event.warnings
            log.info("unsupported option ignored", extra=self._facts())
        if isinstance(event, model.ContextEnded):
            log.info("response ended", extra=self._facts() | _facts_of(event))
            self._server.metrics.inc("dialect_contexts_total", dialect=self._route.path, status=event.status)
        self._apply_all(self._dialect.send_event(event))

    def _require_session(self) -> None:
        if self._session is None:
            raise RequestRefused("unauthorized", UNKNOWN_KEY)

    def _authenticate(self, key: str) -> None:
        """Raises ``SpeechError``. Once it is known whose connection this is, it stays theirs."""
        if self._session is not None:
            return
        caller = self._server.gatekeeper.principal_for_key(key)
        self._entered.close()  # released first, so that it is not counted
        self._server.check_connection_limits(caller)
        self._server.check_response_limits(caller)
        self._open_session(caller)
        self._entered.enter_context(self._server.track_connection(self, caller))

    def _open_session(self, caller: Principal) -> None:
        self._caller = caller
        self._session = self._server.open_session(caller)
        log.info("session opened", extra=self._facts() | {"api_key_name": caller.name})
        self._conversation = Conversation(
            self._session,
            self._resolver,
            self._server.check_not_draining,
            self._server.config,
            self._to_write.set,
            serial=self._route.serial,
        )

    def _has_stored_voice(self, name: str) -> bool:
        return find_voice(self._server.voices, self._caller.name, name) is not None

    # The writer

    async def _write(self) -> None:
        """Write until the line is closed by the client, or all is told that is to be told before a close."""
        num_events = 0
        while await self._link.writable():
            if self._messages:
                await self._write_next()
            elif self._is_ready_to_close(now_s()):
                await self._close_link()
                break
            elif (event := self._pop_event()) is not None:
                self._send_event(event)
                while self._messages:
                    await self._write_next()
                num_events += 1
                if num_events % YIELD_EVERY_EVENTS == 0:
                    await asyncio.sleep(0)
            else:
                await self._to_write.wait(until_s=self._next_write_s())
        self._messages.clear()
        self._has_room.set()

    async def _write_next(self) -> None:
        await self._link.write(self._messages.popleft())
        self._has_room.set()

    def _pop_event(self) -> model.DialectEvent | None:
        return None if self._session is None else self._conversation.pop_due(now_s())

    def _next_write_s(self) -> float | None:
        due_s = None if self._session is None else self._conversation.due_s(now_s())
        if self._close_reason is None:
            return due_s
        return self._close_reason.deadline_s if due_s is None else min(due_s, self._close_reason.deadline_s)

    # Errors and the end

    def _answer(self, error: SpeechError) -> None:
        """Tell the client what it did wrong, and close if that broke the wire."""
        info = error.info
        log.info("client message rejected", extra=self._facts() | {"code": info.code})
        close = self._close_after(error, info.code)
        if close is None:
            self._apply_all(self._dialect.send_error(info, None))
        else:
            self._end(info, close)
        self._count_refusal(info.code)

    def _close_after(self, error: SpeechError, code: str) -> CloseCode | None:
        if self._session is None:
            return rule_for(code).close or CloseCode.POLICY_VIOLATION
        if code == "message_too_big":
            return rule_for(code).close
        return rule_for(code).close if isinstance(error, ProtocolError) and not self._dialect.forgiving else None

    def _count_refusal(self, code: str) -> None:
        self._server.metrics.refused(code)
        self._num_errors += 1
        limit = self._limits.max_errors_per_connection
        if self._num_errors >= limit and self._close_reason is None:
            info = ErrorInfo("too_many_errors", f"max_errors_per_connection is {limit}")
            self._end(info, CloseCode.POLICY_VIOLATION)

    def _end(self, info: ErrorInfo, close: CloseCode | None) -> None:
        """Tell the client the reason, and close once every context was told its end."""
        assert close is not None, f"{info.code} closes no connection"
        code = self._dialect.close_codes.get(close, close)
        self._stop()
        if not self._dialect.sends_error_last:
            self._apply_all(self._dialect.send_error(info, code))
        self._begin_close(code, info.code, last_error=info if self._dialect.sends_error_last else None)

    def _begin_close(
        self, code: int, text: str, *, last_error: ErrorInfo | None = None, abort: ErrorInfo | None = None
    ) -> None:
        self._stop()
        if self._close_reason is None:
            self._close_reason = CloseReason(code, text, now_s() + CLOSE_GRACE_S, last_error, abort)
            self._to_write.set()

    def _stop(self) -> None:
        """Cancel everything; idempotent."""
        self._is_running = False
        if self._session is not None:
            self._session.detach()
        self._to_write.set()

    def _is_ready_to_close(self, now: float) -> bool:
        """Whether every context was told its end, or that takes too long."""
        reason = self._close_reason
        if reason is None:
            return False
        is_idle = self._session is None or self._conversation.is_idle
        return is_idle or reason.abort is not None or now >= reason.deadline_s

    async def _close_link(self) -> None:
        reason = self._close_reason
        assert reason is not None
        if reason.abort is not None and isinstance(self._link, HttpTransport):
            await self._link.abort(refusal(self._route, reason.abort))
        else:
            await self._write_error(reason.last_error, reason.code)
            await self._link.close(reason.code, reason.text)

    async def _end_by_internal_error(self) -> None:
        """The writer has ended, too: write without it."""
        if isinstance(self._link, HttpTransport):
            await self._link.abort(refusal(self._route, INTERNAL_ERROR))
        elif await self._link.writable():
            await self._write_error(INTERNAL_ERROR, CloseCode.INTERNAL_ERROR)
            await self._link.close(CloseCode.INTERNAL_ERROR, INTERNAL_ERROR.code)

    async def _write_error(self, error: ErrorInfo | None, code: int) -> None:
        for command in [] if error is None else list(self._dialect.send_error(error, code)):
            if isinstance(command, model.SendMessage):
                await self._link.write(command.message)

    def _facts(self) -> dict[str, object]:
        """Log fields of the connection."""
        return {"session_id": self._session and self._session.session_id, "dialect": self._route.path}


def _facts_of(ended: model.ContextEnded) -> dict[str, object]:
    """Log fields of a context, without its text."""
    return {
        "response_id": ended.context,
        "status": ended.status,
        "code": ended.error and ended.error.code,
        "audio_ms": round(ended.audio_ms),
        "first_audio_ms": ended.first_audio_ms and round(ended.first_audio_ms, 1),
    }


def refusal(wire: DialectRoute, info: ErrorInfo) -> JSONResponse:
    """The vendor's shape of an HTTP error."""
    status = http_status(info)
    body, headers = wire.dialect.reject_handshake(info, status)
    return JSONResponse(body, status, refusal_headers(info) | printable(headers))


def printable(headers: dict[str, str]) -> dict[str, str]:
    """What a client wrote may come back in a header: nothing of it ends the header."""
    return {name: _line(value).encode("latin-1", "replace").decode("latin-1") for name, value in headers.items()}


def _line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text).strip()
