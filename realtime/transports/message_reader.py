"""What comes on a line, message by message: fairly, and none too long."""

from __future__ import annotations

import asyncio
from typing import Generic, Protocol, TypeVar

from realtime.errors import RemoteProtocolError

# Messages that are read per loop iteration.
YIELD_EVERY_MESSAGES = 50

M = TypeVar("M", bound=str | bytes)
M_co = TypeVar("M_co", bound=str | bytes, covariant=True)


class MessageSource(Protocol[M_co]):
    async def receive(self) -> M_co | None:
        """The next message; ``None`` once the line is closed by either side."""
        ...


class MessageReader(Generic[M]):
    """Of one line. A client that sends faster than is read does not delay others."""

    def __init__(self, line: MessageSource[M]) -> None:
        self._line = line
        self._num_messages = 0

    async def receive(self) -> M | None:
        """The next message; ``None`` once the line is closed by either side."""
        message = await self._line.receive()
        self._num_messages += 1
        if self._num_messages % YIELD_EVERY_MESSAGES == 0:
            await asyncio.sleep(0)
        return message


def check_size(message: str | bytes, max_message_bytes: int) -> None:
    """Raises ``RemoteProtocolError``."""
    is_short = len(message) <= max_message_bytes // 4  # no character takes more than four bytes
    num_bytes = len(message) if is_short or isinstance(message, bytes) else len(message.encode())
    if num_bytes > max_message_bytes:
        found = f"a message of {num_bytes} bytes"
        raise RemoteProtocolError("message_too_big", f"{found}, max_message_bytes is {max_message_bytes}")
