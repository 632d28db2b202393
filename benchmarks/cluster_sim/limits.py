"""How much of each part's capacity the day uses at its worst moment."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.cluster_sim.cluster import OFF, Cluster
from benchmarks.cluster_sim.costs import Costs
from benchmarks.cluster_sim.scenario import Load, Plant

# Parts of which a cluster has one, whatever the number of its engines: only these bound the number of listeners.
SHARED = ("fleet", "doors", "limits actor", "voices")


@dataclass
class Peak:
    share: float = 0.0
    at_s: float = 0.0


class Limits:
    def __init__(self, load: Load, plant: Plant, costs: Costs) -> None:
        self.load, self.plant, self.costs = load, plant, costs
        self.peaks: dict[str, Peak] = {}

    def measure(self, cluster: Cluster, at_s: float, connections_per_s: float, takeovers_per_s: float) -> None:
        """Note the shares of this moment."""
        num_ready = max(1, int(cluster.ready.sum()))
        demand = self._demand_on_shared(cluster, num_ready, at_s, connections_per_s, takeovers_per_s)
        demand |= self._demand_on_engines(cluster, num_ready, connections_per_s)
        for name, share in demand.items():
            peak = self.peaks.setdefault(name, Peak())
            if share > peak.share:
                peak.share, peak.at_s = share, at_s

    def _demand_on_shared(
        self, cluster: Cluster, num_ready: int, at_s: float, connections_per_s: float, takeovers_per_s: float
    ) -> dict[str, float]:
        load, plant = self.load, self.plant
        fetches = load.cloned_share * (load.voice_miss_share * load.replies_per_s(at_s) + takeovers_per_s)
        return {
            "fleet": float((cluster.status != OFF).sum()) / plant.max_engines,
            "doors": connections_per_s / (plant.doors * plant.door_rate),
            "limits actor": num_ready * plant.lease_holders_per_engine / plant.actor_rate,
            "voices": fetches / plant.voice_rate,
        }

    def _demand_on_engines(self, cluster: Cluster, num_ready: int, connections_per_s: float) -> dict[str, float]:
        plant = self.plant
        accepted = min(connections_per_s, plant.doors * plant.door_rate)
        busy_ms = plant.gateway_ms_per_speech_s * float(cluster.live.sum()) + plant.gateway_ms_per_connection * accepted
        bits = 8 * plant.pcm_bytes_per_s * float(cluster.live.max())
        return {
            "engines": float(cluster.used.sum()) / (num_ready * self.costs.places),
            "gateways": busy_ms / 1000 / (num_ready * plant.gateways_per_engine),
            "network": bits / plant.network_bits_per_s,
        }

    @property
    def first(self) -> str:
        """The part that is closest to its capacity, or furthest beyond it."""
        return max(self.peaks, key=lambda name: self.peaks[name].share)

    def max_listeners(self, name: str) -> int | None:
        """Listeners at which a shared part is full, as its demand grows with them. None for a part of each engine."""
        return round(self.load.listeners / self.peaks[name].share) if name in SHARED else None
