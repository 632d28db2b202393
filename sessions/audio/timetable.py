"""When each of many pacers is next due, so that one timer can serve them all."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

MAX_STALE_SHARE = 2
"""Entries that were moved or dropped may make up so many times the valid ones before they are swept out."""


class Timetable(Generic[Key]):
    """A key has one moment at most; setting it again moves it. The moments are those of any clock."""

    def __init__(self) -> None:
        self._moment_s: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._num_set = 0

    def __len__(self) -> int:
        return len(self._moment_s)

    def set(self, key: Key, moment_s: float) -> None:
        self._moment_s[key] = moment_s
        self._num_set += 1
        heapq.heappush(self._heap, (moment_s, self._num_set, key))
        if len(self._heap) > 16 + MAX_STALE_SHARE * len(self._moment_s):
            self._sweep()

    def drop(self, key: Key) -> None:
        self._moment_s.pop(key, None)

    def next_s(self) -> float | None:
        """The earliest moment: when to wake; ``None`` if there is none."""
        while self._heap:
            moment_s, _, key = self._heap[0]
            if self._moment_s.get(key) == moment_s:
                return moment_s
            heapq.heappop(self._heap)
        return None

    def due(self, now_s: float) -> list[Key]:
        """The keys whose moment has come, earliest first; they are taken out."""
        keys: list[Key] = []
        while (next_s := self.next_s()) is not None and next_s <= now_s:
            key = heapq.heappop(self._heap)[2]
            del self._moment_s[key]
            keys.append(key)
        return keys

    def _sweep(self) -> None:
        self._heap = [entry for entry in self._heap if self._moment_s.get(entry[2]) == entry[0]]
        heapq.heapify(self._heap)
