from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.errors import RemoteProtocolError
from realtime.transports.transport import YIELD_EVERY_MESSAGES, MessageReader, check_size


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
