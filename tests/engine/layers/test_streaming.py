"""Streaming layers: any cut of the input gives what the offline form gives, and that is what the spec's sums say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from engine.layers.streaming import CausalConv1d, CausalConvTranspose1d, Snake, assign_state
from tests.engine.splits import cuts_of

LENGTH, CHANNELS = 18, 4
TOLERANCE = 1e-5

LAYERS = {
    "k1": lambda: CausalConv1d(CHANNELS, 5, 1),
    "k3": lambda: CausalConv1d(CHANNELS, 5, 3),
    "k7": lambda: CausalConv1d(CHANNELS, 3, 7),
    "k7 dilated": lambda: CausalConv1d(CHANNELS, 4, 7, dilation=3),
    "k7 depthwise": lambda: CausalConv1d(CHANNELS, CHANNELS, 7, groups=CHANNELS),
    "up by 2, no overlap": lambda: CausalConvTranspose1d(CHANNELS, 5, 2, 2),
    "up by 3, overlap": lambda: CausalConvTranspose1d(CHANNELS, 5, 6, 3),
}


def made(name: str) -> nn.Module:
    torch.manual_seed(3)
    layer = LAYERS[name]().eval().requires_grad_(False)
    assign_state(layer)
    return layer


def signal(num_rows: int) -> Tensor:
    return torch.randn(num_rows, CHANNELS, LENGTH, generator=torch.Generator().manual_seed(num_rows))


@pytest.mark.parametrize("name", LAYERS)
@given(pieces=cuts_of(LENGTH), num_rows=st.sampled_from([1, 3]))
@settings(max_examples=15)
def test_any_cut_gives_what_one_piece_gives(name: str, pieces: list[int], num_rows: int) -> None:
    layer = made(name)
    x = signal(num_rows)
    offline = layer(x)
    state = torch.zeros(num_rows, assign_state(layer))
    streamed = torch.cat([layer(piece, state) for piece in x.split(pieces, dim=-1)], dim=-1)
    torch.testing.assert_close(streamed, offline, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", LAYERS)
def test_rows_of_state_are_streams_apart(name: str) -> None:
    layer = made(name)
    x = signal(3)
    state = torch.zeros(3, assign_state(layer))
    together = [layer(x[..., :7], state), layer(x[..., 7:], state)]
    for row in range(3):
        alone = torch.zeros(1, state.shape[1])
        first, second = layer(x[row : row + 1, :, :7], alone), layer(x[row : row + 1, :, 7:], alone)
        torch.testing.assert_close(together[0][row], first[0], atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(together[1][row], second[0], atol=TOLERANCE, rtol=0)
        assert torch.equal(alone[0], state[row])


@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 1), (7, 3)])
def test_a_convolution_reads_the_past_alone(kernel: int, dilation: int) -> None:
    """Output t = sum over j of W[..., kernel - 1 - j] x[t - j * dilation] + b, zeros before the start (spec 5.2)."""
    torch.manual_seed(1)
    layer = CausalConv1d(2, 3, kernel, dilation).requires_grad_(False)
    x = torch.randn(1, 2, 30)
    found = layer(x)
    assert found.shape == (1, 3, 30)
    for t in range(30):
        expected = layer.conv.bias.clone()
        for j in range(kernel):
            if t - j * dilation >= 0:
                expected += layer.conv.weight[:, :, kernel - 1 - j] @ x[0, :, t - j * dilation]
        torch.testing.assert_close(found[0, :, t], expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(("kernel", "stride"), [(4, 4), (8, 4)])
def test_an_upsampling_block_is_made_of_this_input_and_the_last(kernel: int, stride: int) -> None:
    """Block i = W[:, :, :s]^T x_i + W[:, :, s:]^T x_(i-1) + b (spec 5.2)."""
    torch.manual_seed(1)
    layer = CausalConvTranspose1d(3, 2, kernel, stride).requires_grad_(False)
    x = torch.randn(1, 3, 6)
    found = layer(x)
    assert found.shape == (1, 2, 6 * stride)
    for i in range(6):
        for s in range(stride):
            expected = layer.conv.weight[:, :, s].t() @ x[0, :, i] + layer.conv.bias
            if kernel > stride and i:
                expected = expected + layer.conv.weight[:, :, stride + s].t() @ x[0, :, i - 1]
            torch.testing.assert_close(found[0, :, i * stride + s], expected, atol=TOLERANCE, rtol=0)


def test_kernel_of_neither_one_nor_two_strides_is_refused() -> None:
    with pytest.raises(ValueError, match="kernel is 5"):
        CausalConvTranspose1d(1, 1, 5, 2)


def test_layers_own_slices_of_state_that_do_not_overlap() -> None:
    stack = nn.Sequential(CausalConv1d(2, 2, 3), Snake(2), CausalConvTranspose1d(2, 2, 4, 2), CausalConv1d(2, 1, 7, 9))
    total = assign_state(stack)
    spans = [(m.offset, m.offset + m.num_state_values) for m in stack if hasattr(m, "offset")]
    assert spans == [(0, 4), (4, 6), (6, 6 + 2 * 54)]
    assert total == spans[-1][1]


def test_snake_is_its_formula_fused_or_not() -> None:
    snake = Snake(3).requires_grad_(False)
    torch.nn.init.normal_(snake.alpha)
    torch.nn.init.normal_(snake.beta)
    x = torch.randn(2, 3, 9)
    alpha, beta = snake.alpha[:, None], snake.beta[:, None]
    expected = x + torch.sin(alpha.exp() * x) ** 2 / (beta.exp() + 1e-9)
    torch.testing.assert_close(snake(x), expected, atol=1e-6, rtol=0)
    snake.fuse()
    torch.testing.assert_close(snake(x), expected, atol=1e-6, rtol=0)
