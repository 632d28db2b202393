"""Voice prefixes: the keys and values of the rows before the text, computed once a voice (spec 3.8)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from torch import Tensor


class PrefixCache:
    """The most recently used ``max_prefixes`` prefixes, as copies: no row ever shares a block with another."""

    def __init__(self, max_prefixes: int) -> None:
        self.max_prefixes = max_prefixes
        self._entries: OrderedDict[Hashable, Tensor] = OrderedDict()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def get(self, key: Hashable) -> Tensor | None:
        """[layer, 2, positions, head, D], or None."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def put(self, key: Hashable, values: Tensor) -> None:
        self._entries[key] = values
        if len(self._entries) > self.max_prefixes:
            self._entries.popitem(last=False)
