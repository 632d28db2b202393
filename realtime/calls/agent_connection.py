"""The connection of an agent, over which it sends commands into calls and receives their events."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from engine.api import SpeechError
from realtime.connection import ResumableConnection
from realtime.errors import CloseCode, RemoteProtocolError, RequestRefused
from realtime.protocol.call_events import AgentSession, parse_command, serialize
from realtime.protocol.model import Message
from realtime.protocol.native import parse_flag
from realtime.protocol.telephony import model
from realtime.resumption import ResumableState, resume_refused

if TYPE_CHECKING:
    from realtime.auth import Principal
    from realtime.calls.call_registry import AgentSubscription, CallRegistry
    from realtime.server import SpeechServer
    from realtime.transports.transport import MessageTransport

# Sent events that a resumable session of an agent retains.
MAX_RETAINED_EVENTS = 1_024
MAX_COUNT_DIGITS = 15


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

    async def _receive(self, message: Message) -> None:
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

    def _parse(self, message: Message) -> model.Command:
        self._check_size(message)
        if isinstance(message, bytes):
            raise RemoteProtocolError("binary_not_accepted", "this address takes text messages only")
        return parse_command(message)
