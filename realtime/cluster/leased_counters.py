"""Usage counters of a gateway in a cluster, whose limits per key are places leased from the coordinator."""

from __future__ import annotations

import time
from collections.abc import Mapping

from realtime.auth import Authenticator
from realtime.cluster.limit_leases import Lease, Usage
from realtime.config_sections import LimitSettings
from sessions.admission import CONNECTIONS, RESPONSES, UsageCounters, key_counter
from sessions.quotas import quota_counter


class LeasedUsageCounters:
    """Counts as ``inner`` does. Of a limit in ``limits``, by its counter, only the leased places may be filled.

    Without a lease that holds, these are at most an equal part of the limit.
    """

    def __init__(self, inner: UsageCounters, limits: Mapping[str, int]) -> None:
        self._inner = inner
        self._limits = limits
        self._lease = Lease()
        self._valid_until_s = 0.0
        self._wanted: set[str] = set()

    def add(self, name: str, by: int) -> None:
        self._inner.add(name, by)

    def total(self, name: str) -> int:
        return self._inner.total(name)

    def places(self, name: str, limit: int, needed: int = 1) -> int:
        if name not in self._limits:
            return limit
        leased = min(self._places(name), limit)
        if leased < limit and self._inner.total(name) + needed > leased:
            self._wanted.add(name)
        return leased

    @property
    def is_current(self) -> bool:
        return time.monotonic() < self._valid_until_s and self._limits.keys() <= self._lease.places.keys()

    @property
    def version(self) -> int:
        """Version of the lease that is applied."""
        return self._lease.version

    def usage(self) -> dict[str, Usage]:
        """Return what the coordinator needs to know; requests that were refused until now are reported once."""
        wanted, self._wanted = self._wanted, set()
        return {
            name: Usage(limit, self._inner.total(name), self._places(name), name in wanted)
            for name, limit in self._limits.items()
        }

    def renew(self, lease: Lease, valid_until_s: float) -> None:
        """Apply a lease until a moment of ``time.monotonic``."""
        self._lease, self._valid_until_s = lease, valid_until_s

    def _places(self, name: str) -> int:
        leased = self._lease.places.get(name, 0)
        return leased if self.is_current else min(leased, max(1, self._limits[name] // self._lease.num_holders))


def leased_limits(limits: LimitSettings, keys: Authenticator) -> dict[str, int]:
    """Return the limits and quotas of keys that are given, by their counters.

    Shares of a gateway's own limits are not leased.
    """
    defaults = {CONNECTIONS: limits.max_connections_per_key, RESPONSES: limits.max_active_responses_per_key}
    leased = {}
    for principal in keys.principals:
        own = {CONNECTIONS: principal.max_connections, RESPONSES: principal.max_active_responses}
        for kind, default in defaults.items():
            limit = default if (given := own[kind]) is None else given
            if limit:
                leased[key_counter(kind, principal.name)] = limit
        leased |= {quota_counter(rule, principal.name): limit * rule.scale for rule, limit in principal.quotas.given()}
    return leased
