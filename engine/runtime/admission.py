"""Which requests may come, which of them get slots, and what burst rows get of a step. No torch."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

import msgspec

from engine.api import SpeechRequest
from engine.config import EngineConfig
from engine.errors import OVERLOAD_RETRY_MS, EngineOverloaded
from engine.runtime.request import Request, ShareKey
from engine.runtime.step_model import StepModel


def burst_share(count: int) -> int:
    """Return how many of ``count`` slots or places burst requests may hold.

    A quarter, and at least one of two or three, is reserved for paced requests. A single one is open to both.
    """
    num_reserved = max(count // 4, min(count - 1, 1))
    return count - num_reserved


class RequestCounts:
    """Active requests: all, paced ones, and burst ones by group."""

    def __init__(self) -> None:
        self.num_requests = self.num_burst = 0
        self.num_burst_of: Counter[str] = Counter()

    @property
    def num_paced(self) -> int:
        return self.num_requests - self.num_burst

    def add(self, spec: SpeechRequest) -> None:
        self._change(spec, 1)

    def remove(self, spec: SpeechRequest) -> None:
        self._change(spec, -1)

    def _change(self, spec: SpeechRequest, by: int) -> None:
        self.num_requests += by
        if spec.is_burst:
            self.num_burst += by
            self.num_burst_of[spec.group] += by
            if not self.num_burst_of[spec.group]:
                del self.num_burst_of[spec.group]


class QueueLimits(msgspec.Struct, frozen=True):
    """Limits of the active requests of all clients."""

    new: int
    # The ceiling: for further segments of replies of which something has been heard, and for takeovers.
    continuing: int
    for_burst: int
    for_burst_of_group: int

    @classmethod
    def from_config(cls, config: EngineConfig) -> QueueLimits:
        for_new = config.max_running_requests + config.max_queued_requests
        for_burst = burst_share(for_new)
        return cls(for_new, for_new + config.max_queued_continuations, for_burst, for_burst - for_burst // 3)

    def check(self, counts: RequestCounts, spec: SpeechRequest) -> None:
        """Check that the request fits beside the active ones. Raises ``EngineOverloaded``."""
        if spec.segment or spec.is_takeover:
            self._check("requests", counts.num_requests, self.continuing)
            return
        self._check("requests", counts.num_requests, self.new)
        if spec.is_burst:
            self._check("burst requests", counts.num_burst, self.for_burst)
            self._check("burst requests of one client", counts.num_burst_of[spec.group], self.for_burst_of_group)

    @staticmethod
    def _check(name: str, count: int, limit: int) -> None:
        if count >= limit:
            raise EngineOverloaded(f"{count} {name} are active; the limit is {limit}", OVERLOAD_RETRY_MS)


class WaitingQueue:
    """First in, first out for each share of the slots."""

    def __init__(self) -> None:
        self._queues: dict[ShareKey, deque[Request]] = {}
        self._num_waiting = self._num_burst = 0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Request]:
        return (request for queue in self._queues.values() for request in queue)

    @property
    def num_burst(self) -> int:
        return self._num_burst

    @property
    def num_paced(self) -> int:
        return self._num_waiting - self._num_burst

    def append(self, request: Request) -> None:
        self._queues.setdefault(request.share_key, deque()).append(request)
        self._count(request, 1)

    def remove(self, request: Request) -> None:
        queue = self._queues[request.share_key]
        queue.remove(request)
        if not queue:
            del self._queues[request.share_key]
        self._count(request, -1)

    def next(self, num_running: Mapping[ShareKey, int], *, paced: bool, burst: bool) -> Request | None:
        """Find the request to admit first among those whose pace is allowed."""
        heads = [
            (key.is_burst, num_running.get(key, 0), queue[0].submitted_s, queue[0].epoch, queue[0])
            for key, queue in self._queues.items()
            if (burst if key.is_burst else paced)
        ]
        return min(heads)[-1] if heads else None

    def _count(self, request: Request, by: int) -> None:
        self._num_waiting += by
        self._num_burst += by * request.is_burst


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

    def clear(self) -> None:
        """Forget what groups were given: no burst request is left."""
        self._num_scheduled.clear()

    def record(self, requests: Iterable[Request]) -> None:
        """Count burst rows that were scheduled."""
        for request in requests:
            self._num_scheduled[request.spec.group] += 1
