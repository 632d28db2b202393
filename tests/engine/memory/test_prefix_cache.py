from __future__ import annotations

import pytest
import torch

from engine.memory.block_pool import PrefixCache
from engine.memory.kv_cache import KVShape, PagedKV


@pytest.fixture
def kv() -> PagedKV:
    kv = PagedKV(KVShape(2, 1, 4), 12, 4, torch.float32, torch.device("cpu"))
    kv.data.normal_(generator=torch.Generator().manual_seed(0))
    return kv


def test_prefix_is_restored_whatever_became_of_its_blocks(kv: PagedKV) -> None:
    prefixes = PrefixCache(kv, 4, 1_000)
    before = kv.read([3, 1], 6)
    prefixes.store("ada", [3, 1], 6)
    kv.data.zero_()
    assert prefixes.num_positions("ada") == 6
    prefixes.restore("ada", [7, 8])
    prefixes.restore("ada", [10, 9, 4])
    prefixes.flush()
    assert torch.equal(kv.read([7, 8], 6), before)
    assert torch.equal(kv.read([10, 9], 6), before)
    assert not kv.read([4], 4).any()


def test_rows_are_filled_once_and_with_the_prefix_of_their_time(kv: PagedKV) -> None:
    prefixes = PrefixCache(kv, 1, 1_000)
    prefixes.store("ada", [1], 3)
    before = kv.read([1], 3)
    prefixes.restore("ada", [5])
    prefixes.store("bo", [2], 3)
    prefixes.flush()
    assert torch.equal(kv.read([5], 3), before)
    kv.data.zero_()
    prefixes.flush()
    assert not kv.read([5], 3).any()


def test_an_unknown_prefix_has_no_positions(kv: PagedKV) -> None:
    assert PrefixCache(kv, 4, 1_000).num_positions("ada") == 0


def test_the_least_recently_used_prefix_goes_first(kv: PagedKV) -> None:
    prefixes = PrefixCache(kv, 2, 1_000)
    prefixes.store("ada", [1], 3)
    prefixes.store("bo", [2], 3)
    prefixes.restore("ada", [5])
    prefixes.store("cy", [3], 3)
    assert [prefixes.num_positions(name) for name in ("ada", "bo", "cy")] == [3, 0, 3]
    assert len(prefixes) == 2


def test_no_prefix_is_kept_where_none_may_be(kv: PagedKV) -> None:
    prefixes = PrefixCache(kv, 0, 1_000)
    prefixes.store("ada", [1], 3)
    assert len(prefixes) == 0


def test_what_is_known_is_not_taken_again(kv: PagedKV) -> None:
    prefixes = PrefixCache(kv, 2, 1_000)
    prefixes.store("ada", [1], 3)
    first = kv.read([1], 3)
    prefixes.store("ada", [2], 3)
    prefixes.restore("ada", [5])
    prefixes.flush()
    assert torch.equal(kv.read([5], 3), first)


def test_prefixes_are_bounded_in_all_by_their_positions(kv: PagedKV) -> None:
    prefixes = PrefixCache(kv, 100, 10)
    for key, length in (("a", 4), ("b", 4), ("c", 4)):
        prefixes.store(key, [1], length)
    assert [prefixes.num_positions(key) for key in "abc"] == [0, 4, 4]
    prefixes.store("too long", [1, 2, 3], 11)
    assert [prefixes.num_positions(key) for key in ("b", "c", "too long")] == [4, 4, 0]


def test_prefixes_are_limited_by_their_total_positions(kv: PagedKV) -> None:
    prefixes = PrefixCache(kv, 9, max_positions=8)
    prefixes.store("ada", [1], 4)
    prefixes.store("bo", [2], 3)
    prefixes.store("cy", [3], 2)
    assert [prefixes.num_positions(name) for name in ("ada", "bo", "cy")] == [0, 3, 2]
    prefixes.store("too long", [4, 5, 6], 9)
    assert [prefixes.num_positions(name) for name in ("bo", "cy", "too long")] == [3, 2, 0]
