"""The engines of a cluster as arrays: replies are counted by engine, never one by one.

Lengths of replies are exponential, so the number of live replies is a Markov chain. The survivors of a slot are drawn
exactly (binomial); places are checked at the end of each slot. So with slots of 1 s and replies of 8 s, a third of the
refusals are missed while places are only just short, and few where all are taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from benchmarks.cluster_sim.costs import Costs

Counts = npt.NDArray[np.int64]
OFF, STARTING, READY, DRAINING = range(4)


@dataclass
class Fates:
    """Each reply that came is completed, refused, cut, or still live."""

    arrived: int = 0
    completed: int = 0
    refused: int = 0
    cut: int = 0
    taken_over: int = 0
    resumed: int = 0
    # Replies whose listener heard a silence, by cause; and the longest of these silences.
    silent_takeover: float = 0.0
    silent_resume: float = 0.0
    silent_overload: float = 0.0
    worst_silence_s: float = 0.0
    live_seconds: float = 0.0


def spread(num: int, free: Counts) -> Counts:
    """Place ``num`` replies one after the other at the engine with the most free places; at most as many as fit."""
    num = min(num, int(free.sum()))
    placed = np.zeros_like(free)
    if num <= 0:
        return placed
    order = np.argsort(-free, kind="stable")
    sorted_free = free[order]
    # Replies that bring the first engines down to the level of each.
    needed = np.cumsum(sorted_free) - sorted_free * np.arange(1, len(free) + 1)
    count = int(np.searchsorted(needed, num, side="right"))
    each, rest = divmod(num - int(needed[count - 1]), count)
    placed[order[:count]] = sorted_free[:count] - sorted_free[count - 1] + each
    placed[order[:rest]] += 1
    return placed


def short_lead_share(delay_s: float, lead_s: float, speedup: float, reply_s: float) -> float:
    """Share of live replies whose lead is shorter than ``delay_s``. A lead grows with the age, by ``speedup`` - 1."""
    if delay_s >= lead_s or speedup <= 1:
        return 1.0 if delay_s > 0 else 0.0
    return 1 - math.exp(-max(0.0, delay_s) / ((speedup - 1) * reply_s))


@dataclass
class Cluster:
    """Engines, their live replies, and those whose listener is away (``detached``): these keep their place."""

    num_engines: int
    num_zones: int
    costs: Costs
    slots: int
    rng: np.random.Generator
    fates: Fates = field(default_factory=Fates)

    def __post_init__(self) -> None:
        def zeros() -> Counts:
            return np.zeros(self.num_engines, np.int64)

        self.status, self.live, self.detached = zeros(), zeros(), zeros()
        self.zone = np.arange(self.num_engines) % self.num_zones
        self.ready_s = np.full(self.num_engines, math.inf)
        self.drained_s = np.full(self.num_engines, math.inf)
        # Positions of takeovers not computed yet, and lead that an overload has used up.
        self.backlog, self.deficit_s = np.zeros(self.num_engines), np.zeros(self.num_engines)

    @property
    def used(self) -> Counts:
        return self.live + self.detached

    @property
    def ready(self) -> npt.NDArray[np.bool_]:
        return self.status == READY

    def free(self, ceiling: int) -> Counts:
        return np.where(self.ready, np.maximum(0, ceiling - self.used), 0)

    def finish(self, slot_s: float, reply_s: float) -> None:
        """End the replies whose length is over."""
        ended = self.rng.binomial(self.live, -math.expm1(-slot_s / reply_s))
        self.live -= ended
        self.fates.completed += int(ended.sum())

    def arrive(self, rate: float, slot_s: float, reply_s: float) -> None:
        """Place new replies, some of which end in the same slot."""
        num = int(self.rng.poisson(rate * slot_s))
        share = -math.expm1(-slot_s / reply_s) * reply_s / slot_s
        lasting = int(self.rng.binomial(num, share))
        placed = spread(lasting, self.free(self.costs.places))
        self.live += placed
        refused_share = 1 - int(placed.sum()) / lasting if lasting else 0.0
        refused_short = int(self.rng.binomial(num - lasting, refused_share))
        refused = lasting - int(placed.sum()) + refused_short
        self.fates.arrived += num
        self.fates.refused += refused
        self.fates.completed += num - lasting - refused_short

    def take_over(self, num: int, positions: float) -> int:
        """Place replies of dead engines; admission by load does not hold for them. Returns how many found a slot."""
        placed = spread(num, self.free(self.costs.places))
        placed += spread(num - int(placed.sum()), self.free(self.slots) - placed)
        self.live += placed
        self.backlog += placed * positions
        self.fates.taken_over += int(placed.sum())
        return int(placed.sum())

    def takeover_delay_s(self) -> float:
        """Seconds until the last of the replies taken over is generated again."""
        engine = int(np.argmax(self.backlog))
        return float(self.backlog[engine]) / self.costs.positions_per_s(int(self.live[engine]))

    @property
    def speedup(self) -> float:
        """How many times faster than real time a mean engine generates."""
        mean = float(self.live[self.ready].mean()) if self.ready.any() else 0.0
        return self.costs.sustained / max(mean, 1.0)

    def stop(self, engines: Counts) -> tuple[int, int]:
        """Stop engines at once. Returns the live and the detached replies that they lose."""
        lost = int(self.live[engines].sum()), int(self.detached[engines].sum())
        for counts in (self.live, self.detached, self.backlog, self.deficit_s):
            counts[engines] = 0
        self.status[engines] = OFF
        self.ready_s[engines] = self.drained_s[engines] = math.inf
        return lost

    def detach(self, share: float) -> int:
        """Cut the connections of a random share of the live replies."""
        away = self.rng.binomial(self.live, share)
        self.live -= away
        self.detached += away
        return int(away.sum())

    def attach(self, num: int, *, cut: bool = False) -> None:
        """Resume random detached replies, or end them."""
        if not num:
            return
        chosen = self.rng.multivariate_hypergeometric(self.detached, num, method="marginals")
        self.detached -= chosen
        if cut:
            self.fates.cut += num
        else:
            self.live += chosen
            self.fates.resumed += num

    def work(self, slot_s: float, lead_s: float) -> None:
        """Compute takeovers, and count the listeners of engines that fall behind real time by more than the lead."""
        busy = np.flatnonzero(self.backlog)
        device = self.live * (self.costs.utilization / self.costs.device_places)
        for engine in busy:
            rate = self.costs.positions_per_s(int(self.live[engine]))
            done = min(self.backlog[engine], rate * slot_s)
            self.backlog[engine] -= done
            device[engine] += done * (self.costs.position_s + self.costs.decode_frame_s) / slot_s
        # The host's part limits the replies, and prefill is work of the device.
        share = np.maximum(self.live / self.costs.sustained, device)
        before = self.deficit_s.copy()
        self.deficit_s = np.maximum(0.0, self.deficit_s + (share - 1) * slot_s)
        late = (before <= lead_s) & (self.deficit_s > lead_s)
        self.fates.silent_overload += float(self.live[late].sum())
        self.fates.live_seconds += float(self.used.sum()) * slot_s
