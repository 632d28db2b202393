"""The flow's kernels against their plain reference: whole steps of cells at different steps and of different lengths.

On a CUDA device in bf16 and fp32; with TRITON_INTERPRET=1 and triton installed also on the CPU, in fp32.
"""

from __future__ import annotations

import dataclasses
import os

import pytest
import torch

from engine.models.cosyvoice3.config import FlowConfig
from engine.models.cosyvoice3.flow import Flow
from engine.models.cosyvoice3.flow_memory import BlockSequence, FlowBlockTask, FlowPageStore
from engine.models.cosyvoice3.flow_program import FlowProgram
from engine.ops.flow import FlowOps
from engine.ops.params import PagedCall
from tests.engine.models.cosyvoice3.flow_fixtures import SMALL, fill

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs CUDA, or TRITON_INTERPRET=1"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning"),
]
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
DTYPES = [torch.float32] if DEVICE.type == "cpu" else [torch.float32, torch.bfloat16]
# Relative, of the norm of the difference.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


def config_of(block_frames: int) -> FlowConfig:
    dit = dataclasses.replace(SMALL.dit, dim=32, head_dim=16, block_frames=block_frames, conv_pos_groups=2)
    return dataclasses.replace(SMALL, dit=dit)


def program_of(
    config: FlowConfig, dtype: torch.dtype, ops: FlowOps, num_cells: int = 4, num_pages: int = 6
) -> FlowProgram:
    flow = fill(Flow(config))
    flow.fuse()
    flow.to_compute(dtype)
    flow.to(DEVICE)
    if flow.table is not None:
        flow.table = type(flow.table)(*(values.to(DEVICE) for values in flow.table))
    pages = FlowPageStore(config, num_pages, dtype, DEVICE)
    generator = torch.Generator().manual_seed(1)
    for values in (pages.keys, pages.values, pages.tails):
        values.copy_(torch.randn(values.shape, generator=generator))
    for values in (pages.keys, pages.values):
        values.view(len(values), num_pages + 2, -1)[:, num_pages] = float("nan")
    program = FlowProgram(flow, pages, ops, num_cells, num_cells, num_pages)
    program.x.copy_(torch.randn(program.x.shape, generator=generator))
    program.conditions.copy_(torch.randn(program.conditions.shape, generator=generator))
    return program


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_frames", [10, 50])
def test_a_step_of_many_cells(dtype: torch.dtype, block_frames: int) -> None:
    from engine.ops.triton_flow import TritonFlowOps

    config, row = config_of(block_frames), BlockSequence([])
    programs = [program_of(config, dtype, ops) for ops in (FlowOps(), TritonFlowOps())]
    for program in programs:
        with torch.inference_mode():
            program.stage(
                [
                    FlowBlockTask(row, 1, 2, block_frames, [1, 2, 3], step=4),
                    FlowBlockTask(row, 2, 3, 4, [1, 2, 3, 4], step=4),
                    FlowBlockTask(row, 3, 0, block_frames, [5], step=9),
                ],
                4,
            )
            program.run(4, 6)
    plain, fused = programs
    for name in ("x", "conditions"):
        check(getattr(fused, name)[1:], getattr(plain, name)[1:], dtype)
    for name in ("keys", "values", "tails"):
        pair = [getattr(program.pages, name).unflatten(1, (8, -1))[:, 1:6] for program in programs]
        check(pair[1], pair[0], dtype)
        assert torch.equal(pair[1][:, :2], pair[0][:, :2]), "what others hold stays as it is"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_step_whose_attention_has_many_programs(dtype: torch.dtype) -> None:
    from engine.ops.triton_flow import MANY_PROGRAMS, TritonFlowOps

    num_cells, config, row = 16, config_of(50), BlockSequence([])
    config = dataclasses.replace(config, dit=dataclasses.replace(config.dit, heads=MANY_PROGRAMS // (2 * num_cells)))
    programs = [program_of(config, dtype, ops, num_cells, num_cells + 1) for ops in (FlowOps(), TritonFlowOps())]
    cells = [FlowBlockTask(row, 1 + i, i % 3, 50, [*range(1 + i - i % 3, 1 + i), 1 + i], 4) for i in range(num_cells)]
    for program in programs:
        with torch.inference_mode():
            program.stage(cells, num_cells)
            program.run(num_cells, num_cells + 1)
    check(programs[1].x[1:], programs[0].x[1:], dtype)


@pytest.mark.parametrize(("length", "context"), [(3, 10), (40, 50), (1500, 2)])
def test_snake_behind_the_past_of_its_channel(length: int, context: int) -> None:
    from engine.ops.triton_flow import TritonFlowOps

    x, alpha = torch.randn(2, 3, length, device=DEVICE), torch.rand(3, device=DEVICE) + 0.1
    states = torch.randn(2, 5 + 3 * context + 4, device=DEVICE).expand(2, -1, -1).clone()
    pasts = [state[:, 5 : 5 + 3 * context].view(2, 3, context) for state in states]
    found, wanted = TritonFlowOps().snake_join(x, alpha, pasts[0]), FlowOps().snake_join(x, alpha, pasts[1])
    torch.testing.assert_close(found, wanted, atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(states[0], states[1], atol=2e-6, rtol=2e-6)


def check(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    found, wanted = found.double(), wanted.double()
    assert torch.isfinite(found).all()
    assert float((found - wanted).norm() / wanted.norm()) < TOLERANCE[dtype]


def test_paged_attention_of_heads_without_norms() -> None:
    from engine.ops.reference_ops import ReferenceOps
    from engine.ops.triton_ops import TritonOps

    heads, group, size, page = 2, 7, 64, 16
    cache = torch.randn(2, 5, page, heads, size, device=DEVICE)
    caches = cache.clone(), cache.clone()
    qkv = torch.randn(2, heads * (group + 2) * size, device=DEVICE)
    tables = torch.tensor([[1, 2], [3, 0]], device=DEVICE, dtype=torch.int32)
    positions = torch.tensor([20, 5], device=DEVICE, dtype=torch.int32)
    angles = torch.arange(64.0, device=DEVICE)[:, None] * torch.rand(size // 2, device=DEVICE)
    for together in (False, True):
        call = PagedCall(tables, positions, (angles.cos(), angles.sin()), together)
        found = TritonOps().paged_attention(qkv, None, 1e-6, caches[0], call)
        wanted = ReferenceOps().paged_attention(qkv, None, 1e-6, caches[1], call)
        check(found, wanted, torch.float32)
        check(caches[0], caches[1], torch.float32)
