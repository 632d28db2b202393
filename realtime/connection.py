"""A connection over any transport: a reader, a writer, and one reason to close."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Coroutine, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.api import ErrorInfo
from realtime.errors import CloseCode, RequestRefused, rule_for
from realtime.protocol import model
from realtime.resumption import FINAL_CLOSE_CODES, ResumableState
from realtime.transports.transport import MessageTransport, ResponseAborted, check_size
from sessions.clock import WakeEvent, is_due, now_s

if TYPE_CHECKING:
    from realtime.server import SpeechServer

log = logging.getLogger("voicewire.connection")

# Seconds that a close waits for the terminal events.
CLOSE_GRACE_S = 0.5
# Unwritten messages at which the connection stops reading its client.
MAX_PENDING_MESSAGES = 64
# Messages read per loop iteration, so that a client that sends faster than is read does not delay others.
YIELD_EVERY_MESSAGES = 50
# Events written per loop iteration, so that a flood of flushes does not delay other connections.
YIELD_EVERY_EVENTS = 50


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


class Connection(ABC):
    """Reads messages, carries them out, and writes what is to be sent.

    What answers a message waits in one queue. The writer empties it, then pops events that are due: between a pop and
    its write no other task runs, so that no audio follows a cancel.
    """

    def __init__(self, server: SpeechServer) -> None:
        self._server = server
        self._limits = server.config.limits
        self._link: MessageTransport
        self._num_errors = 0
        self._opened_s = now_s()
        # True while the server may close it: after its start, until a close begins.
        self._is_running = False
        self._close_reason: CloseReason | None = None
        # True once the reader, or the writer, has ended.
        self._is_read = self._is_written = False
        # Close code of the WebSocket, by either side.
        self._closed_with: int | None = None
        # Unwritten messages, in order.
        self._messages: deque[model.Message] = deque()
        self._to_write = WakeEvent()
        self._has_room = WakeEvent()

    # What subclasses define

    async def _start(self) -> None:
        """Run before the first message is read."""
        return

    @abstractmethod
    async def _receive(self, message: model.Message) -> None:
        """Carry out one message, or answer it with an error."""

    @abstractmethod
    def _pop_event(self, now: float) -> bool:
        """Queue the messages of the next event that is due; false if there is none."""

    @abstractmethod
    def _due_s(self, now: float) -> float | None:
        """Return when an event is due because of time alone."""

    @property
    def _is_idle(self) -> bool:
        """True if a close need not wait for any event."""
        return True

    def _background(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Return what runs beside the reader and the writer; it ends after ``_stop``."""
        return ()

    def _on_disconnect(self) -> None:
        """Run when the client has gone."""
        self._stop()

    def _stop(self) -> None:
        """Cancel all work; idempotent."""
        self._is_running = False
        self._to_write.set()

    async def _write_close(self, reason: CloseReason) -> None:
        await self._link.close(reason.code, reason.text)

    def _facts(self) -> dict[str, object]:
        """Log fields of the connection."""
        return {}

    # The driver

    async def _run(self, link: MessageTransport) -> None:
        """Returns when the line is closed. Raises ``ResponseAborted``."""
        self._link = link
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write(), name="voicewire writer")
                for work in self._background():
                    tasks.create_task(work, name="voicewire connection")
                self._is_running = True
                await self._start()
                await self._read()
                self._is_read = True
                self._closed_with = link.close_code
                self._on_disconnect()
        except ExceptionGroup as faults:
            if faults.split(ResponseAborted)[1] is None:
                self._stop()
                raise ResponseAborted from None
            log.exception("internal error in connection", extra=self._facts())
            await self._close_on_internal_error()

    async def _read(self) -> None:
        num_messages = 0
        while (message := await self._link.receive()) is not None:
            num_messages += 1
            if num_messages % YIELD_EVERY_MESSAGES == 0:
                await asyncio.sleep(0)
            while len(self._messages) >= MAX_PENDING_MESSAGES and not self._is_written:
                await self._has_room.wait()
            if self._close_reason is None and not self._is_written:
                await self._receive(message)

    def _check_size(self, message: model.Message) -> None:
        """Check the size of a message; raises ``RemoteProtocolError``."""
        check_size(message, self._limits.max_message_bytes)

    def _send(self, *messages: model.Message) -> None:
        self._messages.extend(messages)
        self._to_write.set()

    async def _write(self) -> None:
        """Write until the client closes, or until everything that precedes a close is written."""
        num_events = 0
        while True:
            # What was set before is seen below. Else each event's own messages would cost another pass.
            self._to_write.clear()
            if self._is_read or not await self._link.writable():
                break
            if self._messages:
                await self._write_next()
            elif self._close_reason is not None and self._may_close(self._close_reason):
                await self._write_close(self._close_reason)
                break
            elif self._pop_event(now_s()):
                while self._messages and await self._link.writable():
                    await self._write_next()
                num_events += 1
                if num_events % YIELD_EVERY_EVENTS == 0:
                    await asyncio.sleep(0)
            else:
                await self._to_write.wait(until_s=self._next_write_s(now_s()))
        self._is_written = True
        self._messages.clear()
        self._has_room.set()

    async def _write_next(self) -> None:
        await self._link.write(self._messages.popleft())
        self._has_room.set()

    def _next_write_s(self, now: float) -> float | None:
        due_s = self._due_s(now)
        if self._close_reason is None:
            return due_s
        return self._close_reason.deadline_s if due_s is None else min(due_s, self._close_reason.deadline_s)

    def _may_close(self, reason: CloseReason) -> bool:
        return self._is_idle or reason.abort is not None or is_due(reason.deadline_s, now_s())

    # The end

    def close(self, code: str) -> None:
        """End the connection for a reason of the server."""
        if self._is_running:
            self._end(RequestRefused(code, rule_for(code).meaning).info, rule_for(code).close)

    def _end(self, info: ErrorInfo, close: CloseCode | None) -> None:
        self._begin_close(close or CloseCode.POLICY_VIOLATION, info.code)

    def _begin_close(
        self, code: int, text: str, *, last_error: ErrorInfo | None = None, abort: ErrorInfo | None = None
    ) -> None:
        if self._close_reason is None:
            self._close_reason = CloseReason(code, text, now_s() + CLOSE_GRACE_S, last_error, abort)
        self._stop()

    async def _close_on_internal_error(self) -> None:
        """The writer has ended, too: write without it."""
        self._begin_close(CloseCode.INTERNAL_ERROR, "internal_error")
        if await self._link.writable():
            await self._link.close(CloseCode.INTERNAL_ERROR, "internal_error")

    def _count_refusal(self, code: str) -> None:
        """Count an error of the client, and close at the limit."""
        self._server.metrics.refused(code)
        self._num_errors += 1
        limit = self._limits.max_errors_per_connection
        if self._num_errors >= limit and self._close_reason is None:
            info = ErrorInfo("too_many_errors", f"max_errors_per_connection is {limit}")
            self._end(info, CloseCode.POLICY_VIOLATION)


