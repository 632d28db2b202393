"""The likeliest way through units of text in the time of the speech, step by step as both come in (semi-Markov).

Boundary ``j`` lies before unit ``j``. A unit lasts from one boundary to the next: no step at all, or as many as its
durations make likely, and what has lasted longest may go on. Only a window of boundaries is looked at: behind it the
way is settled, before it nothing can be reached yet.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sessions.alignment.letter_model import MAX_STEPS

if TYPE_CHECKING:
    from sessions.alignment.letter_model import AlignmentUnits

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

# The search does not go further than this ahead of the most likely position: at least two seconds of text.
BEAM_UNITS = 40
# Neighbouring steps hear nearly the same: each counts less than one that is independent.
EMISSION_WEIGHT = 0.6
# Minimum probability of a sound for any unit, relative to its frequency in all speech.
EMISSION_FLOOR = 1e-2
# Penalty per step beyond the longest duration.
SELF_LOOP_LOG_PROB = -0.12
IMPOSSIBLE = -1e30
EXTRA_UNITS = 64


@dataclass(frozen=True, slots=True)
class _Backpointers:
    """Back-pointers of one step: how each boundary of the window was reached."""

    low: int
    # The boundary that was reached by sound; units from there on take no time.
    sources: Ints
    # The step at which the unit before that boundary began.
    starts: Ints


class ViterbiPath:
    """Boundaries are at whole steps; step ``t`` is over when ``t`` scores have been pushed."""

    def __init__(self, num_sounds: int) -> None:
        self.num_units = 0
        self.num_steps = 0
        self._sounds = np.zeros((EXTRA_UNITS, num_sounds), np.float32)
        self._durations = np.zeros((EXTRA_UNITS, MAX_STEPS + 1), np.float32)
        # Log-probability that all units before a boundary take no time.
        self._silent = np.zeros(EXTRA_UNITS + 1)
        # [d - 1, unit]: the score of having entered d steps ago, less what the unit had heard by then.
        self._entered = np.full((MAX_STEPS, EXTRA_UNITS), IMPOSSIBLE)
        # Score of each unit over all steps since the window reached it.
        self._heard = np.zeros(EXTRA_UNITS)
        self._long = np.full(EXTRA_UNITS, IMPOSSIBLE)
        self._long_starts = np.zeros(EXTRA_UNITS, np.int32)
        self._low = 0
        self._best = 0
        self._final = IMPOSSIBLE
        self._arrivals: deque[_Backpointers] = deque()
        self._first_arrival = 1

    def add(self, units: AlignmentUnits) -> None:
        num_units = self.num_units + len(units.sounds)
        self._grow(num_units)
        self._sounds[self.num_units : num_units] = units.sounds
        self._durations[self.num_units : num_units] = units.durations
        silent = np.cumsum(units.durations[:, 0], dtype=np.float64) + self._silent[self.num_units]
        self._silent[self.num_units + 1 : num_units + 1] = silent
        if self.num_steps == 0:
            self._entered[0, :num_units] = self._silent[:num_units]
        self.num_units = num_units

    def push(self, scores: Floats) -> None:
        """Advance by one step of log-likelihood ratios, shape [num_sounds]."""
        self.num_steps += 1
        high = min(self.num_units, self._best + BEAM_UNITS)
        window = slice(self._low, high)
        reached, starts = self._update_boundaries(window, scores)
        shifted = reached - self._silent[self._low + 1 : high + 1]
        running = np.maximum.accumulate(shifted)
        sources = np.maximum.accumulate(np.where(shifted >= running, np.arange(shifted.size, dtype=np.int32), 0))
        best = running + self._silent[self._low + 1 : high + 1]
        self._open_unit(window, best)
        self._arrivals.append(_Backpointers(self._low, sources, starts))
        if best.size:
            self._best = self._low + 1 + int(best.argmax())

    def _update_boundaries(self, window: slice, scores: Floats) -> tuple[npt.NDArray[np.float64], Ints]:
        """The best score of each unit of the window ending now, and when it began then."""
        sound = EMISSION_WEIGHT * np.log(self._sounds[window] @ np.exp(scores) + EMISSION_FLOOR)
        self._heard[window] += sound
        entered = self._entered[:, window]
        ways = entered[:-1] + self._durations[window, 1:-1].T
        lasted = ways.argmax(0)
        reached = ways[lasted, np.arange(lasted.size)] + self._heard[window]
        starts = (self.num_steps - 1 - lasted).astype(np.int32)
        goes_on = self._long[window] + sound + SELF_LOOP_LOG_PROB
        becomes = entered[-1] + self._durations[window, -1] + self._heard[window]
        self._long[window] = np.maximum(goes_on, becomes)
        self._long_starts[window] = np.where(becomes >= goes_on, self.num_steps - MAX_STEPS, self._long_starts[window])
        longer = self._long[window] > reached
        return np.where(longer, self._long[window], reached), np.where(longer, self._long_starts[window], starts)

    def _open_unit(self, window: slice, best: npt.NDArray[np.float64]) -> None:
        """Units may begin now behind the boundaries that were reached."""
        self._entered[1:, window] = self._entered[:-1, window]
        self._entered[0, self._low] = IMPOSSIBLE
        inner = slice(window.start + 1, window.stop + 1 if window.stop < self.num_units else window.stop)
        self._entered[0, inner] = (best if inner.stop > window.stop else best[:-1]) - self._heard[inner]

    def trace(self, boundary: int | None = None) -> list[tuple[int, int]]:
        """Backwards from a boundary now, by default the likeliest: (unit, the step at which it ends)."""
        place = self._best if boundary is None else boundary
        step, ends = self.num_steps, []
        while step >= self._first_arrival:
            arrivals = self._arrivals[step - self._first_arrival]
            if not 0 < place - arrivals.low <= arrivals.sources.size:
                break
            source = int(arrivals.sources[place - arrivals.low - 1])
            ends += [(unit, step) for unit in range(place - 1, arrivals.low + source - 1, -1)]
            step, place = int(arrivals.starts[source]), arrivals.low + source
        if step == 0:
            ends += [(unit, 0) for unit in range(place - 1, self._low - 1, -1)]
        return ends

    def commit(self, unit: int, step: int) -> None:
        """The way before this unit, which begins at this step, will not be asked for again."""
        while self._first_arrival <= step:
            self._arrivals.popleft()
            self._first_arrival += 1
        self._low = max(self._low, unit)

    def _grow(self, num_units: int) -> None:
        missing = num_units - len(self._sounds)
        if missing <= 0:
            return
        missing += len(self._sounds)
        self._sounds = np.pad(self._sounds, ((0, missing), (0, 0)))
        self._durations = np.pad(self._durations, ((0, missing), (0, 0)))
        self._silent = np.pad(self._silent, (0, missing))
        self._entered = np.pad(self._entered, ((0, 0), (0, missing)), constant_values=IMPOSSIBLE)
        self._heard = np.pad(self._heard, (0, missing))
        self._long = np.pad(self._long, (0, missing), constant_values=IMPOSSIBLE)
        self._long_starts = np.pad(self._long_starts, (0, missing))
