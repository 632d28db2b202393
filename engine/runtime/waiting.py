"""Requests without a decoder slot, in the order in which they are admitted. No torch.

Paced requests come before burst requests. Among either, the group with the fewest running requests comes first, and
then the oldest request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from engine.runtime.request import Request, ShareKey


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
