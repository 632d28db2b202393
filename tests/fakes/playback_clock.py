"""The fake engine's idea of where the listener is."""

from __future__ import annotations

import asyncio

from tests.fakes.engine_script import SAMPLE_RATE


class FakePlaybackClock:
    """Runs in real time from the first chunk on, waits when it has caught up, obeys reports."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._generated_samples = 0
        self._anchor_samples = 0
        self._anchor_s = 0.0

    def played_samples(self) -> int:
        return min(self._position(), self._generated_samples)

    def _position(self) -> int:
        return self._anchor_samples + round((self._loop.time() - self._anchor_s) * SAMPLE_RATE)

    def lead_ms(self) -> float:
        return 1000 * (self._generated_samples - self.played_samples()) / SAMPLE_RATE

    def generated(self, samples: int) -> None:
        if self._anchor_samples <= self._generated_samples:  # else the listener has audio that is made again
            self.report(self.played_samples())
        self._generated_samples = samples

    def report(self, played_samples: int) -> None:
        self._anchor_samples = played_samples
        self._anchor_s = self._loop.time()
