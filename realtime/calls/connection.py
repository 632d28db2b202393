"""The connection of one phone call, from the provider's first message to the hang-up."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine, Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.api import ErrorInfo, SpeechError
from realtime.auth import Principal
from realtime.calls.builtin_agent import BuiltinAgent
from realtime.calls.call import Call
from realtime.calls.call_registry import CallRegistry, RegisteredCall
from realtime.calls.playout import CallPlayout
from realtime.connection import CloseReason, Connection
from realtime.errors import LATE_REFUSALS, CloseCode, RemoteProtocolError, rule_for
from realtime.integration_config import CallSettings
from realtime.protocol.model import Message
from realtime.protocol.telephony import base, model
from realtime.transports.transport import MessageTransport
from sessions.audio.provenance import SOURCE_TYPE
from sessions.config import AudioFormat, Encoding
from sessions.vad.barge_in import BargeInDetector, BargeInSettings
from sessions.vad.silero import load_model
from sessions.weak import weak_method

if TYPE_CHECKING:
    from realtime.server import SpeechServer
    from sessions.session import Session

log = logging.getLogger("voicewire.calls")

# A packet number that is lower by more than this is not late: the provider restarted its counter.
MAX_LATE_EVENTS = 1_000


class CallConnection(Connection):
    """Connects a telephony dialect and a ``Call``. ``run`` returns when the line is closed; then call ``aclose``."""

    def __init__(
        self,
        server: SpeechServer,
        switchboard: CallRegistry,
        dialect: base.TelephonyDialect,
        caller: Principal,
        link: MessageTransport,
    ) -> None:
        super().__init__(server)
        self._switchboard = switchboard
        self._dialect, self._caller, self._link = dialect, caller, link
        self._settings = server.config.calls
        self._session: Session = server.open_session(caller)
        self._call: Call | None = None
        self._registered: RegisteredCall | None = None
        self._detector: BargeInDetector | None = None
        self._agent = None if server.call_agent is None else BuiltinAgent(server.call_agent, self._settings.barge_in)
        self._listening = False
        # Number of the last packet of the caller's audio.
        self._last_number = -1
        self._entered = ExitStack()
        # Reason of the end where no close reason was set.
        self._reason = "caller"

    async def run(self) -> None:
        with self._server.track_connection(self, self._caller):
            try:
                await self._run(self._link)
            except asyncio.CancelledError:
                self._reason = "draining"
                raise
            finally:
                self._stop()

    async def aclose(self) -> None:
        """Close the session and wait until its resources are free."""
        if self._agent is not None:
            await self._agent.aclose()
        await self._session.aclose()

    def on_tick(self, now_s: float) -> None:
        if not self._is_running:
            return
        if self._call is None:
            if now_s - self._opened_s >= self._server.config.listen.handshake_timeout_s:
                self.close("body_timeout")
            return
        self._call.line.on_tick()
        if self._agent is not None:
            self._agent.on_tick(now_s)
        if now_s - self._opened_s >= self._server.config.limits.max_session_duration_s:
            self.close("session_expired")
        elif self._session.detached.is_set():
            self.close("idle_timeout")
        elif self._server.draining and not self._call.is_busy:
            self.close("draining")

    def _background(self) -> Iterable[Coroutine[Any, Any, None]]:
        return () if self._agent is None else (self._agent.run(),)

    def _end(self, info: ErrorInfo, close: CloseCode | None) -> None:
        """Close normally once the call has begun; before that with an error code."""
        self._begin_close(CloseCode.POLICY_VIOLATION if self._call is None else CloseCode.NORMAL, info.code)

    def _hang_up(self, reason: str) -> None:
        self._begin_close(CloseCode.NORMAL, reason)

    async def _write_close(self, reason: CloseReason) -> None:
        if (message := self._dialect.send_hang_up()) is not None:
            await self._link.write(message)
        await super()._write_close(reason)

    async def _receive(self, message: Message) -> None:
        try:
            self._check_size(message)
            for event in self._dialect.receive_message(message):
                if self._close_reason is None:  # events after the close reason are dropped
                    await self._handle_event(event)
        except SpeechError as error:
            code = error.info.code
            self._server.metrics.refused(code)
            log.info("telephony protocol error", extra={"code": code, "dialect": self._dialect.name})
            self._begin_close(rule_for(code).close or CloseCode.INVALID_DATA, code)

    def _pop_event(self, now: float) -> bool:
        messages = [] if self._call is None else self._call.pop_due(now)
        self._messages.extend(messages)
        return bool(messages)

    def _due_s(self, now: float) -> float | None:
        return None if self._call is None else self._call.due_s(now)

    async def _handle_event(self, event: model.TelephonyEvent) -> None:
        if isinstance(event, model.StreamStarted):
            if self._settings.barge_in and not load_model.cache_info().currsize:
                await asyncio.to_thread(load_model)  # takes about half a second, once
            self._start_call(event)
            if (greeting := self._dialect.send_greeting()) is not None:
                self._send(greeting)
            return
        call = self._call
        match event:
            case model.StreamEnded():
                self._hang_up("caller")
            case _ if call is None:
                raise RemoteProtocolError("invalid_event", "the call has not started")
            case model.CallerAudioReceived():
                self._process_caller_audio(call, event)
            case model.DtmfReceived():
                call.on_dtmf(event.digit)
            case model.MarkPlayed():
                call.line.on_mark_reached(event.name)
            case model.FlowControl():
                call.line.set_paused(event.on)
            case model.RemoteBargeIn() if self._agent is not None:
                self._agent.interrupt()
            case model.RemoteBargeIn():
                call.barge_in()
            case model.TextReceived():
                call.on_text(event.text)
            case model.ListeningStarted() if self._agent is not None:
                self._agent.start_listening(event.is_manual)
            case model.ListeningStopped() if self._agent is not None:
                self._agent.stop_listening()

    def _process_caller_audio(self, call: Call, audio: model.CallerAudioReceived) -> None:
        """Pass audio to the agent, or to the voice activity detection. Repeated and late packets are dropped, lost ones
        not replaced."""
        if self._is_late(audio.number):
            return
        if self._agent is not None:
            self._agent.push_audio(audio.data)
        elif self._detector is None:
            return
        elif call.is_busy:
            self._listening = True
            self._switchboard.vad_scheduler.push(
                self._detector, audio.data, call.barge_in, call.line.playout_level_db()
            )
        elif self._listening:  # without playout there is nothing to interrupt
            self._listening = False
            self._switchboard.vad_scheduler.remove(self._detector)

    def _is_late(self, number: int | None) -> bool:
        if number is None:
            return False
        if self._last_number - MAX_LATE_EVENTS <= number <= self._last_number:
            return True
        self._last_number = number
        return False

    def _start_call(self, started: model.StreamStarted) -> None:
        line = started.line
        call_id = f"call-{secrets.token_hex(8)}"
        if (parent := self._server.tracer.find_carried_parent(started.parameters)) is not None:
            self._session.trace_parent = parent
        settings = replace(
            self._session.settings,
            format=AudioFormat(encoding=Encoding(line.encoding), sample_rate=line.sample_rate),
            lead_ms=self._settings.lead_ms + self._settings.generation_lead_ms,
            align_eagerly=True,
        )
        connected = model.CallConnected(
            call_id=call_id,
            provider=self._dialect.name,
            provider_call_id=started.call_id,
            encoding=line.encoding,
            sample_rate=line.sample_rate,
            parameters=dict(started.parameters),
            digital_source_type=SOURCE_TYPE,
        )
        self._call = Call(
            call_id,
            self._session,
            settings,
            CallPlayout(self._dialect, line, self._settings, self._to_write.set),
            self._server.config,
            check_can_start=self._server.check_not_draining,
            on_event=weak_method(self._publish_event),
            on_first_audio=weak_method(self._record_first_audio),
            find_trace_parent=weak_method(self._find_trace_parent),
            send_nowait=weak_method(self._send_clear),
            hang_up=weak_method(self._hang_up),
            wake=self._to_write.set,
        )
        self._registered = RegisteredCall(self._caller.name, connected, self._call.handle_command)
        if self._agent is not None:
            self._agent.start(self._call, self._session.trace_parent)
        elif self._settings.barge_in:
            self._detector = BargeInDetector(line.encoding, line.sample_rate, barge_in_settings(self._settings))
        self._entered.enter_context(self._switchboard.connected(self._registered))
        self._to_write.set()
        log.info("call connected", extra={"session_id": self._session.session_id, "dialect": self._dialect.name})

    def _send_clear(self, message: Message) -> None:
        self._link.discard_audio()
        self._send(message)

    def _publish_event(self, event: model.CallEvent) -> None:
        if isinstance(event, model.CallReplyFailed) and event.error.code in LATE_REFUSALS:
            self._server.metrics.refused(event.error.code)
        if self._registered is not None:
            self._switchboard.publish(self._registered, event)
        if self._agent is not None:
            self._agent.on_call_event(event)

    def _find_trace_parent(self, reply_id: str) -> object:
        return None if self._agent is None else self._agent.find_trace_parent(reply_id)

    def _record_first_audio(self, reply_id: str) -> None:
        if self._agent is not None and (latency := self._agent.on_first_audio(reply_id)) is not None:
            log.info(
                "turn answered",
                extra={
                    "session_id": self._session.session_id,
                    "dialect": self._dialect.name,
                    "response_id": reply_id,
                    "endpointing_ms": latency.endpointing_ms,
                    "stt_ms": latency.stt_ms,
                    "llm_first_token_ms": latency.llm_first_token_ms,
                    "first_audio_ms": latency.first_audio_ms,
                },
            )

    def _stop(self) -> None:
        """Publish the end of the call once, and remove the call."""
        super()._stop()
        if self._agent is not None:
            self._agent.close()
        if self._call is None or self._registered is None:
            return
        reason = self._close_reason.text if self._close_reason is not None else self._reason
        self._call.interrupt("hang_up")
        if self._detector is not None:
            self._switchboard.vad_scheduler.remove(self._detector)
        self._publish_event(model.CallEnded(call_id=self._call.call_id, reason=reason))
        self._registered = None
        self._entered.close()
        self._session.detach()
        log.info("call ended", extra={"session_id": self._session.session_id, "code": reason})


def barge_in_settings(calls: CallSettings) -> BargeInSettings:
    return BargeInSettings(
        threshold=calls.vad_threshold,
        min_speech_ms=calls.vad_min_speech_ms,
        min_silence_ms=calls.vad_min_silence_ms,
        min_level_db=calls.vad_min_level_db,
        echo_loss_db=calls.echo_return_loss_db,
        noise_margin_db=calls.vad_noise_margin_db,
    )
