"""What the supervisor shares with its gateways: the plan that a gateway reads, and the tally that all keep."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path

import msgspec

from realtime.config import ServerConfig
from sessions.admission import LocalUsageCounters
from sessions.quotas import QuotaCounters, WindowedCounts

CELL_BYTES = 4


class SharedUsageCounters:
    """A file that every process maps: a row for each name, a column for each process, which writes to no other.

    So there is nothing to lock. Two processes that look at the same moment may both find the last place free: a limit
    can be passed by one less than there are processes. Names that are not in the file are counted here alone.
    """

    is_current = True

    def __init__(self, file: Path, names: Sequence[str], column: int) -> None:
        with file.open("r+b") as opened:
            self._cells = memoryview(mmap.mmap(opened.fileno(), 0)).cast("i")
        self._rows = {name: row for row, name in enumerate(names)}
        self._num_columns = len(self._cells) // len(names)
        self._column = column
        self._others = LocalUsageCounters()

    @staticmethod
    def make_file(file: Path, names: Sequence[str], num_columns: int) -> None:
        file.write_bytes(bytes(CELL_BYTES * len(names) * num_columns))

    def add(self, name: str, by: int) -> None:
        row = self._rows.get(name)
        if row is None:
            self._others.add(name, by)
        else:
            self._cells[row * self._num_columns + self._column] += by

    def total(self, name: str) -> int:
        row = self._rows.get(name)
        if row is None:
            return self._others.total(name)
        start = row * self._num_columns
        return sum(self._cells[start : start + self._num_columns])

    def places(self, name: str, limit: int, needed: int = 1) -> int:
        return limit

    def clear(self) -> None:
        """Forget what a process that is gone has left in its column."""
        for row in self._rows.values():
            self._cells[row * self._num_columns + self._column] = 0


class GatewayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan that a gateway reads from its standard input."""

    config: ServerConfig
    # Addresses of the engines, as in ``engine.addresses``.
    engines: str
    # File of the tally that all gateways keep.
    tally: str
    # The names in it.
    counted: tuple[str, ...]
    # File of the counts of quotas, and their names and windows.
    quotas: str = ""
    quota_names: tuple[tuple[str, int], ...] = ()
    # Address by which gateways learn of each other's calls.
    exchange: str
    # Column of this gateway.
    column: int = 0

    def open_tally(self) -> SharedUsageCounters:
        return SharedUsageCounters(Path(self.tally), self.counted, self.column)

    def open_counters(self) -> QuotaCounters:
        """Open the tally and the counts of quotas. A gateway that is restarted finds its former counts of quotas."""
        return QuotaCounters(
            self.open_tally(), WindowedCounts.in_file(Path(self.quotas), self.quota_names, self.column)
        )
