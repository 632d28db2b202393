"""CosyVoice3's talker stage over graphs. Its decode stage records its own."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import torch

from engine.config import EngineConfig
from engine.memory.kv_cache import PagedKV
from engine.memory.prefix_cache import PrefixCache
from engine.models.base import SpeechModel
from engine.models.cosyvoice3.model import CosyVoice3
from engine.models.cosyvoice3.talker_program import TalkerProgram
from engine.ops.select import select_ops
from engine.program.capture import GraphSet
from engine.runtime.graph_runner import GraphRunner

# 896 is no power of two: a step of one row takes 2.1 ms on an H200 with this kernel, and 1.2 without.
LEFT_TO_CUBLAS = ("gemv", "gemm")


def make_runner(model: SpeechModel, kv: PagedKV, prefixes: PrefixCache, config: EngineConfig) -> GraphRunner:
    """Over an engine's own cache."""
    assert isinstance(model, CosyVoice3)
    device = kv.data.device
    rows, width = (
        max(config.max_batch_size, config.fixed_batch_rows or 0),
        min(config.max_graph_positions, model.max_positions),
    )
    ops = select_ops(
        msgspec.structs.replace(config, disabled_kernels=(*config.disabled_kernels, *LEFT_TO_CUBLAS)), device
    )
    sizes = rows, config.max_prefill_positions, -(-width // config.block_size)
    program = TalkerProgram(model, kv, ops, *sizes)
    frames: Callable[..., None] = program.run_frame
    graphs = GraphSet(frames, device), GraphSet(program.run_prefill, device)
    with torch.inference_mode():
        return GraphRunner(model, kv, prefixes, config, program, *graphs, config.max_running_requests)
