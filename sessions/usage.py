"""What one reply used, for billing."""

from __future__ import annotations

import asyncio
from typing import Protocol

from msgspec import Struct


class UsageRecord(Struct, frozen=True, kw_only=True):
    # Names the reply on this server.
    id: str
    # Name of the API key.
    key: str
    status: str
    # Of the error, if it failed.
    code: str | None
    # Characters of text received.
    chars: int
    # Audio sent.
    audio_ms: int
    # Codec frames generated.
    frames: int
    # Whether another gateway began the reply.
    resynced: bool


class UsageRecorder(Protocol):
    def record(self, record: UsageRecord) -> asyncio.Future[None]:
        """Record a reply that ended; done when that is safe, or has failed."""
        ...
