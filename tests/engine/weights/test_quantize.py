"""Weights in fp8 and int4: the error of quantization, and layers over them."""

from __future__ import annotations

import torch
from torch import nn

from engine.weights.quantize import (
    GROUP,
    Int4Weight,
    QuantizedLinear,
    dense,
    quantize,
    quantize_and_retain,
    quantize_int4,
    quantize_linears,
)

CPU = torch.device("cpu")
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


def make_int4(weight: torch.Tensor) -> Int4Weight:
    found = quantize_int4(weight)
    assert isinstance(found, Int4Weight)
    return found


def test_int4_values_are_within_half_a_step_but_for_clipped_ones() -> None:
    torch.manual_seed(0)
    weight = torch.randn(32, 4 * GROUP) * torch.logspace(-6, 3, 32)[:, None]
    found = make_int4(weight)
    assert (found.shape, found.data.shape, found.scale.shape) == ((32, 4 * GROUP), (32, 2 * GROUP), (32, 4))
    step = found.scale.float().abs().repeat_interleave(GROUP, 1)
    error = (found.dequantize(torch.float32) - weight).abs()
    is_inside = weight.abs() <= 7 * step
    assert (error[is_inside] <= 0.501 * step[is_inside]).all()
    assert is_inside.float().mean() > 0.95
    assert float(error.norm(dim=1).div(weight.norm(dim=1)).max()) < 0.12


def test_int4_scale_has_the_least_error_of_all_clips() -> None:
    """A value far beyond all others stays exact; one a little beyond is clipped, which leaves finer steps to all."""
    far, near = torch.full((1, GROUP), 0.1), torch.full((1, GROUP), 0.875)
    far[0, 5], near[0, 5] = -8.0, -1.125
    found = make_int4(far)
    assert found.scale.item() == 1.0
    assert found.dequantize(torch.float32)[0, 5] == -8.0
    found = make_int4(near)
    assert found.scale.item() < 1.125 / 8
    assert -1.125 < found.dequantize(torch.float32)[0, 5] < -0.9


def test_int4_values_lie_in_the_order_of_kernels() -> None:
    """Byte b of a group holds inputs b and b + half a group, in its low and high nibble, 8 more than their value."""
    values = torch.arange(GROUP).remainder(16) - 8.0
    found = make_int4(values.repeat(2, 1) * torch.tensor([[1.0], [0.5]]))
    assert torch.equal(found.scale, torch.tensor([[1.0], [0.5]], dtype=torch.bfloat16))
    half = GROUP // 2
    wanted = [int(values[b] + 8) | int(values[b + half] + 8) << 4 for b in range(half)]
    assert found.data.tolist() == [wanted, wanted]


def test_int4_zeros_stay_zeros() -> None:
    assert torch.equal(make_int4(torch.zeros(4, GROUP)).dequantize(torch.float32), torch.zeros(4, GROUP))


def test_weight_that_is_no_multiple_of_a_group_stays_plain() -> None:
    weight = torch.randn(3, GROUP + 1)
    assert quantize_int4(weight) is weight


def test_quantized_linear_multiplies_dequantized_weight() -> None:
    torch.manual_seed(0)
    x, plain, bias = torch.randn(3, GROUP), torch.randn(8, GROUP), torch.randn(8)
    for weight in (quantize(plain), make_int4(plain)):
        wanted = x @ weight.dequantize(torch.float32).t() + bias
        torch.testing.assert_close(QuantizedLinear(weight, bias)(x), wanted)
    retained = QuantizedLinear(quantize_and_retain(plain), bias)(x)
    torch.testing.assert_close(retained, nn.functional.linear(x, plain, bias))


def test_quantize_linears_replaces_every_linear_below() -> None:
    module = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), nn.Linear(4, 2, bias=False)])
    module.requires_grad_(False)
    quantize_linears(module, quantize_int4, CPU)
    assert sum(isinstance(child, nn.Linear) for child in module.modules()) == 2
    quantize_linears(module, quantize_and_retain, CPU)
    layers = [child for child in module.modules() if isinstance(child, QuantizedLinear)]
    assert len(layers) == 2
    assert not any(isinstance(child, nn.Linear) for child in module.modules())
    assert all(dense(layer.weight, torch.float32) is layer.weight.plain for layer in layers)


def test_tensor_is_its_own_dense_weight() -> None:
    weight = torch.randn(3, 5)
    assert dense(weight, torch.float32) is weight
