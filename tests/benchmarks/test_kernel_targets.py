"""Which variant of a kernel a launch is, and what a table of kernels and targets says of those that do not fit."""

from __future__ import annotations

from argparse import ArgumentTypeError
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import kernel_targets, random_model
from benchmarks.kernel_targets import (
    SHARED_KIB,
    Resources,
    Variant,
    known_targets,
    parse_usage,
    problems,
    rows_of,
    run_qwen3_tts,
    specialize,
)
from engine.ops.reference_ops import ReferenceOps


def kernel(*params: str) -> Any:
    """Parameters by name: upper case is a constant, ``rows`` is not specialized."""
    made = [
        SimpleNamespace(name=name, is_constexpr=name.isupper(), do_not_specialize=name == "rows", default=False)
        for name in params
    ]
    return SimpleNamespace(
        arg_names=list(params), params=made, fn=SimpleNamespace(__module__="ops", __name__="product_kernel")
    )


def test_variant_has_what_triton_specializes_on() -> None:
    product = kernel("x_ptr", "rows", "width", "one", "eps", "BLOCK", "EARLY")
    x = torch.zeros(64, dtype=torch.bfloat16)
    found = specialize(product, (x, 16, 48, 1, 1e-6), {"BLOCK": 32, "num_warps": 4})
    kinds = {"x_ptr": "*bf16", "rows": "i32", "width": "i32", "one": "constexpr", "eps": "fp32", "BLOCK": "constexpr"}
    kinds["EARLY"] = "constexpr"
    assert dict(found.signature) == kinds
    assert found.constants == ((3, 1), (5, 32), (6, False))
    assert found.aligned == (0, 2)
    assert found.options == (("num_warps", 4),)
    assert found == specialize(product, (x, 7, 64, 1, 2.0), {"BLOCK": 32, "num_warps": 4})
    assert found != specialize(product, (x[1:], 16, 48, 1, 1e-6), {"BLOCK": 32, "num_warps": 4})


def test_what_does_not_fit_is_named() -> None:
    small, large = (
        Variant("ops", "conv_kernel", (("x", "*bf16"), ("M", "constexpr")), ((1, size),), (0,), (("num_warps", 8),))
        for size in (64, 128)
    )
    found = {
        (small, 86): Resources(48 * 1024, 90, 0),
        (large, 86): Resources(100 * 1024, 255, 16),
        (large, 90): Resources(error="CompilationError: no"),
    }
    too_large, failed = problems(found)
    assert too_large.startswith("sm_86 conv_kernel {'M': 128} {'num_warps': 8}: 102400 bytes of shared memory")
    assert failed.endswith("CompilationError: no")
    first, second = rows_of(found)
    assert first | {"variants": 2, "shared": 102_400, "registers": 255, "stack": 16, "spilling": 1, "bad": 1} == first
    assert (second["target"], second["bad"]) == (90, 1)


def test_targets_are_known_ones() -> None:
    assert known_targets("80,90") == [80, 90]
    with pytest.raises(ArgumentTypeError, match=r"\[75\] of '75,80'; known: \[80, 86, 89, 90, 120\]"):
        known_targets("75,80")


def test_resource_usage_is_read_from_cuobjdump() -> None:
    text = "Resource usage:\n Function conv_kernel:\n  REG:168 STACK:24 SHARED:0 LOCAL:0 CONSTANT[0]:612 TEXTURE:0\n"
    assert parse_usage(text) == (168, 24)


def test_only_some_targets_have_fp8_and_an_early_start() -> None:
    plain = Variant("ops", "product_kernel", (("x", "*bf16"),), (), (), (("num_warps", 8),))
    fp8 = plain._replace(signature=(("x", "*fp8e4nv"),))
    assert [some.min_target for some in (plain, fp8)] == [80, 89]
    assert {some._replace(options=(("launch_pdl", True),)).min_target for some in (plain, fp8)} == {90}


@pytest.mark.parametrize(
    ("channels", "warps", "stages", "wanted"),
    [(96, 4, 3, [80, 86, 89, 90, 120]), (96, 4, 5, [90]), (192, 4, 3, [80, 86, 89, 90, 120]), (384, 8, 4, [90])],
)
def test_some_units_run_on_hopper_only(channels: int, warps: int, stages: int, wanted: list[int]) -> None:
    options = (("num_warps", warps), ("num_stages", stages))
    unit = Variant("ops", "residual_unit_kernel", (("x", "*bf16"), ("C", "constexpr")), ((1, channels),), (), options)
    assert [target for target in SHARED_KIB if unit.runs_on(target)] == wanted
    assert [target for target in SHARED_KIB if unit._replace(name="resident_unit_kernel").runs_on(target)] == [90]
    product = unit._replace(name="product_kernel")
    assert all(product.runs_on(target) for target in SHARED_KIB)


def test_decoding_is_run_as_on_hopper_and_as_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    class UnitRecorder(ReferenceOps):
        on_hopper: bool | None = None

        def residual_unit(self, *args: Any, **options: Any) -> None:
            seen.append(self.on_hopper)
            super().residual_unit(*args, **options)

    seen: list[bool | None] = []
    monkeypatch.setattr(random_model, "SHAPES", dict(random_model.SHAPES))
    monkeypatch.setattr(kernel_targets, "select_ops", lambda config, device: UnitRecorder())
    with torch.inference_mode():
        run_qwen3_tts("tiny", [2], "bf16", torch.float32)
    assert {False, True} == set(seen)
    assert seen.count(False) == seen.count(True)
