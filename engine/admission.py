"""Whether one more stream can be carried without a gap: by a measured model of the step, not by a constant. No torch.

Every stream needs a frame in each frame's time. So as many can be carried as one step has rows when it takes that
long; a step takes a fixed time and more for each row, both learnt from the steps as they pass.
"""

from __future__ import annotations

DECAY = 0.99
"""Weight of the past at each step: the last few hundred count."""
MIN_WEIGHT = 20.0
"""Steps before the model is believed."""
OUTLIER = 5.0
"""A step so many times slower than foreseen is somebody's hiccup and teaches nothing."""


class StepModel:
    """Least squares over recent steps: seconds = base + slope * rows."""

    def __init__(self) -> None:
        self._weight = self._rows = self._seconds = self._rows_squared = self._products = 0.0
        self._num_outliers = 0

    def note(self, rows: int, seconds: float) -> None:
        if rows == 0 or self._is_outlier(rows, seconds):
            return
        self._weight = DECAY * self._weight + 1.0
        self._rows = DECAY * self._rows + rows
        self._seconds = DECAY * self._seconds + seconds
        self._rows_squared = DECAY * self._rows_squared + rows * rows
        self._products = DECAY * self._products + rows * seconds

    def _is_outlier(self, rows: int, seconds: float) -> bool:
        """As many in a row as the model is old are no outliers any more."""
        foreseen = self.seconds(rows)
        self._num_outliers = self._num_outliers + 1 if foreseen and seconds > OUTLIER * foreseen else 0
        return 0 < self._num_outliers < MIN_WEIGHT

    def seconds(self, rows: int) -> float | None:
        """Of a step with so many rows; None before enough is known."""
        if self._weight < MIN_WEIGHT:
            return None
        mean_rows, mean_seconds = self._rows / self._weight, self._seconds / self._weight
        spread = self._rows_squared / self._weight - mean_rows**2
        together = self._products / self._weight - mean_rows * mean_seconds
        slope = max(0.0, together / spread) if spread > 1e-3 * mean_rows**2 else 0.0
        return max(0.0, mean_seconds + slope * (rows - mean_rows))

    def carries(self, num_streams: int, frame_s: float) -> bool:
        foreseen = self.seconds(num_streams)
        return foreseen is None or foreseen <= frame_s
