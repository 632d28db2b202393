"""Who holds which KV block. Counts only; the tensors are in ``kv_cache``."""

from __future__ import annotations


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
        """Raises ``AssertionError`` unless free + held = total and no block is lent twice."""
        everywhere = [*self._free, *self._quarantined, *self._held]
        if len(everywhere) != self.num_blocks or len(set(everywhere)) != self.num_blocks:
            raise AssertionError(f"{self.num_free} free + {self.num_held} held != {self.num_blocks} blocks in all")
