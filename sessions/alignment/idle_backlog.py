"""Align speech soon after it arrives, in slices between the ticks at which packets are sent.

Aligned on arrival, the speech of many listeners delayed all packets by 10 ms.
"""

from __future__ import annotations

import asyncio
import time

from sessions.alignment.lazy_aligner import AlignmentBacklog
from sessions.clock import TICK_S, next_mid_tick, now_s

# Time of one slice; a piece that has begun is completed.
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
