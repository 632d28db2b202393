"""Run encoders beside the event loop: in threads, or in fair turns on the loop itself."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class EncoderPool:
    """A few threads for all responses of a registry. Encoding releases the interpreter's lock, so the event loop goes
    on meanwhile. With ``num_threads=0`` work runs on the event loop. Belongs to one event loop."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._has_turn = False

    @property
    def is_inline(self) -> bool:
        """True if encoding runs on the event loop."""
        return self._num_threads == 0

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return the result of ``work``. Each caller waits for its work before it submits more, so an encoder is in
        one thread at a time.

        A cancelled caller returns at once; its work may still run to its end, and the result is dropped.
        """
        if self.is_inline:
            result = work()
            await asyncio.sleep(0)
            return result
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="voicewire-encoder")
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def wait_turn(self) -> None:
        """Return in an event loop iteration in which no other caller returns; first come, first served. An engine
        emits the chunks of many responses at once."""
        loop = asyncio.get_running_loop()
        if self._has_turn:
            self._waiting.append(loop.create_future())
            await self._waiting[-1]
        else:
            self._has_turn = True
            loop.call_soon(self._wake_next)

    def close(self) -> None:
        """Let the current work finish and end the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None

    def _wake_next(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # else it was cancelled
                waiter.set_result(None)
                asyncio.get_running_loop().call_soon(self._wake_next)
                return
        self._has_turn = False
