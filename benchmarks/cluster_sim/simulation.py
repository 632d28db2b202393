"""A day of a cluster: planned events in a queue, and slots of time between them."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable

import numpy as np

from benchmarks.cluster_sim.cluster import DRAINING, OFF, READY, Cluster, Counts, short_lead_share
from benchmarks.cluster_sim.costs import Costs
from benchmarks.cluster_sim.doors import Doors, LostConnections
from benchmarks.cluster_sim.fleet import Fleet
from benchmarks.cluster_sim.limits import Limits
from benchmarks.cluster_sim.scenario import DAY_S, HOUR_S, Failures, Load, Plant

# Delays between the shortest and the longest of a group, over which the share of short leads is averaged.
NUM_DELAYS = 16


class Simulation:
    """One run. ``slot_s`` should be short beside the length of a reply."""

    def __init__(
        self, load: Load, plant: Plant, failures: Failures, costs: Costs, slot_s: float = 1.0, seed: int = 0
    ) -> None:
        self.load, self.plant, self.failures, self.costs, self.slot_s = load, plant, failures, costs, slot_s
        self.rng = np.random.default_rng(seed)
        self.cluster = Cluster(plant.max_engines, plant.zones, costs, plant.slots, self.rng)
        self.doors = Doors(plant.doors * plant.door_rate, self.rng)
        self.fleet = Fleet(self.cluster, plant, self.hand_over)
        self.limits = Limits(load, plant, costs)
        self.fates = self.cluster.fates
        self.now_s = self.engine_s = 0.0
        # Replies of dead engines that wait for a slot: since when, when that is noticed, and how many.
        self.orphans: deque[tuple[float, float, int]] = deque()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._plan()

    @property
    def num_open(self) -> int:
        """Replies that have not ended."""
        return int(self.cluster.used.sum()) + sum(num for *_, num in self.orphans) + self.doors.num_unplaced

    def at(self, moment_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment_s, next(self._order), event))

    def _plan(self) -> None:
        self.fleet.begin(self.load.sessions(0.0) * self.load.talk_share)
        failures = self.failures
        planned = (
            (failures.zone_hour, self.fail_zone),
            (failures.storm_hour, lambda: self.cut_connections(failures.storm_share)),
            (failures.upgrade_hour, self.fleet.start_upgrade),
            (0.0, self._scale),
        )
        for hour, event in planned:
            if hour is not None:
                self.at(hour * HOUR_S, event)

    def run(self, seconds: float = DAY_S) -> Simulation:
        while self.now_s < seconds:
            while self._events and self._events[0][0] <= self.now_s:
                heapq.heappop(self._events)[2]()
            self._step()
            self.now_s += self.slot_s
        return self

    def _step(self) -> None:
        cluster, load, slot_s, before = self.cluster, self.load, self.slot_s, self.fates.taken_over
        self.fleet.step(self.now_s)
        self._fail_at_random()
        cluster.finish(slot_s, load.reply_s)
        num_connections = self._connect()
        self._place_orphans()
        cluster.arrive(load.replies_per_s(self.now_s), slot_s, load.reply_s)
        takeovers = self.fates.taken_over - before
        self.limits.measure(cluster, self.now_s, num_connections / slot_s, takeovers / slot_s)
        cluster.work(slot_s, self.plant.lead_s)
        self.engine_s += float((cluster.status != OFF).sum()) * slot_s

    def _scale(self) -> None:
        self.fleet.scale(self.now_s)
        self.at(self.now_s + self.plant.scale_interval_s, self._scale)

    def _fail_at_random(self) -> None:
        failures, hours = self.failures, self.slot_s / HOUR_S
        running = np.flatnonzero((self.cluster.status == READY) | (self.cluster.status == DRAINING))
        dead = running[self.rng.random(len(running)) < hours / failures.engine_mtbf_h]
        if len(dead):
            self.kill(dead, failures.process_detection_s)
            self.fleet.start(dead, self.now_s + self.plant.engine_start_s)
        num_gateways = len(running) * self.plant.gateways_per_engine
        num_dead = int(self.rng.poisson(num_gateways * hours / failures.gateway_mtbf_h))
        if num_dead:
            self.cut_connections(min(1.0, num_dead / num_gateways))

    def kill(self, engines: Counts, detection_s: float) -> None:
        """Stop engines whose replies others take over."""
        num_live, num_detached = self.cluster.stop(engines)
        self.doors.lose_engine(num_detached)
        if num_live:
            self.orphans.append((self.now_s, self.now_s + detection_s, num_live))

    def hand_over(self, engines: Counts) -> None:
        """Stop drained engines; others go on with their replies before they stop."""
        num_live, num_detached = self.cluster.stop(engines)
        self.doors.lose_engine(num_detached)
        num_placed = self.cluster.take_over(num_live, self.costs.takeover_positions(self.load.reply_s))
        if num_placed < num_live:
            self.orphans.append((self.now_s, self.now_s, num_live - num_placed))

    def fail_zone(self) -> None:
        """Lose the engines of one zone, and the connections of its gateways."""
        self.fleet.down_zones.add(0)
        self.cut_connections(1 / self.plant.zones)
        engines = np.flatnonzero((self.cluster.zone == 0) & (self.cluster.status != OFF))
        self.kill(engines, self.failures.machine_detection_s)
        self.at(self.now_s + self.failures.zone_down_s, self.fleet.down_zones.clear)

    def cut_connections(self, share: float) -> None:
        """Cut a random share of the sessions, whose clients connect again at once."""
        num_idle = max(0.0, self.load.sessions(self.now_s) - self.num_open) * share
        self.doors.lost.append(LostConnections(self.now_s, self.cluster.detach(share), 0, int(num_idle)))

    def _connect(self) -> float:
        """Open new sessions, then resume lost ones. Returns the connections that were asked for."""
        opens = self.load.opens_per_s(self.now_s) * self.slot_s
        num_wanted = opens + self.doors.num_waiting
        for resumed in self.doors.accept(opens, self.slot_s):
            self.cluster.attach(resumed.num_detached)
            self.fates.silent_resume += self._count_silent(resumed.num_detached, resumed.lost_s, 0.0)
            if resumed.num_unplaced:
                self.orphans.append((resumed.lost_s, self.now_s, resumed.num_unplaced))
        num_detached, num_unplaced = self.doors.expire(self.now_s - self.plant.grace_s)
        self.cluster.attach(num_detached, cut=True)
        self.fates.cut += num_unplaced
        return num_wanted

    def _place_orphans(self) -> None:
        waiting: deque[tuple[float, float, int]] = deque()
        positions = self.costs.takeover_positions(self.load.reply_s)
        for lost_s, noticed_s, num in self.orphans:
            num_placed = 0
            if noticed_s < self.now_s + self.slot_s:
                num_placed = self.cluster.take_over(num, positions)
                queue_s = max(0.0, noticed_s - self.now_s) + self.cluster.takeover_delay_s()
                self.fates.silent_takeover += self._count_silent(num_placed, lost_s, queue_s)
            if num > num_placed and self.now_s - lost_s > self.plant.grace_s:
                self.fates.cut += num - num_placed
            elif num > num_placed:
                waiting.append((lost_s, noticed_s, num - num_placed))
        self.orphans = waiting

    def _count_silent(self, num: int, lost_s: float, queue_s: float) -> float:
        """Expected listeners among ``num`` whose lead ends before audio comes again, within ``queue_s`` from now."""
        if not num:
            return 0.0
        waited_s, lead_s, speedup = self.now_s - lost_s, self.plant.lead_s, self.cluster.speedup
        delays = waited_s + queue_s * (np.arange(NUM_DELAYS) + 0.5) / NUM_DELAYS
        shares = [short_lead_share(float(delay), lead_s, speedup, self.load.reply_s) for delay in delays]
        self.fates.worst_silence_s = max(self.fates.worst_silence_s, waited_s + queue_s - lead_s)
        return num * float(np.mean(shares))
