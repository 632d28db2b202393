"""Buckets, and buffers whose two sides are one on the CPU."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.program.buffers import StaticBuffers
from engine.program.capture import bucket_for, buckets_up_to
from engine.runtime.runner import BlockTables

CPU = torch.device("cpu")


@given(st.integers(1, 5000), st.data())
def test_the_bucket_of_a_step_is_the_least_that_holds_it(limit: int, data: st.DataObject) -> None:
    buckets = buckets_up_to(limit)
    count = data.draw(st.integers(1, limit))
    assert buckets[-1] == limit
    assert list(buckets) == sorted(set(buckets))
    assert bucket_for(buckets, count) == min(size for size in buckets if size >= count)
    assert bucket_for(buckets, count) <= max(2 * count, 1)


def test_arrays_share_an_arena_and_do_not_touch() -> None:
    fields = {"a": (torch.int64, ()), "b": (torch.bool, ()), "c": (torch.float32, (3,)), "d": (torch.int32, ())}
    buffers = StaticBuffers(5, fields, CPU)
    for number, values in enumerate(buffers.host.values()):
        values[...] = number % 2
    buffers.host["b"][:] = True
    buffers.upload(3)
    assert buffers.device["a"].tolist() == [0] * 5
    assert buffers.device["b"].tolist() == [True] * 5
    assert buffers.device["d"].tolist() == [1] * 5
    assert all(values.data_ptr() % 16 == 0 for values in buffers.device.values())


def test_tables_follow_a_row_that_changes() -> None:
    tables = BlockTables(2, 6)
    table = [4, 5]
    tables.update(1, table)
    table += [9]
    tables.update(1, table)
    assert tables.rows[1].tolist() == [4, 5, 9, 0, 0, 0]
    tables.update(1, [7])
    assert tables.rows[1].tolist() == [7, 0, 0, 0, 0, 0]
    assert np.array_equal(tables.rows[2], np.zeros(6))
