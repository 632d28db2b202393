"""Who may begin another response: a count of those at work, in all and by key."""

from __future__ import annotations

from collections import Counter

from sessions.config import RegistryLimits
from sessions.errors import LimitExceeded


class Admission:
    def __init__(self, limits: RegistryLimits) -> None:
        self._limits = limits
        self._active_by_key: Counter[str] = Counter()

    @property
    def num_active(self) -> int:
        return self._active_by_key.total()

    def enter(self, key: str, key_limit: int | None = None) -> None:
        """Count one more response of ``key``; raises what ``check`` raises."""
        self.check(key, key_limit)
        self._active_by_key[key] += 1

    def check(self, key: str, key_limit: int | None = None) -> None:
        """Raises ``LimitExceeded`` if there is no room for one more. A key may have a limit of its own; without a key
        there is none."""
        self._check("max_active_responses", self.num_active, self._limits.max_active_responses)
        if key:
            limit = self._limits.max_active_responses_per_key if key_limit is None else key_limit
            self._check("max_active_responses_per_key", self._active_by_key[key], limit)

    def leave(self, key: str) -> None:
        self._active_by_key[key] -= 1
        if self._active_by_key[key] == 0:
            del self._active_by_key[key]

    def _check(self, name: str, num_active: int, limit: int) -> None:
        if num_active >= limit:
            raise LimitExceeded(f"{name} is {limit}", retry_after_ms=self._limits.retry_after_ms)
