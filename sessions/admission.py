"""Count what is limited, and admit responses by key and in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from sessions.config import RegistryLimits
from sessions.errors import LimitExceeded

if TYPE_CHECKING:
    from sessions.session import Session

# Ends the first of the sessions whose clients are lost for which the argument is true; returns False if there is none.
EvictSession = Callable[[Callable[["Session"], bool]], bool]

CONNECTIONS, SESSIONS, RESPONSES = "connections", "sessions", "responses"
# Recordings that arrive, and that are listened to.
UPLOADS, ENCODINGS = "uploads", "encodings"


def key_counter(kind: str, key_name: str) -> str:
    return f"{kind} of {key_name}"


def counter_names(key_names: Iterable[str]) -> list[str]:
    """Everything that is ever counted on a server with these keys; also connections whose key is still to come."""
    by_key = (key_counter(kind, key_name) for key_name in key_names for kind in (CONNECTIONS, RESPONSES))
    return [CONNECTIONS, SESSIONS, RESPONSES, UPLOADS, ENCODINGS, key_counter(CONNECTIONS, ""), *by_key]


class UsageCounters(Protocol):
    @property
    def is_current(self) -> bool:
        """Whether ``places`` are agreed upon with all that the same limits hold for."""
        ...

    def add(self, name: str, by: int) -> None: ...
    def total(self, name: str) -> int:
        """Here, and wherever else the same limits hold."""
        ...

    def places(self, name: str, limit: int, needed: int = 1) -> int:
        """Return how many of a limit's places may be filled where ``total`` counts; ``needed`` are wanted now."""
        ...


class LocalUsageCounters:
    """Usage counters of one process."""

    is_current = True

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, name: str, by: int) -> None:
        self._counts[name] += by
        if not self._counts[name]:
            del self._counts[name]

    def total(self, name: str) -> int:
        return self._counts[name]

    def places(self, name: str, limit: int, needed: int = 1) -> int:
        return limit


class ResponseLimiter:
    def __init__(self, limits: RegistryLimits, tally: UsageCounters, evict: EvictSession) -> None:
        self._limits = limits
        self._evict = evict
        self._tally = tally
        # Active requests of this process.
        self.num_active = 0

    def acquire(self, key: str, key_limit: int | None = None) -> None:
        """Count one more response of ``key``; raises what ``check`` raises."""
        self.check(key, key_limit)
        self._count(key, 1)

    def check(self, key: str, key_limit: int | None = None) -> None:
        """Check that one more fits; raises ``LimitExceeded``. A key may have a limit of its own; requests without a key
        have none."""
        self._check("max_active_responses", RESPONSES, self._limits.max_active_responses)
        if key:
            limit = self._limits.max_active_responses_per_key if key_limit is None else key_limit
            self._check("max_active_responses_per_key", key_counter(RESPONSES, key), limit, key)

    def release(self, key: str) -> None:
        self._count(key, -1)

    def _count(self, key: str, by: int) -> None:
        self.num_active += by
        self._tally.add(RESPONSES, by)
        self._tally.add(key_counter(RESPONSES, key), by)

    def _check(self, name: str, counted: str, limit: int, key: str = "") -> None:
        while self._tally.total(counted) >= self._tally.places(counted, limit):
            if self._evict(lambda session: session.num_active_responses > 0 and key in ("", session.key)):
                continue
            raise LimitExceeded(f"{name} is {limit}", retry_after_ms=self._limits.retry_after_ms)
