"""Paged attention against a dense cache and whole sequences, and what must not leak from block to block."""

from __future__ import annotations

import random

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.layers.transformer import CausalContext, Transformer, TransformerConfig
from engine.memory.kv_cache import KVShape, PagedContext, PagedKV, lazy_zeros
from engine.weights.quantize import FP8

CONFIG = TransformerConfig(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
)
SHAPE = KVShape(2, 2, 8)
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def stack() -> Transformer:
    torch.manual_seed(0)
    return Transformer(CONFIG).eval().requires_grad_(False)


def new_kv(num_blocks: int, block_size: int, dtype: torch.dtype = torch.float32) -> PagedKV:
    return PagedKV(SHAPE, num_blocks, block_size, dtype, torch.device("cpu"))


def whole(stack: Transformer, x: Tensor) -> Tensor:
    """The slow reference: one dense causal pass."""
    return stack(x[None], torch.arange(len(x))[None], CausalContext())[0]


def run(stack: Transformer, kv: PagedKV, x: Tensor, tables: list[list[int]], starts: list[int]) -> Tensor:
    """x [B, T, H] at ``starts``, over ``tables`` padded to one width."""
    width = max(map(len, tables))
    padded = torch.tensor([[*table, *[0] * (width - len(table))] for table in tables])
    positions = torch.tensor(starts)[:, None] + torch.arange(x.shape[1])
    return stack(x, positions, PagedContext(kv, padded, positions))


rows = st.lists(st.integers(1, 20), min_size=1, max_size=5)


@given(rows, st.sampled_from([1, 2, 5, 16]), st.randoms(use_true_random=False), st.integers(1, 7))
@settings(max_examples=40)
def test_rows_over_random_blocks_equal_dense_attention(
    stack: Transformer, lengths: list[int], block_size: int, chance: random.Random, chunk: int
) -> None:
    needs = [-(-(length + 3) // block_size) for length in lengths]
    kv = new_kv(sum(needs), block_size)
    ids = list(range(1, sum(needs) + 1))
    chance.shuffle(ids)
    tables = [[ids.pop() for _ in range(need)] for need in needs]
    torch.manual_seed(chance.randrange(1000))
    inputs = [torch.randn(length + 3, CONFIG.hidden_size) for length in lengths]
    expected = [whole(stack, x) for x in inputs]

    for x, table, reference, length in zip(inputs, tables, expected, lengths, strict=True):
        for start in range(0, length, chunk):
            end = min(start + chunk, length)
            found = run(stack, kv, x[None, start:end], [table], [start])
            torch.testing.assert_close(found[0], reference[start:end], atol=TOLERANCE, rtol=0)
    for step in range(3):
        x = torch.stack([x[length + step] for x, length in zip(inputs, lengths, strict=True)])[:, None]
        found = run(stack, kv, x, tables, [length + step for length in lengths])
        reference = torch.stack([y[length + step] for y, length in zip(expected, lengths, strict=True)])
        torch.testing.assert_close(found[:, 0], reference, atol=TOLERANCE, rtol=0)


def test_steps_write_to_their_own_blocks_alone(stack: Transformer) -> None:
    kv = new_kv(6, 4)
    run(stack, kv, torch.randn(1, 7, 32), [[2, 5]], [0])
    written = kv.data.abs().sum(dim=(0, 1, 3, 4, 5)).nonzero().flatten().tolist()
    assert written == [2, 5]


def test_cleared_blocks_of_a_broken_row_reach_no_other(stack: Transformer) -> None:
    kv, x = new_kv(3, 8), torch.randn(5, 32)
    kv.data[:, :, 2] = torch.nan
    assert run(stack, kv, x[None], [[2]], [0]).isnan().any(), "a check that has been seen to fail"
    kv.data[:, :, 2] = torch.nan
    kv.clear([2])
    torch.testing.assert_close(run(stack, kv, x[None], [[2]], [0])[0], whole(stack, x), atol=TOLERANCE, rtol=0)


@given(
    st.integers(1, 12), st.sampled_from([1, 3, 4]), st.sampled_from([torch.float32, FP8]), st.sampled_from([1, 2, 5])
)
def test_read_and_write_carry_a_row_to_other_blocks(
    length: int, block_size: int, dtype: torch.dtype, num_targets: int
) -> None:
    kv = new_kv(72, block_size, dtype)
    kv.data.copy_(torch.randn(kv.data.shape))
    need = -(-length // block_size)
    source, *targets = ([*range(row * need + 1, (row + 1) * need + 1)] for row in range(num_targets + 1))
    copy = kv.read(source, length)
    beyond = [kv.read(target, need * block_size)[:, :, length:] for target in targets]
    kv.write(targets, copy)
    for target, old in zip(targets, beyond, strict=True):
        assert torch.equal(kv.read(target, length), copy)
        assert torch.equal(kv.read(target, need * block_size)[:, :, length:], old), "wrote past the row's end"
        kv.clear(target)
        assert not kv.read(target, length).any()


def test_block_has_its_stated_size() -> None:
    kv = new_kv(10, 4)
    assert kv.data[:, :, 1].nbytes == PagedKV.block_bytes(SHAPE, 4, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pool_on_the_cpu_takes_memory_only_where_it_is_written(dtype: torch.dtype) -> None:
    resident = psutil.Process().memory_info().rss
    pages = lazy_zeros((64, 2**20), dtype)
    assert pages.dtype == dtype
    assert not pages.flatten()[:: 2**19].any()
    pages[3, :1000] = 1
    assert pages[3, :1000].sum() == 1000 or dtype == torch.bfloat16
    assert psutil.Process().memory_info().rss - resident < pages.nbytes // 4
