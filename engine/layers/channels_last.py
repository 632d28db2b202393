"""Layers of a convolutional decoder for streaming on the CPU, channels last, by public operators.

Each class is the twin of a layer in ``streaming`` and shares its weights and its slice of the state, in which it keeps
time first: [context, C] where the plain layer keeps [C, context]. Shapes: [B, T, C].
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.layers.cpu import PackedLinear, can_pack
from engine.layers.streaming import CausalConv1d, CausalConvTranspose1d, Snake, StatefulLayer

# Values beside each other in a product with a vector: operators that repeat a vector are slow where it is short.
WIDE = 256
# With fewer torch's convolution of one tap takes three times as long as a product.
MIN_CONV_CHANNELS = 16


def concat_state(layer: StatefulLayer, x: Tensor, state: Tensor) -> Tensor:
    """x [B, T, C] -> [B, context + T, C], and the state moves on by T."""
    if layer.context == 0:
        return x
    own = state[:, layer.offset : layer.offset + layer.num_state_values].unflatten(1, (layer.context, layer.width))
    joined = torch.cat((own, x), dim=1)
    own.copy_(joined[:, -layer.context :])
    return joined


class ChannelsLastConv:
    """A ``CausalConv1d``; ``residual`` [B, T, C'] is added."""

    def __init__(self, layer: CausalConv1d) -> None:
        conv = layer.conv
        self.layer, self.bias = layer, conv.bias.detach()
        self.dilation, self.groups = (1, conv.dilation[0]), conv.groups
        self.weight = conv.weight.detach().unsqueeze(2).contiguous(memory_format=torch.channels_last)
        self.product: nn.Module | None = None
        if conv.kernel_size[0] == 1 and conv.in_channels < MIN_CONV_CHANNELS:
            self.product = packed_product(conv.weight.detach()[..., 0], self.bias)

    def __call__(self, x: Tensor, state: Tensor, residual: Tensor | None = None) -> Tensor:
        if self.product is not None:
            out: Tensor = self.product(x)
        else:
            image = concat_state(self.layer, x, state).transpose(1, 2).unsqueeze(2)
            out = F.conv2d(image, self.weight, self.bias, dilation=self.dilation, groups=self.groups)
            out = out.squeeze(2).transpose(1, 2)
        return out if residual is None else out.add_(residual)


def packed_product(weight: Tensor, bias: Tensor) -> nn.Module:
    """weight [out, in] -> the product as a module, packed where that is to be had."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    linear.weight, linear.bias = (nn.Parameter(values, requires_grad=False) for values in (weight, bias))
    return PackedLinear(linear) if can_pack() else linear


class ChannelsLastUpsampling:
    """A ``CausalConvTranspose1d`` as one product: inputs (now, then one step earlier) to ``stride`` outputs."""

    def __init__(self, layer: CausalConvTranspose1d) -> None:
        self.layer, self.stride = layer, layer.stride
        taps = layer.conv.weight.detach().unflatten(-1, (-1, layer.stride)).permute(2, 0, 3, 1)
        self.weight = taps.flatten(2).flatten(0, 1).contiguous()
        self.bias = layer.conv.bias.detach().repeat(layer.stride)

    def __call__(self, x: Tensor, state: Tensor) -> Tensor:
        batch, length, _ = x.shape
        if self.layer.context:
            past = concat_state(self.layer, x, state)
            x = torch.cat((x, past[:, :length]), dim=-1)
        blocks = torch.addmm(self.bias, x.flatten(0, 1), self.weight)
        return blocks.view(batch, length * self.stride, -1)


class ChannelsLastSnake:
    """A ``Snake``. Its sines are numpy's, which take 0.4 ns each on AVX-512 and torch's 1.0; both 1.6 on AVX2."""

    def __init__(self, layer: Snake) -> None:
        frequency, gain = (values[:, 0].detach() for values in layer.exponentials())
        self.channels = len(frequency)
        repeats = max(1, WIDE // self.channels)
        self.frequency, self.gain = frequency.repeat(repeats), gain.repeat(repeats)

    def __call__(self, x: Tensor, _: Tensor | None = None) -> Tensor:
        width = len(self.gain) if x.numel() % len(self.gain) == 0 else self.channels
        wide = x.reshape(-1, width)
        sines = wide * self.frequency[:width]
        values = sines.numpy()
        np.sin(values, out=values)
        return torch.addcmul(wide, sines.square_(), self.gain[:width]).view(x.shape)
