"""Connections: sessions that open, and those that were cut and resume, first come, first served at the doors."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np


@dataclass
class LostConnections:
    """Sessions cut at one moment: with a live reply, with one that also lost its engine, and without a reply."""

    lost_s: float
    num_detached: int
    num_unplaced: int
    num_idle: int

    @property
    def num(self) -> int:
        return self.num_detached + self.num_unplaced + self.num_idle


class Doors:
    """``rate`` is what all doors accept in a second. New sessions go first."""

    def __init__(self, rate: float, rng: np.random.Generator) -> None:
        self.rate, self._rng = rate, rng
        self.lost: deque[LostConnections] = deque()
        self._budget = 0.0

    @property
    def num_unplaced(self) -> int:
        return sum(lost.num_unplaced for lost in self.lost)

    @property
    def num_waiting(self) -> int:
        return sum(lost.num for lost in self.lost)

    def lose_engine(self, num_detached: int) -> None:
        """Note that detached replies, of the oldest losses first, have lost their engine, too."""
        for lost in self.lost:
            num = min(num_detached, lost.num_detached)
            lost.num_detached -= num
            lost.num_unplaced += num
            num_detached -= num

    def expire(self, before_s: float) -> tuple[int, int]:
        """Give up the replies of connections lost before a moment: how many were detached, and how many unplaced.

        Their sessions open anew.
        """
        expired = [lost for lost in self.lost if lost.lost_s < before_s]
        num_detached = sum(lost.num_detached for lost in expired)
        num_unplaced = sum(lost.num_unplaced for lost in expired)
        if expired:
            merged = LostConnections(expired[0].lost_s, 0, 0, sum(lost.num for lost in expired))
            self.lost = deque([merged, *(lost for lost in self.lost if lost.lost_s >= before_s)])
        return num_detached, num_unplaced

    def accept(self, num_opens: float, slot_s: float) -> list[LostConnections]:
        """Accept the connections of a slot. Returns the groups that resumed."""
        self._budget = min(0.0, self._budget) + self.rate * slot_s - num_opens
        resumed = []
        while self.lost and self._budget >= 1:
            resumed.append(self._take(self.lost[0]))
            if not self.lost[0].num:
                self.lost.popleft()
        return resumed

    def _take(self, lost: LostConnections) -> LostConnections:
        num = min(lost.num, int(self._budget))
        self._budget -= num
        groups = np.array([lost.num_detached, lost.num_unplaced, lost.num_idle])
        taken = self._rng.multivariate_hypergeometric(groups, num)
        lost.num_detached, lost.num_unplaced, lost.num_idle = (int(count) for count in groups - taken)
        return LostConnections(lost.lost_s, *(int(count) for count in taken))
