"""Totals of a response for its terminal event and the metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.api import ErrorInfo, FinishReason, RequestFinished
from sessions.config import SpeechSettings
from sessions.events import ResponseFinished, ResponseStatus
from sessions.metrics import Metrics
from sessions.tracing import ResponseTimes

if TYPE_CHECKING:
    from sessions.timeline import ResponseTimeline


@dataclass(slots=True)
class ResponseTotals:
    times: ResponseTimes
    # Events received from the engine.
    num_engine_events: int = 0
    num_text_tokens: int = 0
    # Codec frames.
    num_frames: int = 0
    # Speech handed to the encoder, at the format's rate.
    num_samples: int = 0
    # A guard of the engine cut a segment.
    has_runaway: bool = False
    # Time from the submit of the first text to the first audio that was sent.
    first_audio_ms: float | None = None

    def on_submitted(self, now_s: float) -> None:
        if self.times.submitted_s is None:
            self.times.submitted_s = now_s

    def on_segment_end(self, end: RequestFinished, settings: SpeechSettings, metrics: Metrics) -> None:
        self.num_text_tokens += end.num_text_tokens
        self.num_frames += end.num_frames
        self.has_runaway = self.has_runaway or is_runaway(end.reason, settings)
        metrics.inc("segments_total", reason=end.reason)
        metrics.observe("queue_time_seconds", end.queue_ms / 1000)
        if end.num_skipped_tokens:
            metrics.inc("skipped_silence_tokens_total", end.num_skipped_tokens)
        if end.prompt_wait_ms is not None:
            metrics.observe("first_token_to_prompt_ready_seconds", end.prompt_wait_ms / 1000)

    def on_audio_sent(self, now_s: float, metrics: Metrics) -> None:
        times = self.times
        if times.first_sent_s is None and times.submitted_s is not None:
            times.first_sent_s = now_s
            self.first_audio_ms = 1000 * (now_s - times.submitted_s)
            metrics.observe("time_to_first_audio_seconds", self.first_audio_ms / 1000)

    def summarize(
        self,
        response_id: str,
        status: ResponseStatus,
        error: Exception | None,
        num_sent_samples: int,
        sample_rate: int,
        timeline: ResponseTimeline,
    ) -> ResponseFinished:
        """Return the terminal event as if all was heard. ``num_sent_samples`` are those of speech, and of what filled
        the last packet."""
        audio_samples = min(num_sent_samples, self.num_samples)
        audio_ms = 1000 * audio_samples / sample_rate
        return ResponseFinished(
            response_id,
            status,
            audio_samples=audio_samples,
            audio_ms=audio_ms,
            heard=timeline.full_heard_text(audio_ms),
            nothing_spoken=status is ResponseStatus.COMPLETED and audio_samples == 0,
            first_audio_ms=self.first_audio_ms,
            num_text_tokens=self.num_text_tokens,
            num_frames=self.num_frames,
            error=None if error is None else ErrorInfo.from_error(error),
            has_runaway=self.has_runaway,
        )


def is_runaway(reason: FinishReason, settings: SpeechSettings) -> bool:
    """Return whether a guard of the engine ended the segment; a length limit of the client does not count."""
    if reason is FinishReason.LENGTH:
        return settings.max_frames is None
    return reason in (FinishReason.SILENCE, FinishReason.LOOP)
