"""A few threads for encoders: encoding releases the interpreter's lock, so the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class EncoderPool:
    """Serves all responses of a registry. With ``num_threads=0`` work is done where it is asked for; then others have
    their turn."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._pool: ThreadPoolExecutor | None = None

    @property
    def is_inline(self) -> bool:
        """Whether work holds up the event loop."""
        return self._num_threads == 0

    async def run(self, work: Callable[[], Result]) -> Result:
        """Each caller waits for its work before it gives more, so an encoder is in one thread at a time.

        A caller that is cancelled leaves at once; its work may still run to its end, and what it gives is dropped.
        """
        if self.is_inline:
            result = work()
            await asyncio.sleep(0)
            return result
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="voicewire-encoder")
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Let the work at hand finish and end the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None
