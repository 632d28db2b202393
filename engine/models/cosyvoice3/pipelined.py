"""CosyVoice3's talker stage over graphs. Its decode stage captures its own."""

from __future__ import annotations

import msgspec

from engine.models.base import FrameContext
from engine.models.cosyvoice3.model import CosyVoice3
from engine.models.cosyvoice3.talker_program import TalkerProgram
from engine.ops.select import select_ops

# 896 is no power of two: a step of one row takes 2.1 ms on an H200 with this kernel, and 1.2 without.
LEFT_TO_CUBLAS = ("gemv", "gemm")


def make_frames(model: CosyVoice3, context: FrameContext) -> TalkerProgram:
    kv, config, _ = context
    rows = max(config.max_batch_size, config.fixed_batch_rows or 0)
    width = min(config.max_graph_positions, model.max_positions)
    ops = select_ops(
        msgspec.structs.replace(config, disabled_kernels=(*config.disabled_kernels, *LEFT_TO_CUBLAS)), kv.data.device
    )
    return TalkerProgram(model, kv, ops, rows, config.max_prefill_positions, -(-width // config.block_size))
