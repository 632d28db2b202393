"""How many there are of each kind of thing that is limited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

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
    def add(self, name: str, by: int) -> None: ...
    def total(self, name: str) -> int:
        """Here, and wherever else the same limits hold."""
        ...


class LocalUsageCounters:
    """Of one process."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, name: str, by: int) -> None:
        self._counts[name] += by
        if not self._counts[name]:
            del self._counts[name]

    def total(self, name: str) -> int:
        return self._counts[name]
