"""Work that takes much memory: so much at once, and who comes then is told to come again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from realtime.errors import RequestRefused
from sessions.admission import UsageCounters


@dataclass(slots=True)
class ConcurrencyLimit:
    """A limit on what ``tally`` counts under a name, here and in other processes that keep the same one."""

    limit_name: str
    max_inside: int
    retry_after_ms: int
    tally: UsageCounters
    counted: str
    # Here.
    num_inside: int = 0

    @contextmanager
    def acquire(self) -> Iterator[None]:
        """Raises ``RequestRefused`` when it is full."""
        if self.tally.total(self.counted) >= self.max_inside:
            limit = f"{self.limit_name} is {self.max_inside}"
            raise RequestRefused("overloaded", limit, retry_after_ms=self.retry_after_ms)
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, by: int) -> None:
        self.num_inside += by
        self.tally.add(self.counted, by)
