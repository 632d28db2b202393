"""Voices' prompts, whose blocks are worked off once and shared by all their rows. No torch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

from engine.models.cosyvoice3.flow_blocks import PromptSequence


class PromptCache:
    """Those in use, and the ``max_kept`` most recently used others; ``let_go`` gives back what one holds."""

    def __init__(self, max_cached: int, on_evict: Callable[[PromptSequence], None]) -> None:
        self.max_cached, self.on_evict = max_cached, on_evict
        # By when they were last used.
        self._rows: dict[Hashable, PromptSequence] = {}

    def __iter__(self) -> Iterator[PromptSequence]:
        return iter(list(self._rows.values()))

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, key: Hashable) -> PromptSequence | None:
        row = self._rows.pop(key, None)
        if row is not None:
            self._rows[key] = row
        return row

    def put(self, key: Hashable, row: PromptSequence) -> None:
        self._rows[key] = row

    def release(self, row: PromptSequence) -> None:
        """Release one use. An evicted or unfinished prompt is freed with its last user."""
        row.num_users -= 1
        is_found = any(known is row for known in self._rows.values())
        if row.num_users == 0 and not (is_found and row.is_done):
            self._drop(row)
        while self._num_idle > self.max_cached:
            self.evict()

    def evict(self) -> bool:
        """Let go of the least recently used one without users; False when there is none."""
        for row in self._rows.values():
            if row.num_users == 0:
                self._drop(row)
                return True
        return False

    def remove(self, row: PromptSequence) -> None:
        """Evict it; its users still hold it."""
        for key in [key for key, known in self._rows.items() if known is row]:
            del self._rows[key]

    def _drop(self, row: PromptSequence) -> None:
        self.remove(row)
        self.on_evict(row)

    @property
    def num_idle_pages(self) -> int:
        return sum(len(row.pages) + len(row.reserved_pages) for row in self._rows.values() if row.num_users == 0)

    @property
    def _num_idle(self) -> int:
        return sum(row.num_users == 0 for row in self._rows.values())
