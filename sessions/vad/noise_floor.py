"""Track the noise floor of a call. Pure: levels are passed in."""

from __future__ import annotations

import math
from collections import deque

# A window that is less likely to be speech holds the line's noise, and nothing else.
MAX_NOISE_PROBABILITY = 0.2
# Windows whose quietest is the noise floor; bursts of noise still go to inference.
NUM_WINDOWS = 8


class NoiseFloor:
    """``margin_db`` above it begins what may be a voice. Where the line falls by as much at once, that noise has ended:
    what is there now may be a quieter voice as well, and is looked at until its noise is known."""

    def __init__(self, margin_db: float) -> None:
        self._margin_db = margin_db
        self._levels_db: deque[float] = deque(maxlen=NUM_WINDOWS)
        self._quietest_db = math.inf

    def masks(self, level_db: float) -> bool:
        """Whether a window as quiet as this is nothing but the line's noise."""
        return len(self._levels_db) == NUM_WINDOWS and level_db < self._quietest_db + self._margin_db

    def update(self, level_db: float, likely: float | None) -> None:
        """A window was that likely speech. ``None``: it was not looked at, and tells only of less noise."""
        if level_db < self._quietest_db - self._margin_db:
            self._levels_db.clear()
        if level_db < self._quietest_db or (likely is not None and likely < MAX_NOISE_PROBABILITY):
            self._levels_db.append(level_db)
            self._quietest_db = min(self._levels_db)
