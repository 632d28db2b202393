"""The interface through which a response that ended reports its moments; the server exports them as traces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.api import RequestTimings
from sessions.usage import UsageRecord


@dataclass(slots=True)
class ResponseTimes:
    """Moments of a response in seconds of the event loop's clock; ``None`` if they did not come."""

    created_s: float
    # The engine got the first text.
    submitted_s: float | None = None
    # Its first chunk arrived.
    first_chunk_s: float | None = None
    # Of the first segment.
    engine: RequestTimings | None = None
    # The first packet was encoded, and handed to the reader.
    first_packet_s: float | None = None
    first_sent_s: float | None = None
    ended_s: float | None = None


class ResponseTracer(Protocol):
    def find_parent(self) -> object:
        """Return the context that responses of a session belong to which is created now."""
        ...

    def record(self, parent: object, usage: UsageRecord, times: ResponseTimes) -> None:
        """Record a response that ended. Never waits."""
        ...
