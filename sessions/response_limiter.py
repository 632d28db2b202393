"""Who may begin another response: a count of those at work, in all and by key."""

from __future__ import annotations

from sessions.config import RegistryLimits
from sessions.errors import LimitExceeded
from sessions.usage_counters import RESPONSES, LocalUsageCounters, UsageCounters, key_counter


class ResponseLimiter:
    def __init__(self, limits: RegistryLimits, tally: UsageCounters | None = None) -> None:
        self._limits = limits
        self._tally = tally or LocalUsageCounters()
        # Of this process.
        self.num_active = 0

    def acquire(self, key: str, key_limit: int | None = None) -> None:
        """Count one more response of ``key``; raises what ``check`` raises."""
        self.check(key, key_limit)
        self._count(key, 1)

    def check(self, key: str, key_limit: int | None = None) -> None:
        """Raises ``LimitExceeded`` if there is no room for one more. A key may have a limit of its own; without a key
        there is none."""
        self._check("max_active_responses", RESPONSES, self._limits.max_active_responses)
        if key:
            limit = self._limits.max_active_responses_per_key if key_limit is None else key_limit
            self._check("max_active_responses_per_key", key_counter(RESPONSES, key), limit)

    def release(self, key: str) -> None:
        self._count(key, -1)

    def _count(self, key: str, by: int) -> None:
        self.num_active += by
        self._tally.add(RESPONSES, by)
        self._tally.add(key_counter(RESPONSES, key), by)

    def _check(self, name: str, counted: str, limit: int) -> None:
        if self._tally.total(counted) >= limit:
            raise LimitExceeded(f"{name} is {limit}", retry_after_ms=self._limits.retry_after_ms)
