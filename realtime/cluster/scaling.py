"""Decides how many replicas of a kind there should be, and which come and go. No input or output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

Kind = Literal["engine", "gateway", "door"]
State = Literal["starting", "ready", "draining", "gone"]


class ReplicaStatus(Struct, frozen=True, kw_only=True):
    """What a replica reports."""

    name: str
    kind: Kind
    # Of its command and settings; replicas of another one are replaced.
    generation: str
    state: State = "starting"
    # Ray's id of its machine; empty until it runs there.
    node: str = ""
    host: str = ""
    port: int = 0
    # ``HOST:PORT`` of its own port for clients, or the engine's address.
    url: str = ""
    num_connections: int = 0
    num_active_responses: int = 0
    # Places of the engines behind a gateway, and those that are taken or waited for.
    places: int = 0
    used_places: int = 0


class Steps(Struct, frozen=True):
    """What to do now."""

    num_to_start: int = 0
    to_drain: tuple[str, ...] = ()


def plan(replicas: Sequence[ReplicaStatus], wanted: int, generation: str) -> Steps:
    """Return the next steps towards ``wanted`` ready replicas of ``generation``.

    A replica drains only while ``wanted`` others are ready, so an upgrade takes one replica more than that and never
    lowers capacity. Old replicas leave first, then those with the fewest connections.
    """
    outdated = [
        one.name for one in replicas if one.state == "starting" and (one.generation != generation or wanted == 0)
    ]
    staying = [one for one in replicas if one.state in ("starting", "ready") and one.name not in outdated]
    num_current = sum(one.generation == generation for one in staying)
    surge = 1 if num_current < len(staying) else 0
    ready = sorted(
        (one for one in staying if one.state == "ready"),
        key=lambda one: (one.generation == generation, one.num_connections, one.name),
    )
    num_to_start = min(wanted - num_current, wanted + surge - len(staying))
    surplus = [one.name for one in ready[: max(0, len(ready) - wanted)]]
    return Steps(max(0, num_to_start), (*outdated, *surplus))


class Autoscaler:
    """Number of replicas that keeps the share of used places at the target."""

    def __init__(self, minimum: int, maximum: int, target: float, scale_down_delay_s: float) -> None:
        self._minimum, self._maximum = minimum, maximum
        self._target = target
        self._scale_down_delay_s = scale_down_delay_s
        self._wanted = minimum
        self._fewer_since_s: float | None = None

    def update(self, used: float, places_per_replica: float, now_s: float) -> int:
        """Return the wanted number. It grows at once, and shrinks when fewer did for the whole delay.

        Without places, which is before the first report, the number stays.
        """
        if places_per_replica > 0:
            needed = math.ceil(used / (self._target * places_per_replica) - 1e-9)
            self._set(min(max(needed, self._minimum), self._maximum), now_s)
        return self._wanted

    def adopt(self, num_replicas: int) -> None:
        """Begin with the replicas that run already."""
        self._wanted = min(max(num_replicas, self._minimum), self._maximum)

    def _set(self, needed: int, now_s: float) -> None:
        if needed >= self._wanted:
            self._wanted, self._fewer_since_s = needed, None
        elif self._fewer_since_s is None:
            self._fewer_since_s = now_s
        elif now_s - self._fewer_since_s >= self._scale_down_delay_s:
            self._wanted, self._fewer_since_s = self._wanted - 1, now_s
