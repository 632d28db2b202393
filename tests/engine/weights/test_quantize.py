"""Weights in fp8: the error of quantization, and layers over them."""

from __future__ import annotations

import torch
from torch import nn

from engine.weights.quantize import QuantizedLinear, QuantizedWeight, dense, quantize, quantize_linears

# Half a step of three bits of mantissa, and of the values below the smallest normal one.
MAX_RELATIVE_ERROR = 2**-4
MIN_NORMAL = 2**-6 / 448


def test_quantized_values_are_within_half_a_step() -> None:
    torch.manual_seed(0)
    weight = torch.randn(32, 64) * torch.logspace(-6, 3, 32)[:, None]
    found = quantize(weight)
    largest = weight.abs().amax(1, keepdim=True)
    bound = MAX_RELATIVE_ERROR * weight.abs().clamp(min=MIN_NORMAL * largest)
    assert ((found.dequantize(torch.float32) - weight).abs() <= bound * 1.001).all()
    assert found.shape == weight.shape


def test_quantized_zeros_stay_zeros() -> None:
    found = quantize(torch.zeros(4, 8))
    assert torch.equal(found.dequantize(torch.float32), torch.zeros(4, 8))


def test_largest_value_of_each_output_is_exact() -> None:
    weight = torch.tensor([[448.0, 1.0], [-3.5, 0.25]])
    assert torch.equal(quantize(weight).dequantize(torch.float32).abs().amax(1), weight.abs().amax(1))


def test_product_of_quantized_rows_and_weight_is_bounded() -> None:
    """Rows of activations are quantized as outputs of a weight are: one scale for each."""
    torch.manual_seed(0)
    x, weight = torch.randn(24, 320) * torch.logspace(-3, 3, 24)[:, None], torch.randn(48, 320)
    found = quantize(x).dequantize(torch.float32) @ quantize(weight).dequantize(torch.float32).t()
    low, high = (value.abs().clamp(min=MIN_NORMAL * value.abs().amax(1, keepdim=True)) for value in (x, weight))
    bound = ((1 + MAX_RELATIVE_ERROR) ** 2 - 1) * (low @ high.t())
    error = (found - x @ weight.t()).abs()
    assert (error <= bound).all()
    assert float(error.norm() / (x @ weight.t()).norm()) < 0.05


def test_quantized_linear_multiplies_dequantized_weight() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(16, 8).requires_grad_(False)
    x = torch.randn(3, 16)
    found = QuantizedLinear(linear, with_plain=False)
    wanted = x @ found.weight.dequantize(torch.float32).t() + linear.bias
    torch.testing.assert_close(found(x), wanted)
    torch.testing.assert_close(QuantizedLinear(linear, with_plain=True)(x), linear(x))


def test_quantize_linears_replaces_every_linear_below() -> None:
    module = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), nn.Linear(4, 2, bias=False)])
    module.requires_grad_(False)
    quantize_linears(module, with_plain=True)
    layers = [child for child in module.modules() if isinstance(child, QuantizedLinear)]
    assert len(layers) == 2
    assert not any(isinstance(child, nn.Linear) for child in module.modules())
    assert all(layer.weight.plain is not None for layer in layers)


def test_dense_prefers_plain_weight() -> None:
    weight = torch.randn(3, 5)
    assert dense(weight, torch.float32) is weight
    assert dense(QuantizedWeight(*quantize(weight)[:2], weight), torch.float32) is weight
