"""Returns freed heap pages to the system after connections have closed."""

from __future__ import annotations

import asyncio

from engine.api import trim_heap

TRIM_AFTER_S = 2.0
# A connection's objects are freed a little after it has left.
FREED_AFTER_S = 1.0


class HeapTrimmer:
    """Trims the heap in a thread, at most once per ``TRIM_AFTER_S`` while connections close.

    The C library keeps what is freed between blocks in use, about two thirds of a closed conversation.
    """

    def __init__(self) -> None:
        self._due_s: float | None = None
        self._last_close_s = 0.0

    def note_close(self) -> None:
        self._last_close_s = asyncio.get_running_loop().time()
        if self._due_s is None:
            self._due_s = self._last_close_s + TRIM_AFTER_S

    def tick(self, now_s: float) -> None:
        if self._due_s is None or now_s < self._due_s:
            return
        is_settled = now_s - self._last_close_s >= FREED_AFTER_S
        self._due_s = None if is_settled else now_s + TRIM_AFTER_S
        asyncio.get_running_loop().run_in_executor(None, trim_heap)
