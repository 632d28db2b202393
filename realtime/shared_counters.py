"""One tally of several processes, so that a limit holds for all of them together."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path

from sessions.admission import LocalUsageCounters

CELL_BYTES = 4


class SharedUsageCounters:
    """A file that every process maps: a row for each name, a column for each process, which writes to no other.

    So there is nothing to lock. Two processes that look at the same moment may both find the last place free: a limit
    can be passed by one less than there are processes. Names that are not in the file are counted here alone.
    """

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

    def clear(self) -> None:
        """Forget what a process that is gone has left in its column."""
        for row in self._rows.values():
            self._cells[row * self._num_columns + self._column] = 0
