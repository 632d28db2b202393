from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.memory.block_pool import BlockPool


class BlockPoolLaws(RuleBasedStateMachine):
    """free + held = total after any sequence, and no block has two owners."""

    @initialize(num_blocks=st.integers(1, 12))
    def begin(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.owned: list[list[int]] = []
        self.in_flight: set[int] = set()

    @rule(count=st.integers(0, 13))
    def allocate(self, count: int) -> None:
        free = self.pool.num_free
        blocks = self.pool.allocate(count)
        if count > free:
            assert blocks is None
            assert self.pool.num_free == free
            return
        assert blocks is not None
        assert len(blocks) == len(set(blocks)) == count
        assert not self.in_flight & set(blocks), "a freed block was lent while a step may still write to it"
        assert 0 not in blocks, "the dummy block was lent"
        self.owned.append(blocks)

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        if self.owned:
            blocks = self.owned.pop(data.draw(st.integers(0, len(self.owned) - 1)))
            self.pool.free(blocks)
            self.in_flight |= set(blocks)

    @rule()
    def settle(self) -> None:
        self.pool.release_quarantined()
        self.in_flight = set()

    @invariant()
    def the_account_balances(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_invariants()
        lent = [block for blocks in self.owned for block in blocks]
        assert len(lent) == len(set(lent))
        assert self.pool.num_free + len(lent) + len(self.in_flight) == self.pool.num_blocks
        assert self.pool.num_held == len(lent) + len(self.in_flight)
        assert self.pool.num_quarantined == len(self.in_flight)


TestBlockPoolLaws = BlockPoolLaws.TestCase
TestBlockPoolLaws.settings = settings(max_examples=100, stateful_step_count=30)


def test_block_freed_twice_raises() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(1)
    assert blocks
    pool.free(blocks)
    with pytest.raises(KeyError):
        pool.free(blocks)


def test_pool_that_lost_a_block_raises() -> None:
    pool = BlockPool(4)
    pool._free.pop()
    with pytest.raises(AssertionError, match="3 free \\+ 0 held != 4"):
        pool.check_invariants()
