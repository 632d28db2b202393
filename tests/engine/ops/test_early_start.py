"""Kernels that start while the one before ends: each waits for it, few rows use it, and results keep every bit."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import ops as package
from engine.config import EngineConfig
from engine.ops.parallel_compile import intercept
from engine.ops.params import ConvParams, PagedCall, ResidualStream, SamplingTensors
from engine.ops.reference_ops import select_ops
from engine.weights.quantize import QUANTIZERS, Weight

SIZE, HEAD, STEPS, REPLAYS = 512, 128, 40, 25
# Values of EARLY: a kernel lets the next one start when it has waited, or before it writes.
AT_START, AT_END = 1, 2
# Kernels of ``run_frame`` that do not depend on the precision.
FRAME_KERNELS = {"kv_write_kernel", "paged_attention_kernel", "predictor_attention_kernel", "sample_kernel"}
# None of them reads or writes memory.
CALLS_BEFORE_WAIT = {"tl.program_id", "tl.arange", "tl.multiple_of"}
Launch = tuple[str, dict[str, Any]]


def early_kernels() -> dict[str, ast.FunctionDef]:
    trees = [ast.parse(path.read_text()) for path in Path(package.__path__[0]).glob("triton_*.py")]
    found = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
    early = [node for node in found if "EARLY" in [arg.arg for arg in node.args.args]]
    return {node.name: node for node in early if node.name.endswith("_kernel")}


def statements(node: ast.FunctionDef) -> list[str]:
    return [ast.unparse(statement) for statement in node.body]


def may_precede_wait(call: ast.Call) -> bool:
    """Whether it reads and writes nothing, or prefetches as much as the launch says, which lies within each row."""
    name = ast.unparse(call.func)
    is_prefetch = name == "prefetch_rows" and ast.unparse(call.args[1]) == "PREFETCH"
    return is_prefetch or name in CALLS_BEFORE_WAIT or name.endswith(".to")


def test_every_kernel_that_starts_early_waits_before_it_reads_or_writes() -> None:
    kernels = early_kernels()
    names = {"gemv_kernel", "int4_gemv_kernel", "gemm_kernel", "sum_norm_kernel", "norm_quantize_kernel", "conv_kernel"}
    assert names | FRAME_KERNELS <= set(kernels)
    for name, node in kernels.items():
        assert "wait_for_inputs(EARLY)" in statements(node), name
        before = node.body[: statements(node).index("wait_for_inputs(EARLY)")]
        calls = [call for statement in before for call in ast.walk(statement) if isinstance(call, ast.Call)]
        assert [ast.unparse(call) for call in calls if not may_precede_wait(call)] == [], name


@pytest.mark.parametrize(
    ("capabilities", "early", "hopper"),
    [
        ([], False, False),
        ([(8, 9)], False, False),
        ([(9, 0)], True, True),
        ([(9, 0), (9, 0)], True, True),
        ([(8, 0), (9, 0)], False, False),
        ([(9, 0), (12, 0)], True, False),
    ],
)
def test_all_gpus_have_to_be_of_a_kind(
    monkeypatch: pytest.MonkeyPatch, capabilities: list[tuple[int, int]], early: bool, hopper: bool
) -> None:
    triton = pytest.importorskip("triton")
    from engine.ops import triton_early

    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(capabilities))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capabilities[index])
    assert triton_early.can_start_early() is early
    assert triton_early.is_hopper() is hopper
    monkeypatch.setattr(triton.knobs.runtime, "override_arch", "sm80")
    assert not triton_early.can_start_early()
    assert not triton_early.is_hopper()


def launches(
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[..., object],
    off: Sequence[str] = (),
    possible: bool = True,
    precision: str = "bf16",
) -> list[Launch]:
    """Return kernels and options of all launches of ``run(ops)``."""
    pytest.importorskip("triton")
    from engine.ops import triton_ops

    monkeypatch.setattr(triton_ops, "can_start_early", lambda: possible)
    ops = select_ops(EngineConfig(precision=precision, disabled_kernels=tuple(off)), torch.device("cuda"))
    launched: list[Launch] = []
    with intercept(lambda kernel, grid, args, options: launched.append((kernel.fn.__name__, options))):
        run(ops)
    assert launched
    return launched


def early_start(options: dict[str, Any]) -> int:
    """Return the value of EARLY; Triton's own option has to go with it."""
    early: int = options.get("EARLY", 0)
    assert options.get("launch_pdl", False) == (early > 0)
    return early


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "off", "possible", "wanted"),
    [(2, (), True, AT_START), (3, (), True, 0), (2, ("early",), True, 0), (2, (), False, 0)],
)
def test_decoding_starts_early_for_few_streams_unless_it_is_off(
    monkeypatch: pytest.MonkeyPatch, rows: int, off: tuple[str, ...], possible: bool, wanted: int
) -> None:
    padded, convs = torch.zeros(rows, 4 + 6, SIZE), make_convs(torch.float32, "cpu")
    for _, options in launches(monkeypatch, lambda ops: run_convs(ops, padded, convs), off, possible):
        assert early_start(options) == wanted


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bf16", "fp8", "int4"])
@pytest.mark.parametrize(
    ("rows", "off", "possible", "wanted"),
    [
        (1, (), True, AT_START),
        (3, (), True, AT_END),
        (64, (), True, AT_END),
        (65, (), True, 0),
        (3, ("early",), True, 0),
        (3, (), False, 0),
    ],
)
def test_layers_and_sampling_start_early_for_some_rows_unless_it_is_off(
    monkeypatch: pytest.MonkeyPatch, rows: int, off: tuple[str, ...], possible: bool, wanted: int, precision: str
) -> None:
    x, weights, kernels = torch.zeros(rows, SIZE).bfloat16(), make_weights(precision), early_kernels()
    launched = launches(monkeypatch, lambda ops: run_frame(ops, x, weights), off, possible, precision)
    assert {name for name, _ in launched} >= FRAME_KERNELS
    for name, options in launched:
        # Sampling writes little.
        most = AT_START if name == "sample_kernel" else AT_END
        assert early_start(options) == (min(wanted, most) if name in kernels else 0), name
        assert early_start(options) != AT_END or "start_next(EARLY)" in statements(kernels[name]), name


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("precision", "rows", "kernel", "ahead"),
    [
        ("bf16", 2, "gemv_kernel", [16, 16, 16]),
        ("bf16", 3, "gemm_kernel", [4, 4, 0]),
        ("fp8", 2, "gemv_kernel", [0, 16, 0]),
        ("fp8", 3, "gemm_kernel", [4, 4, 0]),
        ("int4", 1, "int4_gemv_kernel", [0, 0, 0]),
    ],
)
def test_no_more_of_weights_is_fetched_ahead_than_a_program_reads(
    monkeypatch: pytest.MonkeyPatch, precision: str, rows: int, kernel: str, ahead: list[int]
) -> None:
    x, ((both, back), *_) = torch.zeros(rows, SIZE).bfloat16(), make_weights(precision)
    short, ones = QUANTIZERS.get(precision, torch.Tensor.bfloat16)(torch.zeros(SIZE, SIZE)), torch.ones(SIZE)

    def run(ops: Any) -> None:
        ops.norm_swiglu(ResidualStream(x), ones, 1e-6, both)
        ops.add_linear(ResidualStream(x), torch.zeros(rows, 3 * SIZE).bfloat16(), back)
        ops.add_linear(ResidualStream(x), x, short)

    launched = [options for name, options in launches(monkeypatch, run, precision=precision) if name == kernel]
    assert [options.get("PREFETCH", 0) for options in launched] == ahead
    assert kernel != "gemm_kernel" or launched[-1]["PARTS"] > 1


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("off", "dtype", "wanted"),
    [((), torch.bfloat16, True), (("early",), torch.bfloat16, False), ((), torch.float32, False)],
)
def test_products_are_left_to_cublas_if_they_do_not_start_early_or_in_fp32(
    monkeypatch: pytest.MonkeyPatch, off: tuple[str, ...], dtype: torch.dtype, wanted: bool
) -> None:
    x, weight, ones = (torch.zeros(*shape, dtype=dtype) for shape in ((40, SIZE), (SIZE, SIZE), (SIZE,)))
    launched = launches(monkeypatch, lambda ops: ops.norm_linear(ResidualStream(x), ones, 1e-6, weight), off)
    assert ("gemm_kernel" in [name for name, _ in launched]) == wanted


