"""Kernels compiled side by side before they are launched."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.ops.parallel_compile import compile_only, launch

pytest.importorskip("triton")


class Kernel:
    """Remembers what became of it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, Any]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **options: self.calls.append(("launched", grid, (args, options)))

    def warmup(self, *args: Any, grid: tuple[int, ...], **options: Any) -> None:
        self.calls.append(("compiled", grid, (args, options)))


def test_a_kernel_is_launched_or_only_compiled() -> None:
    kernel = Kernel()
    launch(kernel, 3, 4)(1, BLOCK=2)
    with compile_only():
        launch(kernel, 3, 4)(1, BLOCK=2)
        launch(kernel, 3, 5)(1, BLOCK=2)
    with pytest.raises(ZeroDivisionError), compile_only():
        _ = 1 // 0
    launch(kernel, 5)()
    given = ((1,), {"BLOCK": 2})
    assert kernel.calls == [("launched", (3, 4), given), ("compiled", (3, 4), given), ("launched", (5,), ((), {}))]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_what_is_only_compiled_writes_nothing_and_runs_later() -> None:
    from engine.ops.reference_ops import ReferenceOps
    from engine.ops.triton_ops import TritonOps

    ops, gate_up = TritonOps(), torch.randn(3, 400, device="cuda")
    x, weight = torch.randn(3, 80, device="cuda"), torch.rand(80, device="cuda")
    with compile_only():
        kept = torch.zeros(3, 200, device="cuda")
        del kept  # the next of its size lies there
        assert not ops.swiglu(gate_up).any()
        ops.rms_norm(x, weight, 1e-6)
    torch.testing.assert_close(ops.swiglu(gate_up), ReferenceOps().swiglu(gate_up))
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-6), ReferenceOps().rms_norm(x, weight, 1e-6))
