"""Predicts from measured steps whether one more stream fits without a gap. Imports no torch.

Every stream needs a frame in each frame's time. So as many can be carried as one step has rows when it takes that
long. How the time of a step grows with its rows is measured at start, over dummy rows; how much longer the real
ones take, with their texts, their histories and the host's work, is learnt from the steps as they pass.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

from engine.runtime.request import StepBatch

SLOPE_DECAY = 0.999
# Weight of the past at each step: the last few hundred count.
DECAY = 0.99
# Steps before they are believed.
MIN_WEIGHT = 20.0
# A step this many times slower than predicted is an outlier and is not learned from.
OUTLIER_FACTOR = 5.0


# Of a prompt position before one was measured: more than it takes on any machine that keeps up with speech.
UNKNOWN_POSITION_S = 0.001
# A fit is used for steps of up to this many times the most rows that it was learned from.
GROWTH = 2


class StepTimeTable:
    """Seconds of a step by its rows: as ``measured`` of the row count that it is padded to, and beyond the last in
    proportion to it, for what a step takes at large is by the row.
    """

    def __init__(self, measured: Mapping[int, float]) -> None:
        self._rows = sorted(measured)
        self._seconds = list(accumulate((measured[count] for count in self._rows), max))

    def seconds(self, rows: int) -> float:
        most = self._rows[-1]
        padded = bisect_left(self._rows, min(rows, most))
        return max(1.0, rows / most) * self._seconds[padded]


class StepModel:
    """``shape``, as many times longer as recent steps were; without one, a line through recent steps."""

    def __init__(self, table: StepTimeTable | None = None) -> None:
        self.calibrate(table)

    def calibrate(self, shape: StepTimeTable | None) -> None:
        """Start anew from a measured shape, or from nothing."""
        self.table = shape
        self._line = StepTimeFit()
        self._weight = self._seconds = self._foreseen = 0.0
        self._num_outliers = self._max_rows = 0
        self._prefill_weight = self._prefill_s = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        if rows == 0 or self._is_outlier(rows, seconds):
            return
        self._line.observe(rows, seconds)
        self._max_rows = max(self._max_rows, rows)
        self._weight = DECAY * self._weight + 1.0
        if self.table is not None:
            self._seconds = DECAY * self._seconds + seconds
            self._foreseen = DECAY * self._foreseen + self.table.seconds(rows)

    def note_step(self, batch: StepBatch, seconds: float) -> None:
        """Learn from a step, whatever it computed."""
        if batch.prefills:
            self.note_prefill(len(batch), batch.num_prefill_positions, seconds)
        else:
            self.observe(len(batch), seconds)

    def note_prefill(self, rows: int, positions: int, seconds: float) -> None:
        """Learn what prompt positions add to a step with ``num_rows`` rows."""
        foreseen = self.seconds(rows)
        if foreseen is not None and positions:
            self._prefill_weight = DECAY * self._prefill_weight + positions
            self._prefill_s = DECAY * self._prefill_s + max(0.0, seconds - foreseen)

    def max_seconds(self, rows: int, positions: int = 0) -> float:
        """Predict a step, rather too long than too short; ``inf`` far beyond what was measured."""
        position_s = self._prefill_s / self._prefill_weight if self._prefill_weight else UNKNOWN_POSITION_S
        return self._max_row_seconds(rows) + positions * position_s

    def _max_row_seconds(self, rows: int) -> float:
        if self.table is not None:
            return self.seconds(rows) or 0.0
        if rows > GROWTH * max(1, self._max_rows):
            return math.inf
        return self._line.max_seconds(rows)

    def _is_outlier(self, rows: int, seconds: float) -> bool:
        """Return whether a step is an outlier. ``MIN_WEIGHT`` of them in a row become the new level."""
        foreseen = self.seconds(rows)
        self._num_outliers = self._num_outliers + 1 if foreseen and seconds > OUTLIER_FACTOR * foreseen else 0
        return 0 < self._num_outliers < MIN_WEIGHT

    def seconds(self, rows: int) -> float | None:
        """Predicted time of a step with these rows; None before anything is known."""
        is_believed = self._weight >= MIN_WEIGHT
        if self.table is None:
            return self._line.seconds(rows) if is_believed else None
        slower = max(1.0, self._seconds / self._foreseen) if is_believed else 1.0
        return slower * self.table.seconds(rows)

    def can_sustain(self, num_streams: int, frame_s: float) -> bool:
        foreseen = self.seconds(num_streams)
        return foreseen is None or foreseen <= frame_s


class StepTimeFit:
    """Least squares over recent steps: seconds = base + slope * rows."""

    def __init__(self) -> None:
        self._weight = self._rows = self._seconds = 0.0
        # Steps of one size are common, and the slope is learnt from the others: it has a longer memory.
        self._past = [0.0] * 5
        self._slope: float | None = None

    def observe(self, rows: int, seconds: float) -> None:
        self._weight = DECAY * self._weight + 1.0
        self._rows = DECAY * self._rows + rows
        self._seconds = DECAY * self._seconds + seconds
        terms = (1.0, rows, seconds, rows * rows, rows * seconds)
        self._past = [SLOPE_DECAY * total + term for total, term in zip(self._past, terms, strict=True)]
        _, mean_rows, mean_seconds, mean_square, mean_product = (total / self._past[0] for total in self._past)
        spread = mean_square - mean_rows**2
        if spread > 1e-3 * mean_rows**2:
            self._slope = max(0.0, (mean_product - mean_rows * mean_seconds) / spread)

    def seconds(self, rows: int) -> float:
        return self._seconds_at(rows, self._slope or 0.0)

    def max_seconds(self, rows: int) -> float:
        """With an unknown slope time grows in proportion to the rows; 0 before the first step."""
        if not self._weight:
            return 0.0
        return self._seconds_at(rows, self._seconds / self._rows if self._slope is None else self._slope)

    def _seconds_at(self, rows: int, slope: float) -> float:
        return max(0.0, (self._seconds + slope * (rows * self._weight - self._rows)) / self._weight)
