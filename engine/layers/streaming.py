"""Causal layers whose offline and streaming forms are one module.

State is a flat row of numbers per stream, zero at the start (zero rows are the left zero padding). Each stateful
layer owns a slice of it, given by ``assign_state``; ``state`` [B, F] is updated in place. ``state=None`` is the
offline form: a whole sequence from its beginning. Shapes: [B, C, T], channels first.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class StatefulLayer(nn.Module):
    """A layer that keeps its last ``context`` inputs of ``width`` channels."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.width, self.context = width, context
        self.offset = -1

    @property
    def num_state_values(self) -> int:
        return self.width * self.context

    def of(self, state: Tensor) -> Tensor:
        """The layer's own part of ``state``, as a view [B, width, context]."""
        return state[:, self.offset : self.offset + self.num_state_values].view(-1, self.width, self.context)

    def concat_state(self, x: Tensor, state: Tensor | None) -> Tensor:
        """x [B, width, T] -> [B, width, context + T], and the state moves on by T."""
        if self.context == 0:
            return x
        if state is None:
            return F.pad(x, (self.context, 0))
        own = self.of(state)
        joined = torch.cat((own, x), dim=-1)
        own.copy_(joined[..., -self.context :])
        return joined


def assign_state(module: nn.Module) -> int:
    """Give every stateful layer below ``module`` its slice; returns the length of one row of state."""
    offset = 0
    for layer in module.modules():
        if isinstance(layer, StatefulLayer):
            layer.offset = offset
            offset += layer.num_state_values
    return offset


class CausalConv1d(StatefulLayer):
    """Stride 1, left context (kernel - 1) * dilation, output as long as the input (spec 5.2)."""

    def __init__(
        self, channels_in: int, channels_out: int, kernel: int, dilation: int = 1, groups: int = 1, bias: bool = True
    ) -> None:
        super().__init__(channels_in, (kernel - 1) * dilation)
        self.conv = nn.Conv1d(channels_in, channels_out, kernel, dilation=dilation, groups=groups, bias=bias)

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        return self.conv(self.concat_state(x, state))


class CausalConvTranspose1d(StatefulLayer):
    """Upsamples by ``stride``; an output block needs the current input and, for kernel = 2 * stride, the last one."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int) -> None:
        if kernel not in (stride, 2 * stride):
            raise ValueError(f"kernel is {kernel}; it must be the stride {stride} or twice that")
        super().__init__(channels_in, kernel // stride - 1)
        self.conv = nn.ConvTranspose1d(channels_in, channels_out, kernel, stride=stride)
        self.stride = stride

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        if self.context == 0:  # one product: torch has no fast convolution for it on a CPU
            blocks = (x.transpose(1, 2) @ self.conv.weight.flatten(1)).unflatten(2, (-1, self.stride))
            return blocks.transpose(1, 2).flatten(2) + self.conv.bias[:, None]
        length = x.shape[-1]
        padded = self.concat_state(x, state)
        start = self.context * self.stride
        return self.conv(padded)[..., start : start + length * self.stride]


class Snake(nn.Module):
    """x + sin(e^alpha x)^2 / (e^beta + 1e-9), alpha and beta per channel, stored as logs."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))
        self.register_buffer("frequency", None, persistent=False)
        self.register_buffer("gain", None, persistent=False)

    def fuse(self) -> None:
        """Take the exponentials once; call it in fp32, before a cast."""
        self.frequency, self.gain = self.exponentials()

    def exponentials(self) -> tuple[Tensor, Tensor]:
        return self.alpha.exp()[:, None], 1.0 / (self.beta.exp()[:, None] + 1e-9)

    def forward(self, x: Tensor) -> Tensor:
        frequency, gain = (self.frequency, self.gain) if self.gain is not None else self.exponentials()
        return torch.addcmul(x, torch.sin(x * frequency).square(), gain)
