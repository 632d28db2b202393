"""Work that takes much memory: so much at once, and who comes then is told to come again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from realtime.errors import Refused


class Gate:
    def __init__(self, name: str, max_inside: int, retry_after_ms: int) -> None:
        self._name = name
        self._max_inside = max_inside
        self._retry_after_ms = retry_after_ms
        self.num_inside = 0

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Raises ``Refused`` when it is full."""
        if self.num_inside >= self._max_inside:
            raise Refused("overloaded", f"{self._name} is {self._max_inside}", retry_after_ms=self._retry_after_ms)
        self.num_inside += 1
        try:
            yield
        finally:
            self.num_inside -= 1
