"""Transports, and the driver of a connection in virtual time: order, queue, wake-ups and close."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from realtime.auth import LOCAL, Authenticator
from realtime.connection import (
    CLOSE_GRACE_S,
    MAX_PENDING_MESSAGES,
    YIELD_EVERY_EVENTS,
    YIELD_EVERY_MESSAGES,
    Connection,
)
from realtime.conversation import Conversation
from realtime.errors import RemoteProtocolError
from realtime.option_resolver import OptionResolver
from realtime.protocol import model
from realtime.server import SpeechServer
from realtime.transports.transport import (
    EXTENSION,
    SocketControls,
    WebSocketTransport,
    check_size,
)
from sessions.clock import is_due, now_s
from tests.fakes.engine import FakeSpeechEngine
from tests.fakes.virtual_time import VirtualTimeLoop
from tests.realtime.calls.conftest import QueueLink
from tests.realtime.live_server import load_test_config

pytestmark = pytest.mark.virtual_time


class TimedConnection(Connection):
    """Answers each message with itself, and has events with the messages of each and the time when it is due."""

    def __init__(self, server: SpeechServer) -> None:
        super().__init__(server)
        self.link = QueueLink()
        self.written: list[tuple[float, str | bytes]] = []
        self.link.told = lambda message: self.written.append((now_s(), message))
        self.events: deque[tuple[float, Sequence[str]]] = deque()
        self.num_looks = 0

    async def _receive(self, message: model.Message) -> None:
        if message == "cancel":
            self.events.clear()
        if message != "ignored":
            self._send(message)

    def _pop_event(self, now: float) -> bool:
        self.num_looks += 1
        if not self.events or not is_due(self.events[0][0], now):
            return False
        self._send(*self.events.popleft()[1])
        return True

    def _due_s(self, now: float) -> float | None:
        return self.events[0][0] if self.events else None

    @property
    def _is_idle(self) -> bool:
        return not self.events

    async def run(self) -> None:
        await self._run(self.link)


@asynccontextmanager
async def connected(closed_before: bool = False) -> AsyncIterator[TimedConnection]:
    server = SpeechServer(load_test_config({}), FakeSpeechEngine(), Authenticator([]))
    connection = TimedConnection(server)
    if closed_before:
        connection.close("draining")
    run = asyncio.create_task(connection.run())
    await asyncio.sleep(0.1)
    try:
        yield connection
    finally:
        connection.link.unblocked.set()
        connection.link.incoming.put_nowait(None)
        async with asyncio.timeout(5):
            await run
        await server.aclose()


async def test_events_are_written_when_due_and_cost_nothing_before() -> None:
    async with connected() as line:
        line.events += [(20.0, ["a"]), (40.0, ["b"])]
        line._to_write.set()
        loop = cast(VirtualTimeLoop, asyncio.get_running_loop())
        num_before, looks_before = loop.num_iterations, line.num_looks
        await asyncio.sleep(60)
        assert line.written == [(20.0, "a"), (40.0, "b")]
        assert loop.num_iterations - num_before < 20
        # One before each event, one that pops it, and one after the last.
        assert line.num_looks - looks_before == 5


async def test_answers_are_written_at_once_and_before_events() -> None:
    async with connected() as line:
        line.link.unblocked.clear()
        line.link.incoming.put_nowait("answer")
        await asyncio.sleep(1)
        line.events.append((0.0, ["event"]))
        line.link.incoming.put_nowait("another")
        await asyncio.sleep(1)
        line.link.unblocked.set()
        await asyncio.sleep(0.1)
        assert [message for _, message in line.written] == ["answer", "another", "event"]
        line.link.incoming.put_nowait("last")
        await asyncio.sleep(0.1)
        assert line.written[-1][1] == "last"


async def test_messages_of_one_event_wait_for_a_line_that_fills() -> None:
    async with connected() as line:

        def fill(message: str | bytes) -> None:
            line.written.append((now_s(), message))
            line.link.unblocked.clear()

        line.link.told = fill
        line.events.append((0.0, ["a", "b"]))
        line._to_write.set()
        await asyncio.sleep(1)
        assert [message for _, message in line.written] == ["a"]
        line.link.unblocked.set()
        await asyncio.sleep(1)
        assert [message for _, message in line.written] == ["a", "b"]


async def test_no_event_of_a_flood_is_written_after_a_cancel_was_read() -> None:
    async with connected() as line:
        line.events += [(0.0, [str(number)]) for number in range(3 * YIELD_EVERY_EVENTS)]
        line._to_write.set()
        line.link.incoming.put_nowait("cancel")
        await asyncio.sleep(1)
        assert line.written[-1][1] == "cancel"
        assert len(line.written) <= 2 * YIELD_EVERY_EVENTS


async def test_no_event_is_popped_while_answers_wait() -> None:
    async with connected() as line:
        line.link.unblocked.clear()
        line.link.told = lambda _: line.link.unblocked.clear()
        for message in ("a", "b", "c"):
            line.link.incoming.put_nowait(message)
        line.events.append((0.0, ["event"]))
        for _ in range(2):
            await asyncio.sleep(0.1)
            line.link.unblocked.set()
        await asyncio.sleep(0.1)
        assert line.events
        line.link.told = lambda _: None


async def test_a_client_is_read_on_once_its_answers_are_written() -> None:
    async with connected() as line:
        line.link.unblocked.clear()
        numbers = [str(number) for number in range(4 * MAX_PENDING_MESSAGES)]
        for number in numbers:
            line.link.incoming.put_nowait(number)
        await asyncio.sleep(1)
        assert line.link.incoming.qsize() >= 2 * MAX_PENDING_MESSAGES
        line.link.unblocked.set()
        await asyncio.sleep(1)
        assert [message for _, message in line.written] == numbers


@pytest.mark.parametrize("last_s", [None, 0.2, 10.0])
async def test_a_close_waits_for_the_last_event_and_not_too_long(last_s: float | None) -> None:
    """The first reason counts, and nothing is read afterwards."""
    async with connected() as line:
        began_s = now_s()
        if last_s is not None:
            line.events.append((began_s + last_s, ["last"]))
        line._send("answer")
        line.close("session_expired")
        line._begin_close(1000, "a later reason")
        line.link.incoming.put_nowait("ignored")
        while line.link.closed is None:
            await asyncio.sleep(0.01)
        assert line.link.closed == (4410, "session_expired")
        assert now_s() - began_s == pytest.approx(min(last_s or 0.0, CLOSE_GRACE_S), abs=0.03)
        assert [message for _, message in line.written] == ["answer", *["last"] * (last_s == 0.2)]


async def test_close_before_the_start_is_ignored() -> None:
    async with connected(closed_before=True) as line:
        line.link.incoming.put_nowait("answer")
        await asyncio.sleep(1)
        assert (line.link.closed, [message for _, message in line.written]) == (None, ["answer"])


async def test_events_wake_the_writer_and_keep_a_conversation_busy() -> None:
    server = SpeechServer(load_test_config({}), FakeSpeechEngine(), Authenticator([]))
    await server.start()
    session = server.open_session(LOCAL)
    wakes: list[float] = []
    resolver = OptionResolver(server.settings, server.engine.info, {}, lambda _: False)
    talk = Conversation(session, resolver, lambda: None, server.config, lambda: wakes.append(now_s()))
    for context in ("quiet", "speaks"):
        talk.handle(model.OpenContext(context, model.SpeechOptions(burst=True)))
    await asyncio.sleep(9)
    talk.handle(model.AppendText("speaks", "Hello there, how are you?", last=True))
    assert wakes.pop() == now_s()  # the response may have failed already
    await asyncio.sleep(9)
    assert isinstance(talk.pop_due(now_s()), model.ContextAudio)
    wakes.clear()
    talk.report_idle(5.0, now_s())
    assert wakes == [now_s()]
    assert talk.pop_due(now_s()) == model.ContextIdle("quiet")
    while not talk.is_idle:
        assert talk.pop_due(now_s()) != model.ContextIdle("speaks")
    talk.report_idle(5.0, now_s())
    assert (talk.is_idle, talk.pop_due(now_s()), talk.is_idle) == (False, model.ContextIdle("quiet"), True)
    await session.aclose()
    await server.aclose()


class FakeLine:
    """Takes one message whenever ``writable`` is set."""

    def __init__(self) -> None:
        self.writable = asyncio.Event()
        self.sent: list[Message] = []
        self.ended = False
        self.aborted = False

    def link(self, write_timeout_s: float = 5.0) -> WebSocketTransport:
        line = SocketControls(writable=self.writable, abort=self._abort, ended=lambda: self.ended)
        return WebSocketTransport({"extensions": {EXTENSION: line}}, self._receive, self._send, write_timeout_s)

    def _abort(self) -> None:
        self.aborted = True

    async def _send(self, message: Message) -> None:
        if self.ended:
            raise RuntimeError("a message after the close")
        self.sent.append(message)
        self.writable.clear()

    async def _receive(self) -> Message:
        raise AssertionError("nobody listens")


async def turn_around() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_of_many_that_wait_one_writes_and_the_others_wait_on() -> None:
    line = FakeLine()
    link = line.link()
    async with asyncio.TaskGroup() as writers:
        for number in range(3):
            writers.create_task(link.send(str(number)))
        for num_sent in range(4):
            await turn_around()
            assert [message["text"] for message in line.sent] == ["0", "1", "2"][:num_sent]
            line.writable.set()


@pytest.mark.parametrize("ends", ["before", "while it waits"])
async def test_send_after_close_does_nothing(ends: str) -> None:
    line = FakeLine()
    link = line.link()
    line.ended = ends == "before"
    async with asyncio.TaskGroup() as writers:
        writers.create_task(link.send("late"))
        await turn_around()
        line.ended = True
        line.writable.set()
    await link.close(1000)
    assert not line.sent


async def test_link_without_progress_is_cut() -> None:
    line = FakeLine()
    await line.link(write_timeout_s=0.01).send("never")
    assert line.aborted
    assert not line.sent


async def test_flood_of_messages_lets_other_tasks_run() -> None:
    async with connected() as line:
        for _ in range(10 * YIELD_EVERY_MESSAGES):
            line.link.incoming.put_nowait("ignored")
        num_turns = 0
        while not line.link.incoming.empty():
            num_turns += 1
            await asyncio.sleep(0)
        assert num_turns >= 9


@given(st.one_of(st.text(max_size=40), st.binary(max_size=40)), st.integers(1, 40))
def test_sizes_are_counted_in_bytes(message: str | bytes, limit: int) -> None:
    num_bytes = len(message if isinstance(message, bytes) else message.encode())
    if num_bytes <= limit:
        check_size(message, limit)
    else:
        with pytest.raises(RemoteProtocolError, match=f"a message of {num_bytes} bytes, max_message_bytes is {limit}"):
            check_size(message, limit)