@pytest.mark.gpu
@pytest.mark.parametrize(("row_bytes", "wanted"), [(1024, 16), (1008, 0)])
def test_short_rows_of_weights_are_not_fetched_ahead(row_bytes: int, wanted: int) -> None:
    pytest.importorskip("triton")
    from engine.ops.triton_linear import num_pieces

    assert num_pieces(row_bytes, 16) == wanted


def make_weights(precision: str) -> list[tuple[Weight, Weight]]:
    """Two layers of zeros for ``run_layers``."""
    to_weight = QUANTIZERS.get(precision, torch.Tensor.bfloat16)
    return 2 * [(to_weight(torch.zeros(8 * SIZE, SIZE)), to_weight(torch.zeros(SIZE, 3 * SIZE)))]


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


def run_layers(ops: Any, x: torch.Tensor, weights: Sequence[tuple[Weight, Weight]]) -> torch.Tensor:
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


def run_frame(ops: Any, x: torch.Tensor, weights: Sequence[tuple[Weight, Weight]]) -> None:
    """Layers, then the predictor's attention and sampling, both of what one more product writes."""
    rows, ones = x.shape[0], torch.ones(SIZE, dtype=x.dtype)
    run_layers(ops, x, weights)
    y = ops.norm_linear(ResidualStream(x), ones, 1e-6, weights[0][0])
    rope, cache = torch.zeros(2, 16, HEAD // 2), torch.zeros(2, rows, 16, 2, HEAD, dtype=x.dtype)
    ops.predictor_attention(y, (ones[:HEAD], ones[:HEAD]), 1e-6, tuple(rope), cache, 0, 1)
    zero = torch.zeros(rows, dtype=torch.int64)
    settings = SamplingTensors(torch.ones(rows), zero, torch.ones(rows), seed=zero, place=zero, frame=zero)
    ops.sample_next(y, settings, 1, torch.zeros(y.shape[1], 8, dtype=x.dtype))


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