class ResumableConnection(Connection):
    """A connection whose session may outlive it. Its session is in a ``ResumableState`` from ``_attach`` on."""

    def __init__(self, server: SpeechServer) -> None:
        super().__init__(server)
        self._entered = ExitStack()
        self._resumable: ResumableState | None = None
        # Set once a lost connection need not keep its session any more.
        self._is_released = asyncio.Event()
        self._is_suspended = False
        # False until the client can have something to resume.
        self._has_received = False

    @property
    def resumable(self) -> ResumableState | None:
        """The state of a session that can be resumed."""
        return self._resumable

    def _attach(self, state: ResumableState) -> None:
        self._resumable = state
        self._entered.enter_context(self._server.resumption.owned(state, self))

    def _confirm(self) -> None:
        """Run when the client has sent a message."""
        self._has_received = True
        if self._resumable is not None:
            self._resumable.confirm()

    def release(self) -> None:
        """Give up the session to another connection, and close this one."""
        self._is_released.set()
        if self._is_running:
            self._begin_close(CloseCode.REPLACED, "replaced")

    def end(self) -> None:
        """End the suspended session for the capacity that it holds."""
        log.info("suspended session evicted", extra=self._facts())
        self._entered.close()
        self._is_released.set()

    def _suspend(self) -> None:
        """Run when the connection is lost and its session is kept."""

    async def _run(self, link: MessageTransport) -> None:
        """Returns when the line is closed, and the session is over or resumed elsewhere."""
        await super()._run(link)
        if self._is_suspended:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.resume_grace_s):
                    await self._is_released.wait()

    def _on_disconnect(self) -> None:
        """Keep the session for a while if the client has not ended it."""
        is_over = not self._is_running or self._server.draining or self._closed_with in FINAL_CLOSE_CODES
        if self._resumable is None or self._is_released.is_set() or not self._has_received or is_over:
            self._stop()
            return
        self._is_running = False
        self._to_write.set()
        self._suspend()
        self._is_suspended = True
        self._server.resumption.suspend(self._resumable)
        log.info("session suspended", extra=self._facts())
