"""Voice prefixes: the keys and values of the rows before the text, computed once a voice (spec 3.8)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from engine.cache.kv_cache import PagedKV


class PrefixCache:
    """The most recently used ``max_prefixes`` prefixes, as copies: no row ever shares a block with another."""

    def __init__(self, kv: PagedKV, max_prefixes: int) -> None:
        self.kv, self.max_prefixes = kv, max_prefixes
        self._entries: OrderedDict[Hashable, Tensor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def num_positions(self, key: Hashable) -> int:
        """How many positions ``restore`` would fill; 0 when the prefix is not known."""
        return self._entries[key].shape[2] if key in self._entries else 0

    def restore(self, key: Hashable, table: Sequence[int]) -> None:
        self._entries.move_to_end(key)
        self.kv.write(table, self._entries[key])

    def remember(self, key: Hashable, table: Sequence[int], num_positions: int) -> None:
        if key in self._entries or self.max_prefixes == 0:
            return
        self._entries[key] = self.kv.read(table, num_positions)
        if len(self._entries) > self.max_prefixes:
            self._entries.popitem(last=False)
