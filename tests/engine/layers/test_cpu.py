"""Each channels-last layer does what its plain twin does, however the input is cut."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from engine.layers.cpu import (
    ROW_COUNTS,
    ChannelsLastSnake,
    PackedConvolution,
    PackedLinear,
    PackedUpsampling,
    can_pack,
    can_pack_convolutions,
    layout_of,
    padded_rows,
)
from engine.layers.streaming import CausalConv1d, CausalConvTranspose1d, Snake, assign_state
from tests.engine.layers.test_streaming import CHANNELS, LAYERS, LENGTH, TOLERANCE, made, signal
from tests.engine.splits import cuts_of

pytestmark = pytest.mark.skipif(not can_pack_convolutions(), reason="this torch cannot pack convolutions")


def last(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous()


@pytest.mark.parametrize("name", LAYERS)
@given(pieces=cuts_of(LENGTH), num_rows=st.sampled_from([1, 3]))
@settings(max_examples=15)
def test_any_cut_gives_what_the_plain_layer_gives_at_once(name: str, pieces: list[int], num_rows: int) -> None:
    layer = made(name)
    assert isinstance(layer, CausalConv1d | CausalConvTranspose1d)
    x = signal(num_rows)
    fast = PackedConvolution(layer) if isinstance(layer, CausalConv1d) else PackedUpsampling(layer)
    state = torch.zeros(num_rows, assign_state(layer))
    streamed = torch.cat([fast(last(piece), state) for piece in x.split(pieces, dim=-1)], dim=1)
    torch.testing.assert_close(streamed, last(layer(x)), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("one_layout", [True, False])
def test_weights_give_the_same_in_any_layout(monkeypatch: pytest.MonkeyPatch, one_layout: bool) -> None:
    monkeypatch.setattr("engine.layers.cpu.ONE_LAYOUT", one_layout)
    layer = made("k7 dilated")
    assert isinstance(layer, CausalConv1d)
    fast = PackedConvolution(layer)
    for num_rows, length in ((1, 4), (3, LENGTH), (1, 4)):
        x = signal(num_rows)[..., :length]
        plain, state = layer(x), torch.zeros(num_rows, assign_state(layer))
        torch.testing.assert_close(fast(last(x), state), last(plain), atol=TOLERANCE, rtol=0)
    assert len(fast.packed) == (1 if one_layout else 2)


def test_weights_of_one_layout_are_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the released codec 17 shapes of calls would hold 2.4 GB for 0.5."""
    monkeypatch.setattr("engine.layers.cpu.ONE_LAYOUT", False)
    torch.manual_seed(1)
    fast = PackedConvolution(CausalConv1d(96, 96, 1).requires_grad_(False))
    weights = [fast.weight_for(1, length) for length in range(1, 40)]
    assert len({id(one) for one in weights}) == len({layout_of(one) for one in weights}) < 10


def test_a_residual_is_added_in_place_of_an_addition_after() -> None:
    layer = made("k7 dilated")
    assert isinstance(layer, CausalConv1d)
    x, fast = last(signal(2)), PackedConvolution(layer)
    residual = torch.randn(2, LENGTH, layer.conv.out_channels)
    kept = residual.clone()
    alone = fast(x, torch.zeros(2, assign_state(layer)))
    torch.testing.assert_close(fast(x, torch.zeros(2, assign_state(layer)), residual), alone + residual)
    assert torch.equal(residual, kept), "what was handed in is still the caller's"


@pytest.mark.parametrize("length", [1, 64, 96])
@pytest.mark.parametrize("channels", [CHANNELS, 3, 300])
def test_snakes_bend_alike_in_any_width(channels: int, length: int) -> None:
    torch.manual_seed(1)
    snake = Snake(channels).requires_grad_(False)
    snake.alpha.normal_()
    snake.beta.normal_()
    x = 3 * torch.randn(2, channels, length)
    kept = x.clone()
    torch.testing.assert_close(ChannelsLastSnake(snake)(last(x)), last(snake(x)), atol=1e-5, rtol=1e-5)
    assert torch.equal(x, kept)


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
