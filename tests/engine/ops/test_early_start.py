"""Kernels that start while the one before ends: each waits for it, few rows use it, and results keep every bit."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import ops as package
from engine.ops.parallel_compile import intercept
from engine.ops.params import ConvParams, PagedCall, ResidualStream

SIZE, HEAD, STEPS, REPLAYS = 512, 128, 40, 25


def early_kernels() -> list[ast.FunctionDef]:
    trees = [ast.parse(path.read_text()) for path in Path(package.__path__[0]).glob("triton_*.py")]
    found = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [node for node in found if node.name.endswith("_kernel") and "EARLY" in [arg.arg for arg in node.args.args]]


def memory_accesses(node: ast.AST) -> list[str]:
    calls = [ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)]
    return [name for name in calls if name in ("tl.load", "tl.store")]


def test_every_kernel_that_starts_early_waits_before_it_reads_or_writes() -> None:
    kernels = early_kernels()
    names = {"gemv_kernel", "gemm_kernel", "sum_norm_kernel", "kv_write_kernel", "conv_kernel", "sample_kernel"}
    assert names <= {node.name for node in kernels}
    for node in kernels:
        texts = [ast.unparse(statement) for statement in node.body]
        assert "wait_for_inputs(EARLY)" in texts, node.name
        before = node.body[: texts.index("wait_for_inputs(EARLY)")]
        assert not [name for statement in before for name in memory_accesses(statement)], node.name


def launched_options(monkeypatch: pytest.MonkeyPatch, run: Callable[..., object], off: Any, possible: bool) -> Any:
    """Return the options of all launches of ``run(ops)``."""
    pytest.importorskip("triton")
    from engine.ops import triton_ops

    monkeypatch.setattr(triton_ops, "can_start_early", lambda: possible)
    launched: list[dict[str, Any]] = []
    with intercept(lambda kernel, grid, args, options: launched.append(options)):
        run(triton_ops.TritonOps(off))
    assert launched
    return launched


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "off", "possible", "wanted"),
    [(2, (), True, 1), (3, (), True, 0), (2, ("early",), True, 0), (2, (), False, 0)],
)
def test_decoding_starts_early_for_few_streams_unless_it_is_off(
    monkeypatch: pytest.MonkeyPatch, rows: int, off: tuple[str, ...], possible: bool, wanted: int
) -> None:
    padded, convs = torch.zeros(rows, 4 + 6, SIZE), make_convs(torch.float32, "cpu")
    for options in launched_options(monkeypatch, lambda ops: run_convs(ops, padded, convs), off, possible):
        assert (options.get("EARLY", 0), options.get("launch_pdl", False)) == (wanted, wanted > 0)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "off", "possible", "wanted", "ahead"),
    [
        (2, (), True, 1, {16}),
        (3, (), True, 2, {4}),
        (64, (), True, 2, {4}),
        (65, (), True, 0, set()),
        (3, ("early",), True, 0, set()),
        (3, (), False, 0, set()),
    ],
)
def test_layers_start_early_for_some_rows_unless_it_is_off(
    monkeypatch: pytest.MonkeyPatch, rows: int, off: tuple[str, ...], possible: bool, wanted: int, ahead: set[int]
) -> None:
    x, weights = torch.zeros(rows, SIZE), 2 * [(torch.zeros(8 * SIZE, SIZE), torch.zeros(SIZE, 3 * SIZE))]
    launched = launched_options(monkeypatch, lambda ops: run_layers(ops, x, weights), off, possible)
    for options in launched:
        assert (options.get("EARLY", 0), options.get("launch_pdl", False)) == (wanted, wanted > 0)
    assert {options["PREFETCH"] for options in launched if "PREFETCH" in options} == ahead


@pytest.mark.gpu
@pytest.mark.parametrize(("row_bytes", "wanted"), [(1024, 16), (1008, 0)])
def test_short_rows_of_weights_are_not_fetched_ahead(row_bytes: int, wanted: int) -> None:
    pytest.importorskip("triton")
    from engine.ops.triton_linear import num_pieces

    assert num_pieces(row_bytes, 16) == wanted


def make_convs(dtype: torch.dtype, device: str) -> list[ConvParams]:
    weights = [torch.randn(7, SIZE, SIZE, dtype=dtype, device=device) * (7 * SIZE) ** -0.5 for _ in range(2)]
    return [ConvParams(weight, torch.zeros(SIZE, device=device), 1) for weight in weights]


def run_convs(ops: Any, padded: torch.Tensor, convs: list[ConvParams]) -> torch.Tensor:
    """Each writes what the next reads, in place of what the one before read."""
    x, y = padded.clone(), padded.clone()
    for conv in convs:
        ops.conv(x, conv, x.shape[1] - 6, act=y[:, 6:])
        x, y = y, x
    return x


def run_layers(ops: Any, x: torch.Tensor, weights: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Layers whose attention, of 2 heads of keys and 12 of queries, reads what SwiGLU writes."""
    rows, residual, ones = x.shape[0], ResidualStream(x.clone()), torch.ones(SIZE, dtype=x.dtype, device=x.device)
    angles = torch.arange(64, device=x.device)[:, None] * torch.ones(HEAD // 2, device=x.device)
    positions = torch.arange(rows, device=x.device, dtype=torch.int32) % 64
    tables = torch.arange(4, device=x.device, dtype=torch.int32).expand(rows, -1).contiguous()
    cache = torch.zeros(2, 4, 16, 2, HEAD, dtype=x.dtype, device=x.device)
    call = PagedCall(tables, positions, (angles.cos(), angles.sin()), together=True)
    for both, back in weights:
        y = ops.norm_swiglu(residual, ones, 1e-6, both)
        y = ops.paged_attention(y, (ones[:HEAD], ones[:HEAD]), 1e-6, cache, call)
        ops.add_linear(residual, y, back)
    return ops.flush_residual(residual)


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0), reason="needs CUDA of Hopper"
)
@pytest.mark.skipif("TRITON_OVERRIDE_ARCH" in os.environ, reason="runs the code of another target")
@pytest.mark.parametrize("rows", [1, 40])
def test_early_start_keeps_every_bit(rows: int) -> None:
    from engine.ops.triton_ops import TritonOps

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda").to(torch.bfloat16)

    weights = [(random(8 * SIZE, SIZE) * SIZE**-0.5, random(SIZE, 3 * SIZE) * SIZE**-1.0) for _ in range(STEPS)]
    convs, x, padded = STEPS // 2 * make_convs(torch.bfloat16, "cuda"), random(rows, SIZE), random(1, 64 + 6, SIZE)
    cases: list[tuple[Callable[..., torch.Tensor], torch.Tensor, Any]] = [
        (run_layers, x, weights),
        (run_convs, padded, convs),
    ]
    for run, given, params in cases:
        late: Any = TritonOps(disabled=["early"])
        early: Any = TritonOps()
        assert early.early_layer(rows)
        assert not late.early_layer(rows)
        wanted = run(late, given, params)
        run(early, given, params)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = run(early, given, params)
        for _ in range(REPLAYS):
            graph.replay()
            assert torch.equal(found, wanted)
