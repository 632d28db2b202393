"""Pieces of work that come together, one in each turn of the event loop: what else is due comes between them."""

from __future__ import annotations

import asyncio
from collections import deque


class LoopThrottle:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False

    async def wait_turn(self) -> None:
        """Return in an event loop iteration in which no other caller returns; first come, first served."""
        loop = asyncio.get_running_loop()
        if self._taken:
            self._waiting.append(loop.create_future())
            await self._waiting[-1]
        else:
            self._taken = True
            loop.call_soon(self._wake_next)

    def _wake_next(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # else it was cancelled
                waiter.set_result(None)
                asyncio.get_running_loop().call_soon(self._wake_next)
                return
        self._taken = False
