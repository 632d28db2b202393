"""Residual units with their weights in shared memory: when they run, what they compile to, what they return."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.kernel_targets import SHARED_KIB, registers_and_stack
from engine.ops.parallel_compile import intercept, record_requests
from engine.ops.params import ConvParams, ResidualUnitParams, SnakeParams
from engine.ops.reference_ops import ReferenceOps
from engine.ops.tiles import MIN_RESIDENT_ROWS, RESIDENT_CHANNELS, RESIDENT_ROWS, RESIDENT_TAPS
from tests.engine.ops.hopper import compile_for_hopper

TAPS, CHANNELS = RESIDENT_TAPS, RESIDENT_CHANNELS
# Bytes of a thread.
MAX_STACK = 64
# Of a row, relative to its norm. The kernel rounds to bf16 between the products, too.
MAX_ERROR = 1.5e-2


def hopper_ops(*disabled: str) -> Any:
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("Gluon has no interpreter")
    from engine.ops.triton_ops import TritonOps

    ops = TritonOps(disabled)
    ops.on_hopper = True
    return ops


def run_unit(
    ops: Any, num_rows: int, *, channels: int = CHANNELS, taps: int = TAPS, dtype: torch.dtype = torch.bfloat16,
    device: str = "meta", is_last: bool = False,
) -> None:  # fmt: skip
    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=dtype, device=device)

    waves = SnakeParams(zeros(channels).float(), zeros(channels).float())
    wide, narrow = (ConvParams(zeros(number, channels, channels), zeros(channels).float(), 1) for number in (taps, 1))
    x = zeros(1, num_rows, channels)
    unit = ResidualUnitParams(wide, waves, narrow)
    ops.residual_unit(zeros(1, taps - 1 + num_rows, channels), unit, x, torch.empty_like(x), waves, is_last)


def launched(ops: Any, num_rows: int, **options: Any) -> list[str]:
    names: list[str] = []
    with intercept(lambda kernel, grid, args, options: names.append(f"{kernel.fn.__name__} {grid[0]}")):
        run_unit(ops, num_rows, **options)
    return names


def test_many_rows_of_the_released_channels_share_their_weights() -> None:
    assert launched(hopper_ops(), MIN_RESIDENT_ROWS) == ["resident_unit_kernel 132"]
    assert launched(hopper_ops(), MIN_RESIDENT_ROWS - 1) == ["residual_unit_kernel 469"]
    assert launched(hopper_ops(), 384 * 1920) == ["resident_unit_kernel 132"]


@pytest.mark.parametrize(
    ("disabled", "options", "kernel"),
    [
        (["resident_unit"], {}, "residual_unit_kernel"),
        (["unit"], {}, "conv_kernel"),
        ([], {"channels": 192}, "residual_unit_kernel"),
        ([], {"taps": 5}, "residual_unit_kernel"),
        ([], {"dtype": torch.float32}, "residual_unit_kernel"),
    ],
)
def test_other_units_load_their_weights_each_time(disabled: list[str], options: dict[str, Any], kernel: str) -> None:
    names = launched(hopper_ops(*disabled), MIN_RESIDENT_ROWS, **options)
    assert {name.split()[0] for name in names} == {kernel}


def test_on_other_gpus_units_load_their_weights_each_time() -> None:
    ops = hopper_ops()
    ops.on_hopper = False
    assert launched(ops, MIN_RESIDENT_ROWS) == ["residual_unit_kernel 469"]


def test_without_gluon_units_load_their_weights_each_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ops = hopper_ops()
    monkeypatch.setitem(sys.modules, "engine.ops.triton_unit", None)
    assert launched(ops, MIN_RESIDENT_ROWS) == ["residual_unit_kernel 469"]
    assert launched(ops, MIN_RESIDENT_ROWS) == ["residual_unit_kernel 469"]
    assert len(caplog.records) == 1


@pytest.fixture
def ops_for_hopper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    ops = hopper_ops()
    compile_for_hopper(ops.resident_unit, tmp_path, monkeypatch)
    return ops


def test_its_kernels_fit_a_multiprocessor(ops_for_hopper: Any) -> None:
    from triton import knobs

    with record_requests(lambda _: None) as requests:
        for is_last in (False, True):
            run_unit(ops_for_hopper, MIN_RESIDENT_ROWS, device="cpu", is_last=is_last)
            run_unit(ops_for_hopper, 2 * MIN_RESIDENT_ROWS, device="cpu", is_last=is_last)
    assert len(requests) == 2
    for request in requests:
        compiled = ops_for_hopper.resident_unit.preload(request.specialization)
        assert compiled.metadata.shared <= SHARED_KIB[90] * 1024
        ptx = compiled.asm["ptx"]
        # Weights are stored as any memory is, and the products read them by another way.
        order = re.findall(r"st\.shared|stmatrix|fence\.proxy\.async|bar\.sync|wgmma\.mma_async", ptx)
        first = order.index("wgmma.mma_async")
        assert order[first - 2 : first] == ["fence.proxy.async", "bar.sync"]
        assert not {"st.shared", "stmatrix"} & {*order[first:]}
        accesses = set(re.findall(r"(?:ld|st)\.global\S*", ptx))
        assert accesses == {"ld.global.v4.b32", "st.global.v4.b32", "ld.global.b32"}
        if Path(knobs.nvidia.cuobjdump.path).exists():
            _, stack = registers_and_stack(compiled.asm["cubin"])
            assert stack <= MAX_STACK


# -- on Hopper -------------------------------------------------------------------------------------------------------


def is_hopper() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


on_hopper = pytest.mark.skipif(not is_hopper(), reason="needs CUDA of Hopper")


def random_unit(dilation: int) -> tuple[ResidualUnitParams, SnakeParams]:
    def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(*shape, device="cuda") * scale

    def waves() -> SnakeParams:
        return SnakeParams(random(CHANNELS).abs() * 3, random(CHANNELS).abs())

    wide = ConvParams(random(TAPS, CHANNELS, CHANNELS, scale=(TAPS * CHANNELS) ** -0.5).bfloat16(), random(CHANNELS))
    narrow = ConvParams(random(1, CHANNELS, CHANNELS, scale=CHANNELS**-0.5).bfloat16(), random(CHANNELS))
    return ResidualUnitParams(wide._replace(dilation=dilation), waves(), narrow), waves()


def exact(unit: ResidualUnitParams) -> ResidualUnitParams:
    wide, narrow = (product._replace(weight=product.weight.float()) for product in (unit.wide, unit.narrow))
    return unit._replace(wide=wide, narrow=narrow)


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return that of the worst row."""
    difference = found.double() - wanted.double()
    return float((difference.norm(dim=-1) / wanted.double().norm(dim=-1)).max())


