"""Interface for counts and measurements; the server provides the exporter. Names are in docs/reference/metrics.md."""

from __future__ import annotations

from typing import Protocol


class Metrics(Protocol):
    def inc(self, name: str, count: float = 1, **labels: str) -> None:
        """Add ``count`` to a counter."""
        ...

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Note a measurement, in the unit its name ends with."""
        ...


class NoMetrics:
    def inc(self, name: str, count: float = 1, **labels: str) -> None:
        pass

    def observe(self, name: str, value: float, **labels: str) -> None:
        pass
