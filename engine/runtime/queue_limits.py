"""How many requests may be there at once. No torch."""

from __future__ import annotations

from collections import Counter

import msgspec

from engine.api import SpeechRequest
from engine.config import EngineConfig
from engine.errors import OVERLOAD_RETRY_MS, EngineOverloaded


def burst_share(count: int) -> int:
    """Return how many of ``count`` slots or places burst requests may hold.

    A quarter, and at least one of two or three, is reserved for paced requests. A single one is open to both.
    """
    num_reserved = max(count // 4, min(count - 1, 1))
    return count - num_reserved


class RequestCounts:
    """Active requests: all, paced ones, and burst ones by group."""

    def __init__(self) -> None:
        self.num_requests = self.num_burst = 0
        self.num_burst_of: Counter[str] = Counter()

    @property
    def num_paced(self) -> int:
        return self.num_requests - self.num_burst

    def add(self, spec: SpeechRequest) -> None:
        self._change(spec, 1)

    def remove(self, spec: SpeechRequest) -> None:
        self._change(spec, -1)

    def _change(self, spec: SpeechRequest, by: int) -> None:
        self.num_requests += by
        if spec.is_burst:
            self.num_burst += by
            self.num_burst_of[spec.group] += by
            if not self.num_burst_of[spec.group]:
                del self.num_burst_of[spec.group]


class QueueLimits(msgspec.Struct, frozen=True):
    """Limits of the active requests of all clients."""

    new: int
    # The ceiling: for further segments of replies of which something has been heard.
    continuing: int
    for_burst: int
    for_burst_of_group: int

    @classmethod
    def from_config(cls, config: EngineConfig) -> QueueLimits:
        for_new = config.max_running_requests + config.max_queued_requests
        for_burst = burst_share(for_new)
        return cls(for_new, for_new + config.max_queued_continuations, for_burst, for_burst - for_burst // 3)

    def check(self, counts: RequestCounts, spec: SpeechRequest) -> None:
        """Raises ``EngineOverloaded`` unless the request fits beside the active ones."""
        if spec.segment:
            self._check("requests", counts.num_requests, self.continuing)
            return
        self._check("requests", counts.num_requests, self.new)
        if spec.is_burst:
            self._check("burst requests", counts.num_burst, self.for_burst)
            self._check("burst requests of one client", counts.num_burst_of[spec.group], self.for_burst_of_group)

    @staticmethod
    def _check(name: str, count: int, limit: int) -> None:
        if count >= limit:
            raise EngineOverloaded(f"{count} {name} are active; the limit is {limit}", OVERLOAD_RETRY_MS)
