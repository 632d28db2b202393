"""Causal layers of the vocoder, by the names of hift.pt; each keeps its past in the flat state of its stream."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.layers.streaming import StatefulLayer


class LeftConv(StatefulLayer):
    """Output t reads inputs up to t; zeros stand before the first."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, dilation: int = 1) -> None:
        super().__init__(channels_in, (kernel - 1) * dilation)
        self.dilation = dilation
        self.weight = nn.Parameter(torch.empty(channels_out, channels_in, kernel))
        self.bias = nn.Parameter(torch.empty(channels_out))

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        return F.conv1d(self.concat_state(x, state), self.weight, self.bias, dilation=self.dilation)


class RepeatConv(StatefulLayer):
    """Every input ``rate`` times, then a causal convolution: not the transposed one of other vocoders."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, rate: int) -> None:
        super().__init__(channels_in, math.ceil((kernel - 1) / rate))
        self.rate, self.kernel = rate, kernel
        self.weight = nn.Parameter(torch.empty(channels_out, channels_in, kernel))
        self.bias = nn.Parameter(torch.empty(channels_out))

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        repeated = self.concat_state(x, state).repeat_interleave(self.rate, dim=-1)
        spare = self.context * self.rate - (self.kernel - 1)
        return F.conv1d(repeated[..., spare:], self.weight, self.bias)


class StateSlice(StatefulLayer):
    """A slice of the state that is read and written by hand: [R, width, context]."""

    def of(self, state: Tensor) -> Tensor:
        return state[:, self.offset : self.offset + self.num_state_values].view(-1, self.width, self.context)


class HiftSnake(nn.Module):
    """x + sin(alpha x)^2 / (alpha + 1e-9), alpha per channel, stored as it is."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        alpha = self.alpha[:, None]
        return torch.addcmul(x, torch.sin(x * alpha).square(), 1 / (alpha + 1e-9))


class ResBlock(nn.Module):
    """For each dilation: x += conv(snake(dilated conv(snake(x))))."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(LeftConv(channels, channels, kernel, dilation) for dilation in dilations)
        self.convs2 = nn.ModuleList(LeftConv(channels, channels, kernel) for _ in dilations)
        self.activations1 = nn.ModuleList(HiftSnake(channels) for _ in dilations)
        self.activations2 = nn.ModuleList(HiftSnake(channels) for _ in dilations)

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        layers = zip(self.activations1, self.convs1, self.activations2, self.convs2, strict=True)
        for snake, dilated, second_snake, plain in layers:
            x = x + plain(second_snake(dilated(snake(x), state)), state)
        return x


class DownConv(nn.Module):
    """Windows of 2 * rate inputs every ``rate``: output m reads inputs m * rate - (rate - 1) .. (m + 1) * rate."""

    def __init__(self, channels_in: int, channels_out: int, rate: int) -> None:
        super().__init__()
        self.rate = rate
        self.weight = nn.Parameter(torch.empty(channels_out, channels_in, 2 * rate if rate > 1 else 1))
        self.bias = nn.Parameter(torch.empty(channels_out))

    @property
    def num_past(self) -> int:
        return self.rate - 1

    def forward(self, x: Tensor) -> Tensor:
        """x [B, in, past + ...] with its ``num_past`` earlier inputs."""
        return F.conv1d(x, self.weight, self.bias, stride=self.rate)
