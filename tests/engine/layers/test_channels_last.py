"""Each channels-last layer computes what its plain twin does, for any cut of the input."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.layers.channels_last import ChannelsLastConv, ChannelsLastSnake, ChannelsLastUpsampling
from engine.layers.streaming import CausalConv1d, CausalConvTranspose1d, Snake, assign_state
from tests.engine.layers.test_streaming import CHANNELS, LAYERS, LENGTH, TOLERANCE, made, signal
from tests.engine.splits import cuts_of


def last(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous()


@pytest.mark.parametrize("name", LAYERS)
@given(pieces=cuts_of(LENGTH), num_rows=st.sampled_from([1, 3]))
@settings(max_examples=15)
def test_cut_input_in_pieces_equals_plain_layer(name: str, pieces: list[int], num_rows: int) -> None:
    layer = made(name)
    assert isinstance(layer, CausalConv1d | CausalConvTranspose1d)
    x = signal(num_rows)
    fast = ChannelsLastConv(layer) if isinstance(layer, CausalConv1d) else ChannelsLastUpsampling(layer)
    state = torch.zeros(num_rows, assign_state(layer))
    streamed = torch.cat([fast(last(piece), state) for piece in x.split(pieces, dim=-1)], dim=1)
    torch.testing.assert_close(streamed, last(layer(x)), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("channels", [8, 24])
def test_conv_of_one_tap_equals_plain_layer(channels: int) -> None:
    torch.manual_seed(1)
    layer = CausalConv1d(channels, 8, 1).requires_grad_(False)
    x = torch.randn(3, channels, 7)
    torch.testing.assert_close(ChannelsLastConv(layer)(last(x), torch.zeros(3, 0)), last(layer(x)))


def test_conv_with_residual_adds_it() -> None:
    layer = made("k7 dilated")
    assert isinstance(layer, CausalConv1d)
    x, fast = last(signal(2)), ChannelsLastConv(layer)
    residual = torch.randn(2, LENGTH, layer.conv.out_channels)
    before = residual.clone()
    alone = fast(x, torch.zeros(2, assign_state(layer)))
    torch.testing.assert_close(fast(x, torch.zeros(2, assign_state(layer)), residual), alone + before)
    assert torch.equal(residual, before)


@pytest.mark.parametrize("length", [1, 64, 96])
@pytest.mark.parametrize("channels", [CHANNELS, 3, 300])
def test_snake_of_any_width_equals_plain_layer(channels: int, length: int) -> None:
    torch.manual_seed(1)
    snake = Snake(channels).requires_grad_(False)
    snake.alpha.normal_()
    snake.beta.normal_()
    x = 3 * torch.randn(2, channels, length)
    before = x.clone()
    torch.testing.assert_close(ChannelsLastSnake(snake)(last(x)), last(snake(x)), atol=1e-5, rtol=1e-5)
    assert torch.equal(x, before)
