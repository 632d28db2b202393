"""Slots of a decode stage: which are free, and what is counted for the holder of each. No torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from engine.memory.block_pool import BlockPool


class SlotTable:
    """Slots 1..num_slots; 0 is the dummy that pads calls. ``generations`` tells successive holders of a slot apart."""

    def __init__(self, num_slots: int) -> None:
        self._pool = BlockPool(num_slots)
        self._arrays: list[npt.NDArray[Any]] = []
        self._num_generations = 0
        self.generations = self.new_array(np.int64)

    def new_array(self, dtype: type[np.generic]) -> npt.NDArray[Any]:
        """An array by slot, zero for a slot without a holder and for a fresh holder."""
        self._arrays.append(np.zeros(self.num_slots + 1, dtype=dtype))
        return self._arrays[-1]

    @property
    def num_slots(self) -> int:
        return self._pool.num_blocks

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    def reserve(self) -> int | None:
        """A slot of a new generation, or None when none is free."""
        slots = self._pool.allocate(1)
        if slots is None:
            return None
        self._clear(slots[0])
        self._num_generations += 1
        self.generations[slots[0]] = self._num_generations
        return slots[0]

    def release(self, slot: int) -> None:
        """Quarantine the slot until ``release_quarantined``."""
        self._clear(slot)
        self._pool.free([slot])

    def _clear(self, slot: int) -> None:
        for values in self._arrays:
            values[slot] = 0

    def release_quarantined(self) -> None:
        """The step in flight has passed: released slots become free."""
        self._pool.release_quarantined()
