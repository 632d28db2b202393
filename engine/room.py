"""How many requests may be there at once. No torch."""

from __future__ import annotations

import msgspec

from engine.config import EngineConfig
from engine.errors import OVERLOAD_RETRY_MS, EngineOverloaded


class Room(msgspec.Struct, frozen=True):
    """A gateway counts its own requests by it, the engine those of all."""

    for_new: int
    for_speaking: int
    """The ceiling: for further segments of replies of which something has been heard."""

    @classmethod
    def of(cls, config: EngineConfig) -> Room:
        for_new = config.max_requests + config.max_waiting
        return cls(for_new, for_new + config.max_waiting_segments)

    def check(self, num_requests: int, segment: int) -> None:
        """Raises ``EngineOverloaded`` unless ``segment`` of a response fits beside so many requests."""
        limit = self.for_speaking if segment else self.for_new
        if num_requests >= limit:
            raise EngineOverloaded(f"{num_requests} requests are active; the limit is {limit}", OVERLOAD_RETRY_MS)
