"""Whether one more stream can be carried without a gap: by a measured model of the step, not by a constant. No torch.

Every stream needs a frame in each frame's time. So as many can be carried as one step has rows when it takes that
long. How the time of a step grows with its rows is measured at start, over rows of nobody; how much longer the real
ones take, with their texts, their histories and the host's work, is learnt from the steps as they pass.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

DECAY = 0.99
"""Weight of the past at each step: the last few hundred count."""
MIN_WEIGHT = 20.0
"""Steps before they are believed."""
OUTLIER = 5.0
"""A step so many times slower than foreseen is somebody's hiccup and teaches nothing."""


class Shape:
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

    def __init__(self, shape: Shape | None = None) -> None:
        self.shape = shape
        self._line = Line()
        self._weight = self._seconds = self._foreseen = 0.0
        self._num_outliers = 0

    def note(self, rows: int, seconds: float) -> None:
        if rows == 0 or self._is_outlier(rows, seconds):
            return
        self._line.note(rows, seconds)
        self._weight = DECAY * self._weight + 1.0
        if self.shape is not None:
            self._seconds = DECAY * self._seconds + seconds
            self._foreseen = DECAY * self._foreseen + self.shape.seconds(rows)

    def _is_outlier(self, rows: int, seconds: float) -> bool:
        """As many in a row as the model is old are no outliers any more."""
        foreseen = self.seconds(rows)
        self._num_outliers = self._num_outliers + 1 if foreseen and seconds > OUTLIER * foreseen else 0
        return 0 < self._num_outliers < MIN_WEIGHT

    def seconds(self, rows: int) -> float | None:
        """Of a step with so many rows; None before anything is known."""
        is_believed = self._weight >= MIN_WEIGHT
        if self.shape is None:
            return self._line.seconds(rows) if is_believed else None
        slower = max(1.0, self._seconds / self._foreseen) if is_believed else 1.0
        return slower * self.shape.seconds(rows)

    def carries(self, num_streams: int, frame_s: float) -> bool:
        foreseen = self.seconds(num_streams)
        return foreseen is None or foreseen <= frame_s


class Line:
    """Least squares over recent steps: seconds = base + slope * rows."""

    def __init__(self) -> None:
        self._weight = self._rows = self._seconds = self._rows_squared = self._products = 0.0

    def note(self, rows: int, seconds: float) -> None:
        self._weight = DECAY * self._weight + 1.0
        self._rows = DECAY * self._rows + rows
        self._seconds = DECAY * self._seconds + seconds
        self._rows_squared = DECAY * self._rows_squared + rows * rows
        self._products = DECAY * self._products + rows * seconds

    def seconds(self, rows: int) -> float:
        mean_rows, mean_seconds = self._rows / self._weight, self._seconds / self._weight
        spread = self._rows_squared / self._weight - mean_rows**2
        together = self._products / self._weight - mean_rows * mean_seconds
        slope = max(0.0, together / spread) if spread > 1e-3 * mean_rows**2 else 0.0
        return max(0.0, mean_seconds + slope * (rows - mean_rows))
