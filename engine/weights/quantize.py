"""Weights in fp8 (e4m3, a scale for each output) or int4 (a scale for each group of inputs), without calibration.

Keys and values in fp8 have no scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FP8 = torch.float8_e4m3fn
LARGEST = 448.0
# Above zero, so that an output of zeros has a scale.
MIN_SCALE = 1e-12
# Inputs of an int4 weight that share a scale: the first half lies in low nibbles, the second in high ones.
GROUP = 64
# A nibble holds its value plus this.
INT4_OFFSET = 8
# Scales that are compared, as shares of the one at which the largest value of a group is exact.
CLIPS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)


class QuantizedWeight(NamedTuple):
    """A weight [out, in] as ``data`` in fp8 times ``scale`` [out] in fp32; ``plain`` is the weight it was made from."""

    data: Tensor
    scale: Tensor
    plain: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        return self.data.shape

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        return (self.data.float() * self.scale[:, None]).to(dtype)


class Int4Weight(NamedTuple):
    """A weight [out, in] of two values a byte, ``data`` [out, in / 2], times ``scale`` [out, in / GROUP] in bf16."""

    data: Tensor
    scale: Tensor

    @property
    def shape(self) -> torch.Size:
        num_out, num_bytes = self.data.shape
        return torch.Size((num_out, 2 * num_bytes))

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        groups = self.data.unflatten(1, (-1, GROUP // 2))
        values = torch.cat((groups & 15, groups >> 4), 2).float() - INT4_OFFSET
        return (values * self.scale.float()[..., None]).flatten(1).to(dtype)


Quantized: TypeAlias = QuantizedWeight | Int4Weight
Weight: TypeAlias = Tensor | Quantized
# Returns the weight itself where it stays as it is.
Quantizer: TypeAlias = Callable[[Tensor], Weight]


def dense(weight: Weight, dtype: torch.dtype) -> Tensor:
    """The weight as a tensor of ``dtype``, from ``plain`` where there is one."""
    if isinstance(weight, Tensor):
        return weight
    if isinstance(weight, QuantizedWeight) and weight.plain is not None:
        return weight.plain
    return weight.dequantize(dtype)


def quantize(weight: Tensor) -> QuantizedWeight:
    """Quantize [out, in] to fp8; the largest value of each output is exact."""
    scale = (weight.abs().amax(1).float() / LARGEST).clamp(min=MIN_SCALE)
    return QuantizedWeight((weight.float() / scale[:, None]).to(FP8), scale)


def quantize_and_retain(weight: Tensor) -> QuantizedWeight:
    """Quantize to fp8 and also retain the weight as it was, for the calls where it is faster."""
    return quantize(weight)._replace(plain=weight)


def quantize_int4(weight: Tensor) -> Weight:
    """Quantize [out, in] to int4; each group gets the scale of ``CLIPS`` with the least squared error.

    A weight whose inputs are no multiple of ``GROUP`` stays as it is.
    """
    if weight.shape[1] % GROUP:
        return weight
    groups = weight.float().unflatten(1, (-1, GROUP))
    # The value farthest from zero becomes -8, whatever its sign: there is no 8.
    low, high = groups.aminmax(dim=2)
    largest = torch.where(-low > high, low, high) / -INT4_OFFSET
    largest = torch.where(largest.abs() < MIN_SCALE, MIN_SCALE, largest)
    scales = [(clip * largest).bfloat16() for clip in CLIPS]
    errors = [(round_int4(groups, scale) * scale.float()[..., None] - groups).square().sum(2) for scale in scales]
    scale = torch.stack(scales).gather(0, torch.stack(errors).argmin(0)[None])[0]
    low, high = (round_int4(groups, scale) + INT4_OFFSET).to(torch.uint8).chunk(2, dim=2)
    return Int4Weight((low | high << 4).flatten(1), scale)


QUANTIZERS: dict[str, Quantizer] = {"fp8": quantize, "int4": quantize_int4}


def round_int4(groups: Tensor, scale: Tensor) -> Tensor:
    """groups [out, groups, GROUP], scale [out, groups] -> whole numbers from -8 to 7."""
    return (groups / scale.float()[..., None]).round().clamp(-INT4_OFFSET, INT4_OFFSET - 1)


def to_fp8(x: Tensor) -> Tensor:
    """x in fp8 without a scale; beyond its range the largest value."""
    return x.clamp(-LARGEST, LARGEST).to(FP8)


def as_bits(x: Tensor) -> Tensor:
    """fp8 as bytes, since indexing does not take fp8; any other tensor as it is."""
    return x.view(torch.uint8) if x.dtype == FP8 else x


class QuantizedLinear(nn.Module):
    """``nn.Linear`` over a quantized weight, by its slow reference: dequantize, then multiply."""

    def __init__(self, weight: Quantized, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, dense(self.weight, x.dtype), self.bias)


def quantize_linears(module: nn.Module, make: Quantizer, device: torch.device) -> None:
    """Replace every ``nn.Linear`` below ``module`` by one over what ``make`` returns, one by one, on ``device``."""
    for name, child in module.named_children():
        if not isinstance(child, nn.Linear):
            quantize_linears(child, make, device)
        elif not isinstance(weight := make(child.weight.detach().to(device)), Tensor):
            bias = None if child.bias is None else child.bias.to(device)
            setattr(module, name, QuantizedLinear(weight, bias))
