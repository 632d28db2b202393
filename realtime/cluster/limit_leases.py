"""Leases of limits per key: how the places of a limit are divided among gateways. No input or output.

A place is leased to one holder at a time. What a holder gives up counts as its own until it has applied the smaller
lease, so the leases of all holders never exceed the limit.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

# Time for which a lease holds without renewal.
LEASE_S = 5.0
# Time without a call after which the places of a holder go to others.
FORGET_S = 3 * LEASE_S
# Time after a refusal in which a holder gets what others do not use. Others give it up within a second.
WANTED_S = 3.0


class Usage(Struct, frozen=True, array_like=True):
    """Use of one limit by one holder."""

    limit: int
    used: int
    # Of the lease that the holder applies.
    places: int = 0
    # Whether a request was refused for want of places since the last call.
    is_wanted: bool = False


class Lease(Struct, frozen=True, array_like=True):
    """Places by the name of the limit, of ``num_holders`` holders."""

    version: int = 0
    num_holders: int = 1
    places: dict[str, int] = {}


class Holder:
    def __init__(self) -> None:
        self.heard_s = 0.0
        self.usage: Mapping[str, Usage] = {}
        # When a request was last refused, by the name of the limit.
        self.refused_s: dict[str, float] = {}
        # Leases that the holder may still apply, oldest first.
        self.sent: list[Lease] = []

    def held(self, name: str) -> int:
        """Places that the holder may fill now, or has filled."""
        usage = self.usage.get(name)
        own = max(usage.used, usage.places) if usage else 0
        return max([own, *(lease.places.get(name, 0) for lease in self.sent)])

    def wants(self, name: str, now_s: float) -> bool:
        return now_s - self.refused_s.get(name, -WANTED_S) < WANTED_S


class LimitLeases:
    """All leases. Until ``grow_from_s`` none grows, because leases of an earlier object may hold.

    Versions of leases count from ``first_version``, which is above those of earlier objects.
    """

    def __init__(self, grow_from_s: float, first_version: int = 0) -> None:
        self._grow_from_s = grow_from_s
        self._version = first_version
        self._holders: dict[str, Holder] = {}

    def renew(self, name: str, applied: int, usage: Mapping[str, Usage], now_s: float) -> Lease:
        """Return the next lease of a holder, which applies the lease of version ``applied``."""
        for lost in [one for one, holder in self._holders.items() if now_s - holder.heard_s > FORGET_S]:
            del self._holders[lost]
        holder = self._holders.setdefault(name, Holder())
        holder.heard_s, holder.usage = now_s, usage
        holder.refused_s |= {limit: now_s for limit, one in usage.items() if one.is_wanted}
        holder.sent = [lease for lease in holder.sent if lease.version >= applied]
        self._version += 1
        places = {limit: self._places(name, limit, now_s) for limit in usage}
        lease = Lease(self._version, len(self._holders), places)
        holder.sent.append(lease)
        return lease

    def remove(self, name: str) -> None:
        """Take the places back from a holder that has ended."""
        self._holders.pop(name, None)

    def _places(self, name: str, limit_name: str, now_s: float) -> int:
        usage = self._holders[name].usage[limit_name]
        limit = usage.limit
        others = [one for other, one in self._holders.items() if other != name]
        free = max(0, limit - sum(one.held(limit_name) for one in others))
        allowed = free if now_s >= self._grow_from_s else min(free, usage.places)
        return min(self._target(name, limit_name, limit, now_s), allowed)

    def _target(self, name: str, limit_name: str, limit: int, now_s: float) -> int:
        """Used places and a part of the unused ones: all but one for each other holder if requests are refused."""
        usages = {
            other: holder.usage[limit_name] for other, holder in self._holders.items() if limit_name in holder.usage
        }
        own = usages[name]
        unused = max(0, limit - sum(usage.used for usage in usages.values()))
        wanting = [other for other in usages if self._holders[other].wants(limit_name, now_s)]
        # A holder that was refused before the others may have a place by now.
        wanting.sort(key=lambda other: (-self._holders[other].refused_s[limit_name], other))
        if not wanting:
            return own.used + part(unused, sorted(usages), name)
        num_kept = min(len(usages) - len(wanting), max(0, unused - len(wanting)))
        if name in wanting:
            return own.used + part(unused - num_kept, wanting, name)
        return own.used + part(num_kept, sorted(other for other in usages if other not in wanting), name)


def part(num: int, names: list[str], name: str) -> int:
    """Return the part of ``name`` when ``num`` is divided among ``names``; the first ones get one more."""
    return num // len(names) + (names.index(name) < num % len(names))
