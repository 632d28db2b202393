"""Layers for the CPU: weights packed once for oneDNN, where torch's own sgemm is slow for a few rows.

Measured on an AMD EPYC with AVX-512, one thread, fp32, all products of one step of the embedded voice, whose 63 MB
come from the third cache and not the second: 2.5 ms plain and 1.9 ms packed at one row, 6.3 and 3.1 ms at 12.

Layers of the wave decoder are channels last. Each class is the twin of a layer in ``streaming`` and shares its
weights and its slice of the state, in which it keeps time first: [context, C] where the plain layer keeps
[C, context]. Shapes: [B, T, C].
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.layers.streaming import CausalConv1d, CausalConvTranspose1d, Snake, StatefulLayer

# The length oneDNN chooses the layout of the weights for; any works.
TYPICAL_LENGTH = 512
# Whether oneDNN wants the weights the same for calls of any shape. Elsewhere it would lay them out anew in every call
# of another, which takes longer than the convolution.
ONE_LAYOUT = torch.backends.cpu.get_cpu_capability() == "AVX512"
WIDE = 256


def can_pack_convolutions() -> bool:
    """Return whether this torch has the private operators that the inductor's frozen graphs use."""
    operators = "_convolution_pointwise", "_get_mkldnn_serialized_md"
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in operators)


def concat_state(layer: StatefulLayer, x: Tensor, state: Tensor) -> Tensor:
    """x [B, T, C] -> [B, context + T, C], and the state moves on by T."""
    if layer.context == 0:
        return x
    own = state[:, layer.offset : layer.offset + layer.num_state_values].unflatten(1, (layer.context, layer.width))
    joined = torch.cat((own, x), dim=1)
    own.copy_(joined[:, -layer.context :])
    return joined


class PackedConvolution:
    """A ``CausalConv1d``; ``residual`` [B, T, C'] is added by the same operator."""

    def __init__(self, layer: CausalConv1d) -> None:
        conv = layer.conv
        self.layer, self.bias = layer, conv.bias
        self.dilation, self.groups = [1, conv.dilation[0]], conv.groups
        self.one = torch.ops.mkldnn._convolution_pointwise.default
        self.two = torch.ops.mkldnn._convolution_pointwise.binary
        # By rows and length, where the layout depends on them.
        self.packed: dict[tuple[int, int], Tensor] = {}
        # The few layouts there are, each kept once.
        self.laid_out: dict[bytes, Tensor] = {}

    def __call__(self, x: Tensor, state: Tensor, residual: Tensor | None = None) -> Tensor:
        image = as_image(concat_state(self.layer, x, state))
        place = ([0, 0], [1, 1], self.dilation, self.groups)
        weight = self.weight_for(len(image), image.shape[-1])
        if residual is None:
            out = self.one(image, weight, self.bias, *place, "none", [], "")
        else:
            out = self.two(image, as_image(residual), weight, self.bias, *place, "add", 1.0, None, [], None)
        return out.squeeze(2).transpose(1, 2)

    def weight_for(self, rows: int, length: int) -> Tensor:
        shape = (1, TYPICAL_LENGTH) if ONE_LAYOUT else (rows, length)
        if shape not in self.packed:
            packed = self.pack(*shape)
            self.packed[shape] = self.laid_out.setdefault(layout_of(packed), packed)
        return self.packed[shape]

    def pack(self, rows: int, length: int) -> Tensor:
        conv = self.layer.conv
        weight = conv.weight.detach().unsqueeze(2).contiguous(memory_format=torch.channels_last)
        shape = [rows, conv.in_channels, 1, length]
        packed: Tensor = torch.ops.mkldnn._reorder_convolution_weight(
            weight, [0, 0], [1, 1], self.dilation, self.groups, shape
        )
        return packed


def layout_of(packed: Tensor) -> bytes:
    """oneDNN's description of it."""
    return bytes(torch.ops.mkldnn._get_mkldnn_serialized_md(packed).tolist())


def as_image(x: Tensor) -> Tensor:
    """[B, T, C] seen as [B, C, 1, T] in the channels-last format."""
    return x.transpose(1, 2).unsqueeze(2)


class PackedUpsampling:
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
    """A ``Snake`` over the last dimension.

    Its sines are numpy's, which take 0.4 ns each on AVX-512 where torch's, by way of MKL, take 1.0; a few channels are
    laid out side by side, for the operators that repeat a vector want it long.
    """

    def __init__(self, layer: Snake) -> None:
        frequency, gain = (values[:, 0].detach() for values in layer.exponentials())
        self.channels = len(frequency)
        repeats = max(1, WIDE // self.channels)
        self.frequency, self.gain = frequency.repeat(repeats), gain.repeat(repeats)

    def __call__(self, x: Tensor) -> Tensor:
        width = len(self.gain) if x.numel() % len(self.gain) == 0 else self.channels
        wide = x.reshape(-1, width)
        sines = wide * self.frequency[:width]
        values = sines.numpy()
        np.sin(values, out=values)
        return torch.addcmul(wide, sines.square_(), self.gain[:width]).view(x.shape)


# Above the last, multiples of it.
ROW_COUNTS = (1, 4, 6, 8, 12, 16, 24, 32, 48, 64)
# The row count oneDNN chooses the layout for; any count works.
PACKED_FOR_ROWS = 8


def can_pack() -> bool:
    """Return whether this torch has the private operators that the inductor's frozen graphs use."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def padded_rows(rows: int) -> int:
    """The least of the row counts that holds ``rows``."""
    if rows > ROW_COUNTS[-1]:
        return -(-rows // ROW_COUNTS[-1]) * ROW_COUNTS[-1]
    return ROW_COUNTS[bisect_left(ROW_COUNTS, rows)]


class PackedLinear(nn.Module):
    """``nn.Linear`` for inference on CPU. The plain weights are not kept."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.product = torch.ops.mkldnn._linear_pointwise.default
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), PACKED_FOR_ROWS)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.numel() // self.in_features
        padding = padded_rows(rows) - rows
        if not padding:
            return self.product(x, self.packed, self.bias, "none", [], "")
        padded = F.pad(x.reshape(rows, self.in_features), (0, 0, 0, padding))
        out = self.product(padded, self.packed, self.bias, "none", [], "")[:rows]
        return out.view(*x.shape[:-1], self.out_features)


def pack_linears(module: nn.Module) -> None:
    """Replace every fp32 ``nn.Linear`` on the CPU below ``module``; without effect where packing is not to be had."""
    if not can_pack():
        return
    for name, child in module.named_children():
        if isinstance(child, nn.Linear) and child.weight.device.type == "cpu" and child.weight.dtype == torch.float32:
            setattr(module, name, PackedLinear(child))
        else:
            pack_linears(child)
