"""Stages end on the clock, whatever the speed of the machine: progress is elapsed time over the stage's length."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator


def until(duration_s: float) -> Iterator[float]:
    """Yields progress in [0, 1) until the time is over, once at least."""
    start = time.monotonic()
    yield 0.0
    while (progress := (time.monotonic() - start) / max(duration_s, 1e-9)) < 1:
        yield progress


def warm_cosine(progress: float, step: int, warmup_steps: int, floor: float = 0.02) -> float:
    """Learning-rate factor: linear warm-up in steps, cosine over the stage's time."""
    cosine = floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return min(1.0, (step + 1) / max(warmup_steps, 1)) * cosine


class Every:
    """True at most once in ``period_s`` seconds."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._last_s = time.monotonic()

    def __call__(self) -> bool:
        now_s = time.monotonic()
        if now_s - self._last_s < self._period_s:
            return False
        self._last_s = now_s
        return True
