"""One client on a vendor's wire: reads while it speaks, whatever carries it."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

from starlette.responses import JSONResponse

from engine.api import INTERNAL_ERROR, ErrorInfo, SpeechError
from realtime.auth import UNKNOWN_KEY, Principal
from realtime.context_registry import ContextIntent, ContextRegistry
from realtime.errors import CloseCode, ProtocolError, RequestRefused, http_status, rule_for
from realtime.option_resolver import OptionResolver
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect
from realtime.protocol.dialects.registry import DialectRoute
from realtime.server import SpeechServer
from realtime.speech_api.overrides import merge_fields, override_settings
from realtime.transports.http_routes import refusal_headers
from realtime.transports.transport import HttpTransport, MessageReader, MessageTransport, ResponseAborted, check_size
from sessions.clock import now_s
from sessions.session import Session
from sessions.validation import check_format
from sessions.voices.lookup import find_voice
from sessions.weak import weak_method

log = logging.getLogger("voicewire.dialects")

OtherIntent = (
    model.CloseConnection
    | model.AbortRequest
    | model.AuthenticateKey
    | model.Configure
    | model.QueryHeard
    | ContextIntent
)
# A connection that is closed waits at most so long until each context was told its end.
CLOSE_GRACE_S = 0.5
# Vendors' clients do not know this server's close codes.
VENDOR_CLOSE = {CloseCode.IDLE_TIMEOUT: CloseCode.GOING_AWAY, CloseCode.SESSION_EXPIRED: CloseCode.GOING_AWAY}
WARNING = "X-Voicewire-Warning"


class DialectConnection:
    """One client on one wire. ``enter``, ``converse``, ``aclose``."""

    def __init__(self, server: SpeechServer, wire: DialectRoute, dialect: Dialect) -> None:
        self._server = server
        self._wire = wire
        self._dialect = dialect
        self._limits = server.config.limits
        self._tasks = asyncio.TaskGroup()
        self._entered = ExitStack()
        self._caller = Principal()
        self._grantor = OptionResolver(
            replace(server.settings, lead_ms=self._lead_ms),
            server.engine.info,
            server.config.dialects.voice_aliases,
            weak_method(self._has_stored_voice),
        )
        self._session: Session | None = None
        # There with the session: once it is known whose connection this is.
        self._contexts: ContextRegistry
        self._link: MessageTransport
        self._warnings: tuple[str, ...] = ()
        self._speech_fields: dict[str, Any] = {}
        self._num_errors = 0
        self._opened_s = now_s()
        # Not to be ended: not yet begun, or about to end.
        self._ending = True
        self._closing = False
        self._writing = asyncio.Lock()

    @property
    def _lead_ms(self) -> int | None:
        config = self._server.config
        return None if self._wire.transport == "http" else min(config.dialects.lead_ms, config.limits.max_lead_ms)

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
        settings, warnings = self._grantor.resolve(wish)
        check_format(settings.format)
        return warnings

    def headers(self) -> dict[str, str]:
        """Of the answer to the handshake or request."""
        warning = {WARNING: "; ".join(self._warnings)} if self._warnings else {}
        return printable(self._dialect.headers() | warning)

    def head(self) -> tuple[str, dict[str, str]]:
        return self._dialect.media_type, self.headers()

    async def run(self, link: MessageTransport, body: bytes | None = None) -> None:
        """Returns when the line is closed. An HTTP request has its ``body``. Raises ``ResponseAborted``."""
        self._link = link
        self._server.metrics.inc("dialect_connections_total", dialect=self._wire.path)
        try:
            async with self._tasks:
                self._ending = False
                await self._execute(self._dialect.start())
                if body is not None:
                    await self._receive(body)
                await self._read()
                self._ending = True
                self._detach()
        except ExceptionGroup as faults:
            self._ending = True
            self._detach()
            if faults.split(ResponseAborted)[1] is None:
                raise ResponseAborted from None
            log.exception("internal error in connection", extra={"dialect": self._wire.path})
            await self._fail(INTERNAL_ERROR, CloseCode.INTERNAL_ERROR)

    async def aclose(self) -> None:
        """Returns when nothing of the session is left."""
        self._entered.close()
        if self._session is not None:
            await self._session.aclose()

    def on_tick(self, now_s: float) -> None:
        if self._ending:
            return
        if now_s - self._opened_s >= self._limits.max_session_duration_s:
            self.close("session_expired")
        elif self._session is None:
            if now_s - self._opened_s >= self._server.config.listen.handshake_timeout_s:
                self.close("unauthorized")
        elif self._session.detached.is_set():
            self.close("idle_timeout")
        elif self._server.draining and not self._contexts.num_speaking:
            self.close("draining")
        elif self._dialect.context_timeout_s is not None:
            for idle in self._contexts.idle(self._dialect.context_timeout_s, now_s):
                self._tasks.create_task(self._send_event(idle), name="voicewire idle context")

    def close(self, code: str) -> None:
        if not self._ending:
            self._ending = True
            reason = RequestRefused(code, rule_for(code).meaning).info
            self._tasks.create_task(self._fail(reason, rule_for(code).close), name="voicewire close")

    async def _read(self) -> None:
        reader = MessageReader(self._link)
        while (message := await reader.receive()) is not None:
            if not self._closing:
                await self._receive(message)

    async def _receive(self, message: model.Message) -> None:
        if self._session is not None:
            self._session.touch()
        try:
            check_size(message, self._limits.max_message_bytes)
            await self._execute(self._dialect.receive_message(message))
        except SpeechError as error:
            await self._answer(error)

    async def _execute(self, intents: Iterable[model.DialectCommand], wanted: Callable[[], bool] | None = None) -> None:
        for kind, run in itertools.groupby(list(intents), type):
            if kind is model.SendMessage:
                messages = list(cast(Iterable[model.SendMessage], run))
                await self._send(messages, wanted)
                await self._count_errors(sum(message.is_refusal for message in messages))
            else:
                await self._handle_command(cast(Iterable[OtherIntent], run))

    async def _send(self, messages: Iterable[model.SendMessage], wanted: Callable[[], bool] | None) -> None:
        """Nothing comes between messages that belong together, however slowly the line takes them."""
        async with self._writing:
            for each in messages:
                await self._link.send(each.message, wanted)

    async def _handle_command(self, intents: Iterable[OtherIntent]) -> None:
        for intent in intents:
            match intent:
                case model.CloseConnection():
                    await self._close(intent.code, intent.reason)
                case model.AbortRequest():
                    await self._abort(intent)
                case model.AuthenticateKey():
                    self._authenticate(intent.key)
                case model.Configure():
                    await self._configure(intent.fields)
                case _:
                    for event in await self._handle_event(intent):
                        await self._send_event(event)
                        await self._count_refusal(event)

    async def _handle_event(self, intent: ContextIntent | model.QueryHeard) -> list[model.DialectEvent]:
        if self._session is None:
            raise RequestRefused("unauthorized", UNKNOWN_KEY)
        return (
            await self._contexts.query_heard(intent)
            if isinstance(intent, model.QueryHeard)
            else self._contexts.handle(intent)
        )

    async def _send_event(self, event: model.DialectEvent, wanted: Callable[[], bool] | None = None) -> None:
        if isinstance(event, model.ContextOpened):
            self._log_warnings(event.warnings)
        if isinstance(event, model.ContextEnded):
            log.info("context ended", extra=self._facts(event))
            self._server.metrics.inc("dialect_contexts_total", dialect=self._wire.path, status=event.status)
        await self._execute(self._dialect.send_event(event), wanted)

    async def _count_refusal(self, event: model.DialectEvent) -> None:
        """A context that fails in answer to a message counts as an error of the connection."""
        if not isinstance(event, model.ContextEnded) or event.error is None:
            return
        self._server.metrics.refused(event.error.code)
        await self._count_errors(1)

    async def _count_errors(self, num_errors: int) -> None:
        for _ in range(num_errors):
            if self._is_one_error_too_many():
                await self._fail_by_errors()

    def _is_one_error_too_many(self) -> bool:
        self._num_errors += 1
        return self._num_errors >= self._limits.max_errors_per_connection and not self._closing

    async def _fail_by_errors(self) -> None:
        info = ErrorInfo("too_many_errors", f"max_errors_per_connection is {self._limits.max_errors_per_connection}")
        await self._fail(info, CloseCode.POLICY_VIOLATION)

    def _log_warnings(self, warnings: tuple[str, ...]) -> None:
        if warnings:
            self._warnings = warnings
            log.info("unsupported option ignored", extra={"dialect": self._wire.path})

    def _facts(self, ended: model.ContextEnded) -> dict[str, object]:
        """Log fields of a context, without its text."""
        return {
            "session_id": self._session and self._session.session_id,
            "dialect": self._wire.path,
            "status": ended.status,
            "code": ended.error and ended.error.code,
            "audio_ms": round(ended.audio_ms),
        }

    async def _answer(self, error: SpeechError) -> None:
        """Tell the client what it did wrong, and close if that broke the wire."""
        info = error.info
        self._server.metrics.refused(info.code)
        log.info("client message rejected", extra={"dialect": self._wire.path, "code": info.code})
        if self._is_one_error_too_many():
            await self._fail_by_errors()
        else:
            await self._fail(info, self._close_after(error, info.code))

    def _close_after(self, error: SpeechError, code: str) -> CloseCode | None:
        if self._session is None:
            return rule_for(code).close or CloseCode.POLICY_VIOLATION
        if code == "message_too_big":
            return rule_for(code).close
        return rule_for(code).close if isinstance(error, ProtocolError) and not self._dialect.forgiving else None

    async def _fail(self, info: ErrorInfo, close: CloseCode | None) -> None:
        code = None if close is None else VENDOR_CLOSE.get(close, close)
        if code is not None:
            self._ending = True
            self._detach()
        await self._execute(self._dialect.send_error(info, code))
        if code is not None:
            await self._close(code, info.code)

    async def _close(self, code: int, reason: str) -> None:
        """The first reason to close counts: contexts that end by it may ask for it again."""
        if self._closing:
            return
        self._ending = self._closing = True
        self._detach()
        if self._session is not None:
            await self._contexts.wait_idle(CLOSE_GRACE_S)
        await self._link.close(code, reason)

    async def _abort(self, abort: model.AbortRequest) -> None:
        self._ending = True
        self._detach()
        if isinstance(self._link, HttpTransport):
            await self._link.abort(refusal(self._wire, abort.error))
        else:
            await self._link.close(CloseCode.INTERNAL_ERROR, abort.error.code)

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

    async def _configure(self, given: Mapping[str, Any]) -> None:
        """Raises what ``override_settings`` does; then what was configured before goes on to hold."""
        if self._session is None:
            raise RequestRefused("unauthorized", UNKNOWN_KEY)
        fields = merge_fields(self._speech_fields, given)
        base = await override_settings(self._grantor.base, fields, self._server, self._caller)
        self._speech_fields = fields
        self._contexts.grantor = replace(self._grantor, base=base)

    def _open_session(self, caller: Principal) -> None:
        self._caller = caller
        self._session = self._server.open_session(caller)
        self._contexts = ContextRegistry(
            self._session,
            self._grantor,
            self._tasks,
            weak_method(self._send_event),
            self._server.check_not_draining,
            self._server.config,
            serial=self._wire.serial,
            reports_heard_text=self._dialect.reports_heard_text,
        )

    def _has_stored_voice(self, name: str) -> bool:
        return find_voice(self._server.voices, self._caller.name, name) is not None

    def _detach(self) -> None:
        if self._session is not None:
            self._session.detach()


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
