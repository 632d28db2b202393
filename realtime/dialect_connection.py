"""The connection of one client on a wire: its dialect turns messages into commands, and events into messages."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

from engine.api import INTERNAL_ERROR, ErrorInfo, SpeechError
from realtime.auth import UNKNOWN_KEY, Principal
from realtime.connection import CloseReason, ResumableConnection
from realtime.conversation import Conversation
from realtime.dialect_events import describe_session
from realtime.errors import (
    LATE_REFUSALS,
    CloseCode,
    ProtocolError,
    RequestRefused,
    http_status,
    refusal_headers,
    rule_for,
)
from realtime.option_resolver import WARNING_HEADER, OptionResolver
from realtime.protocol import agent_turns, model
from realtime.protocol.dialects.base import Dialect
from realtime.protocol.events import ResumePosition
from realtime.relayed_client import RelayRequest
from realtime.resumption import ResumableConversation, TokenClaims, resume_refused
from realtime.setting_mapping import wire_settings
from realtime.speech_api.speech_job import merge_fields, override_settings
from realtime.transports.transport import HttpTransport, MessageTransport
from sessions.audio.formats.registry import check_format
from sessions.clock import now_s
from sessions.voices.lookup import find_voice
from sessions.weak import weak_method

if TYPE_CHECKING:
    from realtime.agent.agent_conversation import AgentConversation
    from realtime.protocol.dialects.base import DialectRoute
    from realtime.server import SpeechServer
    from sessions.session import Session

log = logging.getLogger("voicewire.connection")

# Commands of a message that are carried out in one iteration of the event loop.
YIELD_EVERY_COMMANDS = 50


class DialectConnection(ResumableConnection):
    """Connects a dialect and a ``Conversation``. Call ``open``, ``run``, ``aclose``."""

    def __init__(self, server: SpeechServer, route: DialectRoute, dialect: Dialect) -> None:
        super().__init__(server)
        self._route = route
        self._dialect = dialect
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
        # Set with the session, once the caller is authenticated.
        self._conversation: Conversation
        # Set with the session, for a dialect that uses the agent.
        self._agent: AgentConversation | None = None
        # True once another gateway serves the client over this connection.
        self._is_relayed = False
        # Since when the client is gone and the connection is not.
        self._paused_s = math.inf
        self._warnings: tuple[str, ...] = ()
        self._speech_fields: dict[str, Any] = {}
        # HTTP: the client's only message.
        self._body: bytes | None = None

    @property
    def _lead_ms(self) -> int | None:
        config = self._server.config
        return None if self._route.transport == "http" else min(config.dialects.lead_ms, config.limits.max_lead_ms)

    def open(self, caller: Principal) -> None:
        """Validate the options and reserve a connection. Raises ``SpeechError``, which refuses the handshake."""
        self._caller = caller
        if self._dialect.options is not None:
            self._warnings = self._validate_options(self._dialect.options)
        if caller.is_authenticated:
            self._open_session(caller)
        self._entered.enter_context(self._server.track_connection(self, caller))

    def _validate_options(self, options: model.SpeechOptions) -> tuple[str, ...]:
        """Return warnings. Raises ``UnsupportedFormat``."""
        settings, warnings = self._resolver.resolve(options)
        check_format(settings.format)
        return warnings

    def headers(self) -> dict[str, str]:
        """Return the headers of the answer to the handshake or request."""
        warning = {WARNING_HEADER: "; ".join(self._warnings)} if self._warnings else {}
        return printable(self._dialect.headers() | warning)

    @property
    def subprotocol(self) -> str | None:
        """The subprotocol that a WebSocket handshake accepts."""
        return self._dialect.subprotocol

    def head(self) -> tuple[str, dict[str, str]]:
        return self._dialect.media_type, self.headers()

    async def run(self, link: MessageTransport, body: bytes | None = None) -> None:
        """Serve until the line is closed. An HTTP request has a ``body``. Raises ``ResponseAborted``."""
        self._body = body
        self._server.metrics.inc("dialect_connections_total", dialect=self._route.path)
        await self._run(link)

    async def aclose(self) -> None:
        """Close the session and wait until its resources are free."""
        self._entered.close()
        if self._agent is not None:
            await self._agent.aclose()
        if self._session is not None:
            await self._session.aclose()
            log.info("session closed", extra=self._facts() | {"close_code": self._closed_with})

    def on_tick(self, now_s: float) -> None:
        if not self._is_running:
            return
        if self._is_relayed:
            if self._server.draining:
                self.close("draining")
        elif now_s - self._opened_s >= self._limits.max_session_duration_s:
            self.close("session_expired")
        elif self._session is None:
            if now_s - self._opened_s >= self._server.config.listen.handshake_timeout_s:
                self.close("unauthorized")
        elif self._session.detached.is_set():
            self.close("idle_timeout")
        elif now_s - self._paused_s >= self._limits.resume_grace_s:
            self._begin_close(CloseCode.NORMAL, "leave")
        elif self._server.draining and not self._conversation.num_speaking and not self._is_answering:
            self.close("draining")
        elif self._dialect.context_timeout_s is not None:
            self._conversation.report_idle(self._dialect.context_timeout_s, now_s)

    # Messages of the client

    async def _start(self) -> None:
        if self._dialect.reports_session and self._session is not None:
            self._is_running = False  # not closed before session.created
            token = "" if self._resumable is None else self._server.resumption.token(self._resumable)
            self._apply_all(self._dialect.send_session(await describe_session(self._server, self._session, token)))
            self._is_running = True
        self._apply_all(self._dialect.start())
        if self._body is not None:
            await self._receive(self._body)

    async def _receive(self, message: model.Message) -> None:
        if self._session is not None:
            self._session.touch()
        self._confirm()
        try:
            self._check_size(message)
            for number, command in enumerate(list(self._dialect.receive_message(message)), 1):
                await self._execute(command)
                if number % YIELD_EVERY_COMMANDS == 0:  # a dialogue has thousands of lines
                    await asyncio.sleep(0)
                    if self._close_reason is not None:
                        break
        except SpeechError as error:
            self._answer(error)

    async def _execute(self, command: model.DialectCommand) -> None:
        match command:
            case model.Configure():
                await self._configure(command.fields)
            case model.ResumeSession():
                await self._resume(command)
            case model.QueryHeard():
                self._require_session()
                self._send_event(await self._conversation.query_heard(command))
            case _:
                self._apply(command)

    async def _configure(self, given: Mapping[str, Any]) -> None:
        """Apply speech fields to later contexts. Raises ``SpeechError``; then nothing has changed."""
        self._require_session()
        fields = merge_fields(self._speech_fields, given)
        base = await override_settings(self._resolver.base, fields, self._server, self._caller)
        self._speech_fields = fields
        self._conversation.resolver = replace(self._resolver, base=base)

    # Commands that do not wait

    def _apply_all(self, commands: Iterable[model.DialectCommand]) -> None:
        for command in list(commands):
            self._apply(command)

    def _apply(self, command: model.DialectCommand) -> None:
        match command:
            case model.SendMessage():
                self._send(command.message)
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
            case model.SuspendContexts():
                self._pause()
            case model.ResumeContexts():
                self._go_on(command.positions)
            case _ if isinstance(command, agent_turns.AgentCommand):
                assert self._agent is not None, "a command for an agent that the server does not have"
                for answer in self._agent.handle(command):
                    self._apply_all(self._dialect.send_agent_event(answer))
            case model.Configure() | model.QueryHeard() | model.ResumeSession():
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
        if isinstance(event, model.ContextEnded) and not event.is_repeated:
            log.info("response ended", extra=self._facts() | _facts_of(event))
            self._server.metrics.inc("dialect_contexts_total", dialect=self._route.path, status=event.status)
        if isinstance(event, model.ContextAudio) and self._agent is not None:
            self._record_first_audio(self._agent, event.context)
        self._apply_all(self._dialect.send_event(event))

    # The agent

    @property
    def _is_answering(self) -> bool:
        return self._agent is not None and self._agent.is_busy

    def _background(self) -> Iterable[Coroutine[Any, Any, None]]:
        return () if self._agent is None else (self._deliver(self._agent),)

    async def _deliver(self, agent: AgentConversation) -> None:
        """Carry out what the dialect makes of the agent's events."""
        while (event := await agent.next_event()) is not None:
            try:
                for command in list(self._dialect.send_agent_event(event)):
                    await self._execute(command)
            except SpeechError as error:
                self._answer(error)

    def _record_first_audio(self, agent: AgentConversation, context: str) -> None:
        if (latency := agent.on_audio(context)) is not None:
            log.info("turn answered", extra=self._facts() | {"response_id": latency.context} | latency.fields)
            self._apply_all(self._dialect.send_agent_event(latency))

    def _require_session(self) -> None:
        if self._session is None:
            raise RequestRefused("unauthorized", UNKNOWN_KEY)

    def _authenticate(self, key: str) -> None:
        """Open the session of a key that came in a message. Later keys are ignored. Raises ``SpeechError``."""
        if self._session is not None:
            return
        caller = self._server.gatekeeper.principal_for_key(key)
        self._entered.close()  # released first, so that it is not counted twice
        self._server.check_connection_limits(caller)
        self._server.check_response_limits(caller)
        self._open_session(caller)
        self._entered.enter_context(self._server.track_connection(self, caller))

    def _open_session(self, caller: Principal) -> None:
        self._caller = caller
        self._session = self._server.open_session(caller, self._dialect.can_resume)
        log.info("session opened", extra=self._facts() | {"api_key_name": caller.name})
        self._conversation = Conversation(
            self._session,
            self._resolver,
            self._server.check_not_draining,
            self._server.config,
            self._to_write.set,
            serial=self._route.serial,
        )
        if self._dialect.uses_agent and self._server.agent is not None:
            self._agent = self._server.agent.open_conversation()
            self._conversation.find_trace_parent = self._agent.find_trace_parent
        if self._dialect.can_resume and self._limits.resume_grace_s > 0:
            session, conversation, opened_s = self._session, self._conversation, self._opened_s
            state = ResumableConversation(
                session.session_id, caller.name, session, conversation, self._dialect, opened_s
            )
            self._attach(state)

    # A lost connection

    async def _resume(self, command: model.ResumeSession) -> None:
        """Take over the session of a lost connection in place of this one's. Raises ``RequestRefused``."""
        if (unused := self._session) is None or command.session_id == unused.session_id:
            raise resume_refused()
        claims = self._server.resumption.check(command.session_id, command.token, self._caller)
        if claims.gateway != self._server.resumption.gateway:
            await self._relay(command, claims.gateway, unused)
            return
        resumed = self.take_over(command, claims)
        await unused.aclose()
        self._apply_all(self._dialect.send_session(resumed))

    def take_over(self, command: model.ResumeSession, claims: TokenClaims) -> model.ResumedSession:
        """Go on with a session of this gateway. Raises ``RequestRefused``."""
        table = self._server.resumption
        state = table.find(ResumableConversation, claims)
        table.take(state, claims)
        self._session, self._conversation, self._dialect = state.session, state.conversation, state.dialect
        self._opened_s = state.opened_s
        self._conversation.resolver = self._resolver
        self._attach(state)
        contexts = self._conversation.resume(command.responses, self._to_write.set)
        log.info("session resumed", extra=self._facts())
        return model.ResumedSession(
            self._session.session_id,
            table.token(state),
            self._limits.resume_grace_s,
            wire_settings(self._session.settings),
            contexts,
        )

    async def _relay(self, command: model.ResumeSession, gateway: int, unused: Session) -> None:
        """Forward everything from now on to the gateway that has the session. Raises ``RequestRefused``."""
        relayed = await self._server.reach_gateway(gateway, RelayRequest(self._caller, command))
        self._resumable = self._session = None
        self._is_relayed = True
        await unused.aclose()
        log.info("session resumed at another gateway", extra=self._facts())
        self._begin_close(*await relayed.forward(self._link))

    def release(self) -> None:
        self._session = None
        super().release()

    def end(self) -> None:
        assert self._session is not None
        self._session.detach()
        super().end()
        if self._is_running:
            self._begin_close(CloseCode.NORMAL, "leave")

    def _suspend(self) -> None:
        self._conversation.suspend()

    def _pause(self) -> None:
        """Send nothing until ``_go_on``: the client is gone, and may come back on this connection."""
        if self._resumable is None or self._server.draining:
            self._begin_close(CloseCode.NORMAL, "leave")
        else:
            self._conversation.suspend()
            self._paused_s = now_s()
            self._server.resumption.suspend(self._resumable)
            log.info("session suspended", extra=self._facts())

    def _go_on(self, positions: Iterable[ResumePosition]) -> None:
        """Send from these positions on. Raises ``RequestRefused`` if the session retains nothing."""
        if self._resumable is None:
            raise resume_refused("this session was opened without resume")
        self._paused_s = math.inf
        self._server.resumption.go_on(self._resumable)
        contexts = self._conversation.resume(positions, self._to_write.set)
        log.info("session resumed", extra=self._facts())
        self._apply_all(self._dialect.send_resumed(contexts))

    @property
    def _is_silent(self) -> bool:
        return self._session is None or (self._paused_s < math.inf and self._close_reason is None)

    def _has_stored_voice(self, name: str) -> bool:
        return find_voice(self._server.voices, self._caller.name, name) is not None

    # Events of the conversation

    def _pop_event(self, now: float) -> bool:
        if self._is_silent or (event := self._conversation.pop_due(now)) is None:
            return False
        if isinstance(event, model.ContextEnded) and not event.is_repeated:
            self._count_late_refusal(event)
        self._send_event(event)
        return True

    def _count_late_refusal(self, ended: model.ContextEnded) -> None:
        if ended.error is not None and ended.error.code in LATE_REFUSALS:
            self._server.metrics.refused(ended.error.code)

    def _due_s(self, now: float) -> float | None:
        return None if self._is_silent else self._conversation.due_s(now)

    @property
    def _is_idle(self) -> bool:
        return self._session is None or self._conversation.is_idle

    # Errors and the end

    def _answer(self, error: SpeechError) -> None:
        """Send an error in answer to a message, and close where the message broke the protocol."""
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

    def _end(self, info: ErrorInfo, close: CloseCode | None) -> None:
        """Send the reason, and close once every context has ended."""
        assert close is not None, f"{info.code} closes no connection"
        code = self._dialect.close_codes.get(close, close)
        self._stop()
        if not self._dialect.sends_error_last:
            self._apply_all(self._dialect.send_error(info, code))
        self._begin_close(code, info.code, last_error=info if self._dialect.sends_error_last else None)

    def _stop(self) -> None:
        super()._stop()
        if self._agent is not None:
            self._agent.close()
        if self._session is not None:
            self._session.detach()

    async def _write_close(self, reason: CloseReason) -> None:
        if reason.abort is not None and isinstance(self._link, HttpTransport):
            await self._link.abort(refusal(self._route, reason.abort))
        else:
            await self._write_error(reason.last_error, reason.code)
            await super()._write_close(reason)

    async def _close_on_internal_error(self) -> None:
        self._stop()
        if isinstance(self._link, HttpTransport):
            await self._link.abort(refusal(self._route, INTERNAL_ERROR))
        else:
            if await self._link.writable():
                await self._write_error(INTERNAL_ERROR, CloseCode.INTERNAL_ERROR)
            await super()._close_on_internal_error()

    async def _write_error(self, error: ErrorInfo | None, code: int) -> None:
        for command in [] if error is None else list(self._dialect.send_error(error, code)):
            if isinstance(command, model.SendMessage):
                await self._link.write(command.message)

    def _facts(self) -> dict[str, object]:
        return {"session_id": self._session and self._session.session_id, "dialect": self._route.path}


def _facts_of(ended: model.ContextEnded) -> dict[str, object]:
    """Return log fields of a context, without its text."""
    return {
        "response_id": ended.context,
        "status": ended.status,
        "code": ended.error and ended.error.code,
        "audio_ms": round(ended.audio_ms),
        "first_audio_ms": ended.first_audio_ms and round(ended.first_audio_ms, 1),
    }


def refusal(wire: DialectRoute, info: ErrorInfo) -> JSONResponse:
    """Return an HTTP error in the vendor's shape."""
    status = http_status(info)
    body, headers = wire.dialect.reject_handshake(info, status)
    return JSONResponse(body, status, refusal_headers(info) | printable(headers))


def printable(headers: dict[str, str]) -> dict[str, str]:
    """Return headers whose values contain no control characters: they may repeat text of the client."""
    return {name: _line(value).encode("latin-1", "replace").decode("latin-1") for name, value in headers.items()}


def _line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text).strip()
