"""Which engines run: scaling by used places, drains and rolling upgrades."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import numpy as np

from benchmarks.cluster_sim.cluster import DRAINING, OFF, READY, STARTING, Cluster, Counts
from benchmarks.cluster_sim.scenario import Plant


class Fleet:
    """``hand_over`` gets an engine that has drained, and stops it."""

    def __init__(self, cluster: Cluster, plant: Plant, hand_over: Callable[[Counts], None]) -> None:
        self.cluster, self.plant, self._hand_over = cluster, plant, hand_over
        self.down_zones: set[int] = set()
        # (moment, engines that were enough): the most of the last minutes count before engines are given back.
        self._wanted: deque[tuple[float, int]] = deque()
        self._to_upgrade: list[int] = []
        self._upgrading: set[int] = set()
        self._num_before_upgrade = 0
        self.least_upgrade_share = 1.0
        self.upgraded_s: float | None = None

    def num_wanted(self, num_live: float) -> int:
        wanted = math.ceil(num_live / (self.plant.target * self.cluster.costs.places))
        return min(self.plant.max_engines, max(self.plant.zones, wanted))

    def begin(self, num_live: float) -> None:
        """Have as many engines ready as this load wants."""
        num = self.num_wanted(num_live)
        self.cluster.status[:num] = READY
        self._wanted.append((0.0, num))

    def step(self, now_s: float) -> None:
        """Let engines that have started take replies, and stop those that have drained."""
        cluster = self.cluster
        cluster.status[(cluster.status == STARTING) & (cluster.ready_s <= now_s)] = READY
        drained = (cluster.drained_s <= now_s) | (cluster.used == 0)
        for engine in np.flatnonzero((cluster.status == DRAINING) & drained):
            self._hand_over(np.array([engine]))
            if engine in self._upgrading:
                self.start(np.array([engine]), now_s + self.plant.engine_start_s)
        if self._num_before_upgrade:
            self._upgrade(now_s)

    def scale(self, now_s: float) -> None:
        """Start or drain engines so that ``target`` of the places is used."""
        cluster, plant = self.cluster, self.plant
        wanted = self.num_wanted(float(cluster.used.sum()))
        self._wanted.append((now_s, wanted))
        while self._wanted[0][0] < now_s - plant.scale_down_delay_s:
            self._wanted.popleft()
        num = int(((cluster.status == READY) | (cluster.status == STARTING)).sum())
        if wanted > num:
            self._start_more(wanted - num, now_s)
        elif not self._num_before_upgrade:
            surplus = num - max(count for _, count in self._wanted)
            ready = np.flatnonzero(cluster.ready)
            self.drain(ready[np.argsort(cluster.used[ready], kind="stable")[: max(0, surplus)]], now_s)

    def _start_more(self, num: int, now_s: float) -> None:
        """Start engines, each in the zone with the fewest."""
        cluster = self.cluster
        running = np.bincount(cluster.zone[cluster.status != OFF], minlength=self.plant.zones)
        off = {zone: list(np.flatnonzero((cluster.status == OFF) & (cluster.zone == zone)))
               for zone in range(self.plant.zones) if zone not in self.down_zones}  # fmt: skip
        for _ in range(num):
            zones = [zone for zone, engines in off.items() if engines]
            if not zones:
                return
            zone = min(zones, key=lambda zone: running[zone])
            running[zone] += 1
            ready_s = now_s + self.plant.machine_start_s + self.plant.engine_start_s
            self.start(np.array([off[zone].pop()]), ready_s)

    def start(self, engines: Counts, ready_s: float) -> None:
        self.cluster.status[engines] = STARTING
        self.cluster.ready_s[engines] = ready_s

    def drain(self, engines: Counts, now_s: float) -> None:
        """Give engines no new replies; what they still speak later is handed over."""
        self.cluster.status[engines] = DRAINING
        self.cluster.drained_s[engines] = now_s + self.plant.drain_s

    def start_upgrade(self) -> None:
        """Restart each engine once, with a share of them at the same time."""
        self._to_upgrade = list(np.flatnonzero(self.cluster.ready))
        self._num_before_upgrade = len(self._to_upgrade)

    def _upgrade(self, now_s: float) -> None:
        status = self.cluster.status
        self._upgrading = {engine for engine in self._upgrading if status[engine] not in (READY, OFF)}
        batch = max(1, int(self.plant.upgrade_share * self._num_before_upgrade)) - len(self._upgrading)
        ready = [self._to_upgrade.pop() for _ in range(min(batch, len(self._to_upgrade)))]
        ready = [engine for engine in ready if status[engine] == READY]
        self.drain(np.array(ready, np.int64), now_s)
        self._upgrading.update(ready)
        share = float(self.cluster.ready.sum()) / self._num_before_upgrade
        self.least_upgrade_share = min(self.least_upgrade_share, share)
        if not self._to_upgrade and not self._upgrading:
            self._num_before_upgrade, self.upgraded_s = 0, now_s
