"""Links and readers of messages: order, backpressure, sizes and close."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from realtime.errors import RemoteProtocolError
from realtime.transports.transport import (
    EXTENSION,
    YIELD_EVERY_MESSAGES,
    MessageReader,
    SocketControls,
    WebSocketTransport,
    check_size,
)


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


class Flood:
    """All of it is there already."""

    def __init__(self, num_messages: int) -> None:
        self.left = num_messages

    async def receive(self) -> str | None:
        self.left -= 1
        return "more" if self.left >= 0 else None


async def test_a_flood_lets_others_have_their_turn() -> None:
    flood = Flood(10 * YIELD_EVERY_MESSAGES)
    reader, turns = MessageReader(flood), 0

    async def other() -> None:
        nonlocal turns
        while flood.left > 0:
            turns += 1
            await asyncio.sleep(0)

    async def read() -> int:
        num_messages = 0
        while await reader.receive() is not None:
            num_messages += 1
        return num_messages

    num_messages, _ = await asyncio.gather(read(), other())
    assert num_messages == 10 * YIELD_EVERY_MESSAGES
    assert turns >= 9


@given(st.one_of(st.text(max_size=40), st.binary(max_size=40)), st.integers(1, 40))
def test_sizes_are_counted_in_bytes(message: str | bytes, limit: int) -> None:
    num_bytes = len(message if isinstance(message, bytes) else message.encode())
    if num_bytes <= limit:
        check_size(message, limit)
    else:
        with pytest.raises(RemoteProtocolError, match=f"a message of {num_bytes} bytes, max_message_bytes is {limit}"):
            check_size(message, limit)
