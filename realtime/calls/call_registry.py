"""The calls of a server, and the agents that are subscribed to their events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from realtime.errors import RequestRefused
from realtime.protocol.telephony import model
from sessions.vad.scheduler import VadScheduler

CommandHandler = Callable[[model.Command], Awaitable[model.CallEvent | None]]


@dataclass(slots=True, eq=False)
class RegisteredCall:
    # Name of the API key that owns the call.
    caller_name: str
    connected: model.CallConnected
    handle_command: CommandHandler
    # True if its connection is in this process.
    is_local: bool = True


class RemoteCalls(Protocol):
    """Forwards calls of this process to agents of other processes."""

    def connected(self, call: RegisteredCall) -> None: ...

    def forward_event(self, event: model.CallEvent) -> None: ...


@dataclass(slots=True, eq=False)
class AgentSubscription:
    """Event queue of an agent for the calls of a key, or for one of them."""

    caller_name: str
    call_id: str | None
    local_only: bool
    max_events: int
    # ``None`` is the end of the queue.
    events: asyncio.Queue[model.CallEvent | None] = field(default_factory=asyncio.Queue)
    # The subscriber's event queue overflowed.
    is_overflowed: bool = False
    # Called with each event, for a subscriber that does not wait for the queue.
    wake: Callable[[], None] = lambda: None

    def matches(self, call: RegisteredCall) -> bool:
        is_named = self.caller_name == call.caller_name and self.call_id in (None, call.connected.call_id)
        return is_named and (call.is_local or not self.local_only)

    def enqueue(self, event: model.CallEvent) -> None:
        if self.is_overflowed:
            return
        if self.events.qsize() >= self.max_events:
            self.is_overflowed = True
            self.end()
        else:
            self.events.put_nowait(event)
            self.wake()

    def end(self) -> None:
        """End the queue."""
        self.events.put_nowait(None)
        self.wake()


class CallRegistry:
    def __init__(self, max_events: int) -> None:
        # Shared by all calls.
        self.vad_scheduler = VadScheduler()
        self.elsewhere: RemoteCalls | None = None
        self._max_events = max_events
        self._calls: dict[str, RegisteredCall] = {}
        self._agents: set[AgentSubscription] = set()

    @contextmanager
    def connected(self, call: RegisteredCall) -> Iterator[None]:
        """Register a call while the context is open."""
        self.on_remote_call(call)
        try:
            yield
        finally:
            del self._calls[call.connected.call_id]

    @contextmanager
    def subscribe(
        self, caller_name: str, call_id: str | None = None, only_here: bool = False
    ) -> Iterator[AgentSubscription]:
        """Subscribe an agent; first it gets the present calls. Raises ``RequestRefused`` for an unknown ``call_id``.

        ``only_here``: of calls whose lines are in this process.
        """
        if call_id is not None:
            self.call(caller_name, call_id)
        agent = AgentSubscription(caller_name, call_id, only_here, self._max_events)
        for call in filter(agent.matches, self._calls.values()):
            agent.events.put_nowait(call.connected)
        self._agents.add(agent)
        try:
            yield agent
        finally:
            self._agents.remove(agent)

    def calls(self, caller_name: str) -> list[model.CallConnected]:
        return [call.connected for call in self._calls.values() if call.caller_name == caller_name]

    def local_calls(self) -> list[RegisteredCall]:
        """Return the calls whose connections are in this process."""
        return [call for call in self._calls.values() if call.is_local]

    def call(self, caller_name: str, call_id: str) -> RegisteredCall:
        """Return a call of this key. Raises ``RequestRefused``."""
        call = self._calls.get(call_id)
        if call is None or call.caller_name != caller_name:
            raise RequestRefused("unknown_call", f"call {call_id[:64]!r} is unknown, or has ended", "call_id")
        return call

    def publish(self, call: RegisteredCall, event: model.CallEvent) -> None:
        for agent in filter(lambda agent: agent.matches(call), self._agents):
            agent.enqueue(event)
            if isinstance(event, model.CallEnded) and agent.call_id is not None:
                agent.end()
        if call.is_local and self.elsewhere is not None:
            self.elsewhere.forward_event(event)

    def on_remote_call(self, call: RegisteredCall) -> None:
        self._calls[call.connected.call_id] = call
        for agent in filter(lambda agent: agent.matches(call), self._agents):
            agent.enqueue(call.connected)
        if call.is_local and self.elsewhere is not None:
            self.elsewhere.connected(call)

    def on_remote_event(self, event: model.CallEvent) -> None:
        """Publish an event of another process's call, and remove the call after its last event."""
        call = self._calls.get(event.call_id or "")
        if call is None or call.is_local:
            return
        self.publish(call, event)
        if isinstance(event, model.CallEnded):
            del self._calls[event.call_id]

    def remove_remote_call(self, call_id: str) -> None:
        """End a call because the process of its connection is gone or unreachable."""
        self.on_remote_event(model.CallEnded(call_id=call_id, reason="internal_error"))