@pytest.fixture
def any_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.ops.tiles.MIN_RESIDENT_ROWS", 1)


@on_hopper
@pytest.mark.gpu
@pytest.mark.usefixtures("any_rows")
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("dilation", [1, 3, 9])
@pytest.mark.parametrize(
    ("streams", "length"), [(1, 1), (1, RESIDENT_ROWS), (3, 70), (7, 1920), (2, 8 * 1920), (200, 960)]
)
def test_it_returns_what_the_reference_returns(streams: int, length: int, dilation: int, is_last: bool) -> None:
    torch.manual_seed(streams * length + dilation)
    unit, waves = random_unit(dilation)
    ahead, behind = 5, 3
    buffer = torch.randn(streams, 6 * dilation + length + behind, CHANNELS, device="cuda").bfloat16()
    padded = buffer[:, : 6 * dilation + length]
    x = torch.randn(streams, length, CHANNELS, device="cuda").bfloat16()
    ops = hopper_ops()
    own = x.clone()
    out = torch.full((streams, ahead + length + behind, CHANNELS), float("nan"), device="cuda", dtype=x.dtype)
    ops.residual_unit(padded, unit, own, out[:, ahead : ahead + length], waves, is_last)
    wanted_x, wanted = x.float(), torch.empty(streams, length, CHANNELS, device="cuda")
    ReferenceOps().residual_unit(padded.float(), exact(unit), wanted_x, wanted, waves, False)
    assert error(out[:, ahead : ahead + length], wanted) < MAX_ERROR
    if is_last:
        assert torch.equal(own, x)
    else:
        assert error(own, wanted_x) < MAX_ERROR
    assert out[:, :ahead].isnan().all()
    assert out[:, ahead + length :].isnan().all()


@on_hopper
@pytest.mark.gpu
@pytest.mark.usefixtures("any_rows")
def test_a_stream_does_not_depend_on_the_others() -> None:
    unit, waves = random_unit(3)
    ops, streams, length = hopper_ops(), 40, 1920
    padded = torch.randn(streams, 18 + length, CHANNELS, device="cuda").bfloat16()
    x = torch.randn(streams, length, CHANNELS, device="cuda").bfloat16()

    def run(first: int, last: int) -> torch.Tensor:
        own, out = x[first:last].clone(), torch.empty_like(x[first:last])
        ops.residual_unit(padded[first:last], unit, own, out, waves, False)
        return torch.cat([own, out], 1)

    together = run(0, streams)
    for first, last in ((0, 1), (7, 12), (13, 40)):
        assert torch.equal(run(first, last), together[first:last])
    for _ in range(20):
        assert torch.equal(run(0, streams), together)


@on_hopper
@pytest.mark.gpu
@pytest.mark.usefixtures("any_rows")
@pytest.mark.parametrize(("frequency", "scale"), [(0.01, 1e-3), (0.01, 1.0), (30.0, 30.0)])
def test_snakes_are_precise_for_quiet_and_for_large_inputs(frequency: float, scale: float) -> None:
    """The second product is zero, so that the residual alone goes through the last snake."""
    unit, waves = random_unit(1)
    unit = unit._replace(narrow=ConvParams(torch.zeros_like(unit.narrow.weight), torch.zeros_like(unit.narrow.bias)))
    waves = SnakeParams(torch.full_like(waves.frequency, frequency), torch.full_like(waves.gain, 1 / frequency))
    x = (torch.randn(1, 4 * RESIDENT_ROWS, CHANNELS, device="cuda") * scale).bfloat16()
    padded, out = torch.randn(1, 6 + x.shape[1], CHANNELS, device="cuda").bfloat16(), torch.empty_like(x)
    hopper_ops().residual_unit(padded, unit, x.clone(), out, waves, True)
    wanted = x.double() + torch.sin(x.double() * frequency) ** 2 / frequency
    assert error(out, wanted) < 4e-3
