"""Bound how far ahead of the listener audio is sent, and time the next of it.

Two sources give the listener's position: the clock, which runs from the first audio on and stands still while there is
nothing to play, and the listener's own reports, from which the clock then runs on. Time is passed in, in seconds, by
any clock that does not go back. A report is taken as of its arrival, so that the way it took makes the lead look
longer than it is, never shorter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class UnderrunCause(StrEnum):
    # The writer had not sent the words yet.
    TEXT = "text"
    # The words were there, and their sound was not.
    ENGINE = "engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class PacerSettings:
    # Most audio handed over and not yet played; ``None`` hands over all at once (burst).
    lead_ms: int | None = 2_000
    # A listener starts playing so long after the first audio is handed over.
    start_delay_ms: int = 60
    # A report may be so far ahead of what the time since the first audio allows; what is beyond is cut off.
    report_tolerance_ms: int = 500
    # A shorter gap is within what timers and listeners' buffers even out, and is not reported.
    min_underrun_ms: int = 10

    def __post_init__(self) -> None:
        for field in ("lead_ms", "start_delay_ms", "report_tolerance_ms", "min_underrun_ms"):
            value = getattr(self, field)
            if value is not None and value < 0:
                raise ValueError(f"{field} must be at least 0, got {value}")


class Pacer:
    """Pace one response. Positions count samples from its first one, at ``sample_rate``."""

    def __init__(self, sample_rate: int, settings: PacerSettings | None = None) -> None:
        self.sample_rate = sample_rate
        self.settings = settings or PacerSettings()
        self.handed_over_samples = 0
        self._reported_samples = 0
        self._first_s = math.inf
        # A playout position and its time, from which the clock runs on.
        self._anchor_samples, self._anchor_s = 0, math.inf

    def due_s(self, num_samples: int, now_s: float) -> float:
        """Return when the next ``num_samples`` are due, together; ``now_s`` if at once.

        They keep within the lead. More than the whole lead at once is due when the listener has played all else.
        """
        if self.settings.lead_ms is None or not self.handed_over_samples:
            return now_s
        may_be_left = max(self._samples(self.settings.lead_ms) - num_samples, 0)
        return max(self._reached_s(self.handed_over_samples - may_be_left), now_s)

    def on_sent(
        self, num_samples: int, now_s: float, late_cause: UnderrunCause = UnderrunCause.ENGINE
    ) -> UnderrunCause | None:
        """Note that audio has left. Return ``late_cause`` if this ends an underrun."""
        underrun = None
        if not self.handed_over_samples:
            self._first_s = now_s
            self._anchor_s = now_s + self.settings.start_delay_ms / 1000
        elif self._anchor_samples <= self.handed_over_samples and self._reached_s(self.handed_over_samples) < now_s:
            gap_ms = 1000 * (now_s - self.underrun_deadline_s())
            underrun = late_cause if gap_ms >= self.settings.min_underrun_ms else None
            self._anchor_samples, self._anchor_s = self.handed_over_samples, now_s
        self.handed_over_samples += num_samples
        return underrun

    def on_playback_report(self, played_samples: int, now_s: float) -> int:
        """The listener says how much it has played. Returns what is believed of it: never less than it said before,
        never more than was handed over, nor than can have been played since."""
        can_be_played = self._elapsed(now_s - self._first_s) + self._samples(self.settings.report_tolerance_ms)
        believed = min(played_samples, self.handed_over_samples, can_be_played)
        self._reported_samples = max(believed, self._reported_samples)
        if self.handed_over_samples:
            self._anchor_samples, self._anchor_s = self._reported_samples, now_s
        return self._reported_samples

    def freeze(self, now_s: float) -> None:
        """Stop the clock: the listener is cut off. ``rewind`` lets it run again."""
        self._anchor_samples, self._anchor_s = self.played_samples(now_s), math.inf

    def rewind(self, sent_samples: int, played_samples: int, now_s: float) -> None:
        """Go back to where the listener has received ``sent_samples``, and has played ``played_samples``."""
        self.handed_over_samples = sent_samples
        self._reported_samples = self._anchor_samples = played_samples
        self._anchor_s = now_s if sent_samples else math.inf
        if sent_samples:
            self._first_s = min(self._first_s, now_s - played_samples / self.sample_rate)

    def played_samples(self, now_s: float) -> int:
        return min(self._anchor_samples + self._elapsed(now_s - self._anchor_s), self.handed_over_samples)

    def lead_samples(self, now_s: float) -> int:
        """Handed over and not yet played."""
        return self.handed_over_samples - self.played_samples(now_s)

    def underrun_deadline_s(self) -> float:
        """Return when all audio that was sent has been played; ``inf`` before the first audio."""
        return self._reached_s(self.handed_over_samples)

    def _reached_s(self, position: int) -> float:
        return self._anchor_s + (position - self._anchor_samples) / self.sample_rate

    def _elapsed(self, duration_s: float) -> int:
        return int(duration_s * self.sample_rate) if duration_s > 0 else 0

    def _samples(self, duration_ms: int) -> int:
        return duration_ms * self.sample_rate // 1000
