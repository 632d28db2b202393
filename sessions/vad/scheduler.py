"""Batch the pending windows of all callers into one run of the network.

The run is between two ticks, because packets are sent at the ticks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sessions.clock import next_mid_tick, now_s
from sessions.vad.barge_in import NUM_TRACKS, BargeInDetector, run_detector
from sessions.vad.energy import SILENCE_DB

# Per iteration of the event loop: 1.3 ms at 8 kHz.
MAX_BATCH_WINDOWS = 64

# Called when a caller begins to speak.
OnSpeechStart = Callable[[], None]


class VadScheduler:
    """Schedule inference for the detectors of one event loop."""

    def __init__(self) -> None:
        # Detectors with pending windows; the longest waiting is first.
        self._waiting: dict[BargeInDetector, OnSpeechStart] = {}
        self._timer: asyncio.Handle | None = None

    def push(self, detector: BargeInDetector, data: bytes, on_start: OnSpeechStart, own_db: float = SILENCE_DB) -> None:
        """Add audio of a caller; ``own_db`` is the level of playout."""
        detector.push(data, own_db)
        if detector.pending:
            self._waiting.setdefault(detector, on_start)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_at(next_mid_tick(now_s()), self._run)

    def remove(self, detector: BargeInDetector) -> None:
        """Reset a detector and remove it."""
        detector.reset()
        self._waiting.pop(detector, None)

    def _run(self) -> None:
        self._timer = None
        try:
            self._run_batch(self._select_batch())
        finally:
            if self._waiting and self._timer is None:
                self._timer = asyncio.get_running_loop().call_soon(self._run)

    def _run_batch(self, batch: list[BargeInDetector]) -> None:
        callbacks = {detector: self._waiting.pop(detector) for detector in batch}
        try:
            for sound in {detector.format for detector in batch}:
                for detector in run_detector([detector for detector in batch if detector.format == sound], sound):
                    callbacks[detector]()
        except Exception:
            for detector in callbacks:  # otherwise they would be retried forever
                detector.pending.clear()
            raise
        finally:  # behind the other detectors
            self._waiting |= {detector: on_start for detector, on_start in callbacks.items() if detector.pending}

    def _select_batch(self) -> list[BargeInDetector]:
        """Select the next detectors: at most one window for each track."""
        batch: list[BargeInDetector] = []
        num_left = MAX_BATCH_WINDOWS
        for detector in self._waiting:
            num_left -= min(NUM_TRACKS, len(detector.pending))
            if num_left < 0:
                break
            batch.append(detector)
        return batch
