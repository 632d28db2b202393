"""Waiting: for a moment, for a call, or for whichever comes first. Time is the event loop's, in seconds."""

from __future__ import annotations

import asyncio
import math

# Moments are rounded up to whole ticks, so that many waiters wake in one turn of the loop.
TICK_S = 0.005
TOLERANCE_S = 1e-6


def now_s() -> float:
    return asyncio.get_running_loop().time()


def next_tick(moment_s: float) -> float:
    """The first tick at or after a moment, but for what floats and loops round away."""
    return math.ceil((moment_s - TOLERANCE_S / 2) / TICK_S) * TICK_S


def next_mid_tick(moment_s: float) -> float:
    """The first moment half way between two ticks, for work that must not delay a tick."""
    return next_tick(moment_s - TICK_S / 2) + TICK_S / 2


def is_due(moment_s: float, now_s: float) -> bool:
    return moment_s <= now_s + TOLERANCE_S


class WakeEvent:
    """Wake-up of one task. One that comes before the wait ends the next wait at once."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        """Forget a wake-up that came before the wait."""
        self._is_set = False

    async def wait(self, until_s: float | None = None) -> None:
        """Return when set, or at ``until_s`` of the loop's clock, unless that is ``None`` or infinite."""
        if not self._is_set:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = None if until_s in (None, math.inf) else loop.call_at(next_tick(until_s), self.set)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        self._is_set = False
