"""Ownership of KV blocks and decoder slots, and copies of voice prefixes. Imports no torch at run time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

    from engine.memory.kv_cache import PagedKV


class BlockPool:
    """Blocks 1..num_blocks are lent out; 0 pads tables and is never lent.

    Freed blocks are quarantined until ``settle``: a step in flight may still write to them.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks, 0, -1))
        self._quarantined: list[int] = []
        self._held: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_quarantined(self) -> int:
        return len(self._quarantined)

    @property
    def num_held(self) -> int:
        """Lent out or in quarantine."""
        return len(self._held) + len(self._quarantined)

    def allocate(self, count: int) -> list[int] | None:
        """``count`` blocks, or None and nothing changed when fewer are free."""
        if count > len(self._free):
            return None
        blocks = [self._free.pop() for _ in range(count)]
        self._held.update(blocks)
        return blocks

    def free(self, blocks: list[int]) -> None:
        for block in blocks:
            self._held.remove(block)
        self._quarantined += blocks

    def release_quarantined(self) -> list[int]:
        """The step in flight has passed; returns the blocks that it kept in quarantine."""
        settled, self._quarantined = self._quarantined, []
        self._free += settled
        return settled

    def check_invariants(self) -> None:
        """Check that free + held = total and no block is lent twice. Raises ``AssertionError``."""
        everywhere = [*self._free, *self._quarantined, *self._held]
        if len(everywhere) != self.num_blocks or len(set(everywhere)) != self.num_blocks:
            raise AssertionError(f"{self.num_free} free + {self.num_held} held != {self.num_blocks} blocks in all")


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


class PrefixCache:
    """The most recently used prefixes, as copies: no row ever shares a block with another.

    At most ``max_cached_prefixes``, and ``max_positions`` in all of them: an instruction is part of a prefix.
    """

    def __init__(self, kv: PagedKV, max_prefixes: int, max_positions: int) -> None:
        self.kv, self.max_prefixes, self.max_positions = kv, max_prefixes, max_positions
        self._entries: OrderedDict[Hashable, Tensor] = OrderedDict()
        # Of rows that are to be filled: the prefix, and their tables.
        self._due: dict[Hashable, tuple[Tensor, list[Sequence[int]]]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def num_positions(self, key: Hashable) -> int:
        """Return how many positions ``restore`` would fill; 0 when the prefix is not known."""
        return self._entries[key].shape[2] if key in self._entries else 0

    def restore(self, key: Hashable, table: Sequence[int]) -> None:
        """Fill a row with the next ``flush``: requests that come together are filled together."""
        self._entries.move_to_end(key)
        self._due.setdefault(key, (self._entries[key], []))[1].append(table)

    def flush(self) -> None:
        for values, tables in self._due.values():
            self.kv.write(tables, values)
        self._due.clear()

    def store(self, key: Hashable, table: Sequence[int], num_positions: int) -> None:
        if key in self._entries or self.max_prefixes == 0 or num_positions > self.max_positions:
            return
        self._entries[key] = self.kv.read(table, num_positions)
        while len(self._entries) > self.max_prefixes or self._num_positions > self.max_positions:
            self._entries.popitem(last=False)

    @property
    def _num_positions(self) -> int:
        return sum(values.shape[2] for values in self._entries.values())
