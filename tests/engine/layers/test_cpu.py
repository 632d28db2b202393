"""Packed products give what plain ones give."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from engine.layers.cpu import ROW_COUNTS, PackedLinear, can_pack, padded_rows


@given(st.integers(1, 300))
def test_rows_are_padded_to_one_of_few_counts(rows: int) -> None:
    padded = padded_rows(rows)
    assert padded >= rows
    assert padded in ROW_COUNTS or padded % ROW_COUNTS[-1] == 0
    assert padded_rows(padded) == padded


@pytest.mark.skipif(not can_pack(), reason="this torch cannot pack products")
@pytest.mark.parametrize("shape", [(1,), (5,), (70,), (2, 1), (1, 9), (3, 4)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_product_is_the_plain_one_for_any_rows(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(24, 40, bias=bias).requires_grad_(False)
    x = torch.randn(*shape, 24)
    torch.testing.assert_close(PackedLinear(plain)(x), plain(x), atol=1e-5, rtol=1e-5)
