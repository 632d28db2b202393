"""Alignment in spare moments: speech is looked through soon after it comes, a little at a time, between the ticks at
which packets leave. Looked through as it comes, that of many listeners at once held packets of all up by 10 ms."""

from __future__ import annotations

import asyncio
import time

from sessions.alignment.lazy_aligner import AlignmentBacklog
from sessions.clock import TICK_S, next_mid_tick, now_s

# After so long the rest waits for the next spare moment; a piece that is begun is looked through.
SLICE_S = 0.0005


class IdleAlignmentBacklog(AlignmentBacklog):
    """Belongs to one event loop."""

    def __init__(self, max_bytes: int = 0) -> None:
        super().__init__(max_bytes)
        self._timer: asyncio.TimerHandle | None = None

    def trim(self) -> None:
        super().trim()
        self._schedule(next_mid_tick(now_s()))

    def _schedule(self, moment_s: float) -> None:
        if self.num_bytes and self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(moment_s, self._process_slice)

    def _process_slice(self) -> None:
        end_s = time.perf_counter() + SLICE_S
        try:
            while self.num_bytes and self._process_oldest() and time.perf_counter() < end_s:
                pass
        finally:
            self._timer = None
            self._schedule(next_mid_tick(now_s() + TICK_S / 2))  # not in the one that is now
