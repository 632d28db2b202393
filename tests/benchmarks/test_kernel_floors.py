"""Floors of operations: their bytes and arithmetic, the table of a small model, and which kernels count for which."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType

from benchmarks import gpu_stages
from benchmarks.kernel_floors import COSTS, MARK, Ceilings, Cost, operation_times
from engine.ops.params import PagedCall, ResidualStream
from engine.ops.reference_ops import ReferenceOps
from engine.weights.quantize import quantize, quantize_and_retain, quantize_int4

ROWS, SIZE, OUT = 4, 128, 64


@pytest.mark.parametrize(
    ("weight", "num_bytes", "num_operations"),
    [
        (torch.zeros(OUT, SIZE, dtype=torch.bfloat16), 2 * OUT * SIZE, 2 * ROWS * OUT * SIZE),
        (quantize(torch.zeros(OUT, SIZE)), OUT * SIZE + 4 * OUT, ROWS * OUT * SIZE),
        (quantize_and_retain(torch.zeros(OUT, SIZE)), 4 * OUT * SIZE, 2 * ROWS * OUT * SIZE),
        (quantize_int4(torch.zeros(OUT, SIZE)), OUT * SIZE // 2 + 2 * OUT * 2, 2 * ROWS * OUT * SIZE),
    ],
    ids=["bf16", "fp8", "retained", "int4"],
)
def test_product_reads_its_weight_as_it_is_stored(weight: Any, num_bytes: int, num_operations: int) -> None:
    residual = ResidualStream(torch.zeros(ROWS, SIZE, dtype=torch.bfloat16))
    cost = COSTS["norm_linear"](residual, torch.zeros(SIZE), 1e-6, weight)
    assert cost.num_bytes == num_bytes + 2 * ROWS * (SIZE + OUT)
    assert cost.num_operations == num_operations


def test_attention_reads_the_positions_of_its_rows() -> None:
    heads, kv_heads, size = 4, 2, 16
    qkv, cache = torch.zeros(2, (heads + 2 * kv_heads) * size), torch.zeros(2, 8, 4, kv_heads, size)
    call = PagedCall(torch.zeros(2, 3, dtype=torch.int32), torch.tensor([3, 9]), (qkv, qkv), together=False)
    cost = COSTS["paged_attention"](qkv, None, 1e-6, cache, call)
    assert cost.num_bytes == 4 * (qkv.numel() + 2 * heads * size + 2 * (4 + 10) * kv_heads * size)
    assert cost.num_operations == 4 * (4 + 10) * heads * size


@pytest.mark.parametrize("num_positions", [1, 2])
@pytest.mark.parametrize("element", [torch.int32, torch.int16], ids=["bf16", "fp8"])
def test_launch_reads_its_weights_once_and_the_positions_before(element: torch.dtype, num_positions: int) -> None:
    """Products are described as elements of two inputs, those of all layers one after another; heads are bf16."""
    products = [SimpleNamespace(base=torch.zeros(OUT, SIZE // 2, dtype=element)) for _ in range(4)]
    heads = [SimpleNamespace(base=torch.zeros(OUT, SIZE, dtype=torch.bfloat16).view(element)) for _ in range(2)]
    is_fp8 = element == torch.int16
    layers, start, head_values = 3, 5, 2 * 16
    x = torch.zeros(ROWS, SIZE, dtype=torch.bfloat16)
    cache = torch.zeros(layers, 2, ROWS, 16, 2, 16, dtype=torch.bfloat16)
    launched = SimpleNamespace(products=products, heads=heads, scales=torch.zeros(1) if is_fp8 else None)
    cost = COSTS["predictor_pass"](launched, num_positions * [x], cache, start, 2)
    past = layers * 2 * ROWS * start * head_values
    weights = (4 * OUT * (SIZE + 4) if is_fp8 else 8 * OUT * SIZE) + 2 * OUT * SIZE
    assert cost.num_bytes == weights + 2 * (past + 2 * num_positions * ROWS * SIZE)
    assert cost.num_operations == 2 * (4 * num_positions + 1) * ROWS * OUT * SIZE


def test_floor_is_the_longer_of_bytes_and_operations() -> None:
    ceilings = Ceilings(bandwidth=100.0, rate=10.0)
    assert ceilings.floor_s(Cost(200, 10)) == 2.0
    assert ceilings.floor_s(Cost(200, 30)) == 3.0


def test_costs_are_those_of_operations() -> None:
    assert [name for name in COSTS if not callable(getattr(ReferenceOps, name, None))] == ["predictor_pass"]
    pytest.importorskip("triton")
    from engine.ops.triton_ops import TritonOps

    assert callable(TritonOps.predictor_pass)


def event(name: str, start_ns: int, duration_ns: int, correlation: int = 0, is_kernel: bool = False) -> Any:
    return SimpleNamespace(
        name=lambda: name, start_ns=lambda: start_ns, duration_ns=lambda: duration_ns,
        correlation_id=lambda: correlation, device_type=lambda: DeviceType.CUDA if is_kernel else DeviceType.CPU,
    )  # fmt: skip


def test_kernels_count_for_the_operation_that_launched_them() -> None:
    """Kernels run late and in any order; what was launched between operations counts for none."""
    events = [
        event(f"{MARK}0", 1000, 500), event(f"{MARK}1", 2000, 500),
        event("cuLaunchKernelEx", 1100, 10, 7), event("cudaLaunchKernel", 1200, 10, 8),
        event("cudaLaunchKernel", 1700, 10, 9), event("cuLaunchKernel", 2100, 10, 10),
        event("gemm_kernel", 9000, 4000, 7, True), event("norm_kernel", 13000, 2000, 8, True),
        event("index", 15000, 9000, 9, True), event("gemm_kernel", 24000, 3000, 10, True),
        event(f"{MARK}0", 9000, 6000, 7, True),
    ]  # fmt: skip
    assert operation_times(events, is_cuda=True) == {0: 6.0, 1: 3.0}


def test_floors_of_a_small_model_are_in_the_last_line(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    options = ["--shape", "tiny", "--batch", "2", "--context", "16", "--floor", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["gpu_stages", *options])
    gpu_stages.main()
    (row,) = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    found = {(kernel["stage"], kernel["operation"]): kernel for kernel in row["kernels"]}
    assert {stage for stage, _ in found} == {"talker", "predictor", "decode"}
    assert {"paged_attention", "add_linear", "norm_swiglu"} <= {name for stage, name in found if stage == "talker"}
    assert {"conv", "residual_unit", "ring_attention"} <= {name for stage, name in found if stage == "decode"}
    assert all(kernel["us"] > 0 and kernel["calls"] > 0 for kernel in row["kernels"])
    assert all(
        kernel["share"] == pytest.approx(kernel["floor_us"] / kernel["us"], abs=1e-2) for kernel in row["kernels"]
    )
