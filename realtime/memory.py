"""Resident memory of a process and of those it started, and the return of freed heap pages to the system.

Linux; elsewhere nothing is known.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from engine.api import trim_heap

PROC = Path("/proc")

TRIM_AFTER_S = 2.0
# A connection's objects are freed a little after it has left.
FREED_AFTER_S = 1.0


def resident_bytes(pid: int) -> int:
    """0 where it cannot be read."""
    return sum(_resident_bytes(member) for member in _family(pid))


def _family(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for thread in (PROC / str(pid) / "task").iterdir():
            for child in (thread / "children").read_text().split():
                yield from _family(int(child))


def _resident_bytes(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int((PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


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
