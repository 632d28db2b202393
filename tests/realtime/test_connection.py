"""The driver of a connection in virtual time: what its writer waits for, its order, its queue, and its close."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest

from realtime.auth import LOCAL, Authenticator
from realtime.connection import CLOSE_GRACE_S, MAX_PENDING_MESSAGES, YIELD_EVERY_EVENTS, Connection
from realtime.conversation import Conversation
from realtime.option_resolver import OptionResolver
from realtime.protocol import model
from realtime.server import SpeechServer
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

    async def _receive(self, message: model.Message) -> None:
        if message == "cancel":
            self.events.clear()
        self._send(message)

    def _pop_event(self, now: float) -> bool:
        if not self.events or not is_due(self.events[0][0], now):
            return False
        self._messages.extend(self.events.popleft()[1])
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


async def test_events_are_written_when_they_are_due_and_cost_nothing_before() -> None:
    async with connected() as line:
        line.events += [(20.0, ["a"]), (40.0, ["b"])]
        line._to_write.set()
        loop = cast(VirtualTimeLoop, asyncio.get_running_loop())
        num_before = loop.num_iterations
        await asyncio.sleep(60)
        assert line.written == [(20.0, "a"), (40.0, "b")]
        assert loop.num_iterations - num_before < 20


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


async def test_a_close_before_the_start_is_left_to_a_later_tick() -> None:
    async with connected(closed_before=True) as line:
        line.link.incoming.put_nowait("answer")
        await asyncio.sleep(1)
        assert (line.link.closed, [message for _, message in line.written]) == (None, ["answer"])
        line.close("draining")
        await asyncio.sleep(1)
        assert line.link.closed == (1012, "draining")


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
    events = []
    while not talk.is_idle:
        events.append(talk.pop_due(now_s()))
    assert model.ContextIdle("speaks") not in events
    talk.report_idle(5.0, now_s())
    assert not talk.is_idle
    assert talk.pop_due(now_s()) == model.ContextIdle("quiet")
    assert talk.is_idle
    await session.aclose()
    await server.aclose()
