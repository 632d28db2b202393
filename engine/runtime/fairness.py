"""What burst rows get of a step: as much time as paced rows leave, in equal shares for each group. No torch."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter

from engine.runtime.request import Request
from engine.runtime.step_model import StepModel

# The part of a step that does not grow with its rows is at most this share of a step with burst rows, within these
# times: a paced request that arrives meanwhile waits for the end of the step.
MAX_FIXED_SHARE = 0.15
MIN_BURST_STEP_S, MAX_BURST_STEP_S = 0.045, 0.060
# A step with burst rows may take this many steps of one row, however long.
BURST_STEP_RATIO = 2.0
# Slack that is enough for one burst row, whatever is predicted.
MAX_FIRST_S = 0.5
DEADLINE_S = attrgetter("deadline_s")


class StepBudget:
    """Limit on the predicted time of one step with burst rows.

    ``slack_s`` is what the most urgent paced row leaves, ``inf`` if there is none. One burst row is always allowed
    within it, so that a long prompt is computed, too.
    """

    def __init__(self, model: StepModel, slack_s: float, max_rows: int) -> None:
        self._model, self._slack_s, self._max_rows = model, slack_s, max_rows
        self._num_positions = -1
        self._rows_that_fit = 0

    def fits(self, num_rows: int, num_positions: int, *, is_first: bool) -> bool:
        """True if a step of these rows and prompt positions is short enough."""
        if self._slack_s == math.inf:
            return True
        if is_first:
            return min(self._model.max_seconds(num_rows, num_positions), MAX_FIRST_S) <= self._slack_s
        if num_positions != self._num_positions:
            self._num_positions, self._rows_that_fit = num_positions, self._find_rows_that_fit(num_positions)
        return num_rows <= self._rows_that_fit

    def _find_rows_that_fit(self, num_positions: int) -> int:
        shared_s = min(self._model.max_seconds(0) / MAX_FIXED_SHARE, MAX_BURST_STEP_S)
        limit_s = min(self._slack_s, max(shared_s, MIN_BURST_STEP_S, BURST_STEP_RATIO * self._model.max_seconds(1)))
        counts = range(1, self._max_rows + 1)
        return bisect_right(counts, limit_s, key=lambda count: self._model.max_seconds(count, num_positions))


class FairShares:
    """Order of burst rows: the most urgent one of each group, then the second one of each group, and so on.

    Where not all groups can have one row more, those that were given fewer rows so far go first.
    """

    def __init__(self) -> None:
        self._num_scheduled: dict[str, int] = {}

    def order(self, requests: Iterable[Request]) -> Sequence[Request]:
        groups: dict[str, list[Request]] = {}
        for request in sorted(requests, key=DEADLINE_S):
            groups.setdefault(request.spec.group, []).append(request)
        # A new group begins where the others are: it has no claim on steps before it came.
        start = min(self._num_scheduled.values(), default=0)
        self._num_scheduled = {group: self._num_scheduled.get(group, start) for group in groups}
        if len(groups) < 2:
            return [request for rows in groups.values() for request in rows]
        ranked = [
            (rank, self._num_scheduled[group], request.deadline_s, request.epoch, request)
            for group, rows in groups.items()
            for rank, request in enumerate(rows)
        ]
        return [request for *_, request in sorted(ranked)]

    def record(self, requests: Iterable[Request]) -> None:
        """Count burst rows that were scheduled."""
        for request in requests:
            self._num_scheduled[request.spec.group] += 1
