"""What one reply used: charged to the quotas of its key, and recorded for billing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from sessions.events import ResponseFinished
    from sessions.metrics import Metrics
    from sessions.quotas import KeyMeter
    from sessions.tracing import ResponseTimes, ResponseTracer

# Time for which a terminal event waits for the record of what the response used.
MAX_USAGE_WAIT_S = 1.0


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


class ResponseAccount:
    """The account of one response. Without a ``meter`` nothing is charged, and without a ``recorder`` none recorded.

    A ``tracer`` gets the record with the moments of the response."""

    def __init__(
        self,
        request_id: str,
        key: str,
        metrics: Metrics,
        meter: KeyMeter | None = None,
        recorder: UsageRecorder | None = None,
        is_resynced: bool = False,
        tracer: ResponseTracer | None = None,
        trace_parent: object = None,
    ) -> None:
        self.key = key
        self._request_id = request_id
        self._metrics = metrics
        self._meter = meter
        self._recorder = recorder
        self._is_resynced = is_resynced
        self._tracer = tracer
        self._trace_parent = trace_parent
        self._num_charged_samples = 0
        # Done once the record is safe.
        self._recording: asyncio.Future[None] | None = None

    def charge_text(self, num_chars: int) -> None:
        """Count text that arrives. Raises ``QuotaExceeded``; then nothing was counted."""
        if self._meter is not None:
            self._meter.charge_text(num_chars)

    def charge_audio(self, num_sent_samples: int, sample_rate: int) -> None:
        """Count what was sent for the first time; ``num_sent_samples`` are all that were sent so far."""
        if self._meter is not None and self._meter.counts_audio:
            num_samples = max(num_sent_samples - self._num_charged_samples, 0)
            num_ms = 1000 * num_samples // sample_rate
            self._num_charged_samples += num_ms * sample_rate // 1000
            self._meter.charge_audio(num_ms)

    def record(self, end: ResponseFinished, num_chars: int, times: ResponseTimes) -> None:
        """Begin to record the response, which ends with ``end``."""
        record = UsageRecord(
            id=self._request_id,
            key=self.key,
            status=end.status,
            code=end.error.code if end.error else None,
            chars=num_chars,
            audio_ms=round(end.audio_ms),
            frames=end.num_frames,
            resynced=self._is_resynced,
        )
        self._metrics.inc("key_responses_total", key=record.key, status=record.status)
        self._metrics.inc("key_characters_total", record.chars, key=record.key)
        self._metrics.inc("key_audio_seconds_total", record.audio_ms / 1000, key=record.key)
        if self._recorder is not None:
            self._recording = self._recorder.record(record)
        if self._tracer is not None:
            self._tracer.record(self._trace_parent, record, times)

    @property
    def is_recording(self) -> bool:
        return self._recording is not None

    async def recorded(self) -> None:
        """Wait until the record is safe or has failed, at most ``MAX_USAGE_WAIT_S``."""
        if self._recording is not None:
            await asyncio.wait([self._recording], timeout=MAX_USAGE_WAIT_S)
