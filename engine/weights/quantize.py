"""Weights in fp8 (e4m3) with one scale for each output, made from loaded layers without calibration."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FP8 = torch.float8_e4m3fn
LARGEST = 448.0
# Above zero, so that an output of zeros has a scale.
MIN_SCALE = 1e-12


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


Weight: TypeAlias = Tensor | QuantizedWeight


def dense(weight: Weight, dtype: torch.dtype) -> Tensor:
    """The weight as a tensor of ``dtype``, from ``plain`` where there is one."""
    if isinstance(weight, Tensor):
        return weight
    return weight.dequantize(dtype) if weight.plain is None else weight.plain


def quantize(weight: Tensor) -> QuantizedWeight:
    """Quantize [out, in]; the largest value of each output is exact."""
    scale = (weight.abs().amax(1).float() / LARGEST).clamp(min=MIN_SCALE)
    return QuantizedWeight((weight.float() / scale[:, None]).to(FP8), scale)


class QuantizedLinear(nn.Module):
    """``nn.Linear`` over a quantized weight, by its slow reference: dequantize, then multiply."""

    def __init__(self, linear: nn.Linear, with_plain: bool) -> None:
        super().__init__()
        plain = linear.weight.detach()
        self.weight = quantize(plain)._replace(plain=plain if with_plain else None)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, dense(self.weight, x.dtype), self.bias)


def quantize_linears(module: nn.Module, with_plain: bool = False) -> None:
    """Replace every ``nn.Linear`` below ``module``, one after the other, so that little is held twice.

    ``with_plain`` also retains each weight as it was, for the calls where it is faster.
    """
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, QuantizedLinear(child, with_plain))
        else:
            quantize_linears(child, with_plain)
