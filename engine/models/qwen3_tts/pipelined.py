"""Qwen3-TTS over graphs: both programs, their graphs, and what they share."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from engine.config import EngineConfig
from engine.memory.kv_cache import PagedKV
from engine.memory.prefix_cache import PrefixCache
from engine.models.base import SpeechModel
from engine.models.qwen3_tts.codec_decoder import CodecDecoder
from engine.models.qwen3_tts.codec_program import CodecProgram
from engine.models.qwen3_tts.frame_inputs import FrameInputs
from engine.models.qwen3_tts.frame_program import RING_FRAMES
from engine.models.qwen3_tts.model import Qwen3TTS
from engine.ops.select import select_ops
from engine.program.capture import GraphSet
from engine.program.decode_executor import create_decode_executor
from engine.runtime.graph_decode_stage import GraphDecodeStage
from engine.runtime.graph_runner import GraphRunner
from engine.runtime.stages import GraphStageFactories


@torch.inference_mode()
def make_graphs(
    model: Qwen3TTS, codec: CodecDecoder, config: EngineConfig, device: torch.device
) -> GraphStageFactories:
    ops, slots = select_ops(config, device), config.max_running_requests
    ring = torch.zeros(slots + 2, RING_FRAMES, model.config.talker.num_code_groups, dtype=torch.int64, device=device)
    there = codec.pre_conv.conv.weight.device
    lane = create_decode_executor(ring, there, config.decode_device is not None, config.decode_threads)
    heard_before = math.ceil(config.max_reference_s * codec.config.sample_rate / codec.config.frame_samples)
    decoder = CodecProgram(codec, select_ops(config, there), lane.ring, slots, slots, config.max_frames + heard_before)
    stage = GraphDecodeStage(
        decoder,
        GraphSet(decoder.run, there),
        lane,
        slots,
        codec.config.sample_rate,
        config.decode_batching_slack_s,
        config.max_cached_voices,
    )

    def make_runner(_: SpeechModel, kv: PagedKV, prefixes: PrefixCache, config: EngineConfig) -> GraphRunner:
        rows = max(config.max_batch_size, config.fixed_batch_rows or 0)
        width = min(config.max_graph_positions, model.max_positions)
        sizes = dict(max_rows=rows, max_tokens=config.max_prefill_positions, max_blocks=-(-width // config.block_size))
        program = FrameInputs(model, kv, ops, ring, num_slots=slots, **sizes)
        run: Callable[..., None] = program.run_frame
        return GraphRunner(
            model, kv, prefixes, config, program, GraphSet(run, device), GraphSet(program.run_prefill, device), slots
        )

    return GraphStageFactories(stage, make_runner)
