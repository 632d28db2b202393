"""Every frame of a row, end to end. No torch."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import overload


class FrameLog(Sequence[Sequence[int]]):
    """16-bit codes in one array a row: a list of numbers for each frame takes ten times the memory, and thousands of
    rows of them stop the engine for a tenth of a second whenever Python's collector looks through them.
    """

    def __init__(self, num_codes: int) -> None:
        self._codes = array("h")
        self._size = num_codes

    def __len__(self) -> int:
        return len(self._codes) // self._size

    @overload
    def __getitem__(self, index: int) -> array[int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[array[int]]: ...
    def __getitem__(self, index: int | slice) -> array[int] | list[array[int]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"frame {index} of {len(self)}")
        start = index % len(self) * self._size
        return self._codes[start : start + self._size]

    def append(self, codes: Sequence[int]) -> None:
        self._codes.extend(codes)

    def add_bytes(self, codes: bytes) -> None:
        """One frame as the machine keeps 16-bit numbers."""
        self._codes.frombytes(codes)
