"""Batch the pending windows of all callers into one run of the network.

That is between two ticks: at these packets leave.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sessions.clock import next_mid_tick, now_s
from sessions.vad.barge_in import NUM_TRACKS, BargeInDetector, run_detector
from sessions.vad.energy import SILENCE_DB

# In one turn of the event loop: it takes 1.3 ms at 8 kHz.
MAX_BATCH_WINDOWS = 64

# Called when a caller begins to speak.
OnSpeechStart = Callable[[], None]


class VadScheduler:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        # Detectors with pending windows; the longest waiting is first.
        self._waiting: dict[BargeInDetector, OnSpeechStart] = {}
        self._timer: asyncio.Handle | None = None

    def push(self, ear: BargeInDetector, data: bytes, began: OnSpeechStart, own_db: float = SILENCE_DB) -> None:
        ear.push(data, own_db)
        if ear.pending:
            self._waiting.setdefault(ear, began)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_at(next_mid_tick(now_s()), self._run)

    def remove(self, ear: BargeInDetector) -> None:
        """Remove a detector."""
        ear.reset()
        self._waiting.pop(ear, None)

    def _run(self) -> None:
        self._timer = None
        try:
            self._run_batch(self._select_batch())
        finally:
            if self._waiting and self._timer is None:
                self._timer = asyncio.get_running_loop().call_soon(self._run)

    def _run_batch(self, taken: list[BargeInDetector]) -> None:
        begans = {ear: self._waiting.pop(ear) for ear in taken}
        try:
            for sound in {ear.format for ear in taken}:
                for ear in run_detector([ear for ear in taken if ear.format == sound], sound):
                    begans[ear]()
        except Exception:
            for ear in begans:  # or it would be tried for ever
                ear.pending.clear()
            raise
        finally:  # they go behind the others
            self._waiting |= {ear: began for ear, began in begans.items() if ear.pending}

    def _select_batch(self) -> list[BargeInDetector]:
        """Select the next detectors: at most one window for each track."""
        taken: list[BargeInDetector] = []
        num_left = MAX_BATCH_WINDOWS
        for ear in self._waiting:
            num_left -= min(NUM_TRACKS, len(ear.pending))
            if num_left < 0:
                break
            taken.append(ear)
        return taken
