"""Qwen3-TTS over graphs: both programs, and the ring of codes between them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.models.base import FrameContext
from engine.models.qwen3_tts.codec_decoder import CodecDecoder
from engine.models.qwen3_tts.codec_program import CodecProgram
from engine.models.qwen3_tts.frame_inputs import FrameInputs
from engine.models.qwen3_tts.frame_program import RING_FRAMES
from engine.models.qwen3_tts.model import Qwen3TTS
from engine.ops.select import select_ops


def new_ring(model: Qwen3TTS, config: EngineConfig, device: torch.device) -> Tensor:
    sizes = config.max_running_requests + 2, RING_FRAMES, model.config.talker.num_code_groups
    return torch.zeros(sizes, dtype=torch.int64, device=device)


def make_codec_program(codec: CodecDecoder, config: EngineConfig, ring: Tensor) -> CodecProgram:
    slots = config.max_running_requests
    num_reference = math.ceil(config.max_reference_s * codec.config.sample_rate / codec.config.frame_samples)
    ops = select_ops(config, codec.pre_conv.conv.weight.device)
    return CodecProgram(codec, ops, ring, slots, slots, config.max_frames + num_reference)


def make_frames(model: Qwen3TTS, context: FrameContext) -> FrameInputs:
    kv, config, ring = context
    assert ring is not None
    width = min(config.max_graph_positions, model.max_positions)
    return FrameInputs(
        model,
        kv,
        select_ops(config, kv.data.device),
        ring,
        num_slots=config.max_running_requests,
        max_rows=max(config.max_batch_size, config.fixed_batch_rows or 0),
        max_tokens=config.max_prefill_positions,
        max_blocks=-(-width // config.block_size),
    )
