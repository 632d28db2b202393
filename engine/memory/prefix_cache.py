"""Voice prefixes: the keys and values of the rows before the text, computed once a voice (spec 3.8)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from engine.memory.kv_cache import PagedKV


class PrefixCache:
    """The most recently used prefixes, as copies: no row ever shares a block with another.

    At most ``max_cached_prefixes``, and ``max_positions`` in all of them: an instruction is part of a prefix.
    """

    def __init__(self, kv: PagedKV, max_prefixes: int, max_positions: int) -> None:
        self.kv, self.max_prefixes, self.max_positions = kv, max_prefixes, max_positions
        self._entries: OrderedDict[Hashable, Tensor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def num_positions(self, key: Hashable) -> int:
        """How many positions ``restore`` would fill; 0 when the prefix is not known."""
        return self._entries[key].shape[2] if key in self._entries else 0

    def restore(self, key: Hashable, table: Sequence[int]) -> None:
        self._entries.move_to_end(key)
        self.kv.write(table, self._entries[key])

    def store(self, key: Hashable, table: Sequence[int], num_positions: int) -> None:
        if key in self._entries or self.max_prefixes == 0 or num_positions > self.max_positions:
            return
        self._entries[key] = self.kv.read(table, num_positions)
        while len(self._entries) > self.max_prefixes or self._num_positions > self.max_positions:
            self._entries.popitem(last=False)

    @property
    def _num_positions(self) -> int:
        return sum(values.shape[2] for values in self._entries.values())
