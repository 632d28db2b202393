"""The memory that the calls of a step need beside weights, slots and cache, measured; the cache gets the rest."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import torch

from engine.config import EngineConfig
from engine.errors import InvalidRequest
from engine.memory.budget import GB, free_bytes
from engine.memory.kv_cache import PagedKV
from engine.models.base import FrameProgramProtocol, SpeechModel
from engine.ops.parallel_compile import run_compiled
from engine.runtime.call_planner import CALL_FRAMES
from engine.runtime.codec_runners import GraphCodec

log = logging.getLogger(__name__)

# A set of graphs needs what its largest call needs, and scratch memory of products on a stream of its own.
STREAM_BYTES = 64 * 2**20
# Memory is reserved in large pieces.
SPARE = 1.2
# For reading recordings of voices to clone.
ENCODER_BYTES = GB // 2
# Of the cache, at least: a segment of 150 text tokens with all its frames.
MIN_POSITIONS = 1_792

Run = Callable[[], object]


def fit_blocks(
    model: SpeechModel,
    make_frames: Callable[[PagedKV], FrameProgramProtocol],
    codec: GraphCodec | None,
    config: EngineConfig,
    dtype: torch.dtype,
    device: torch.device,
    wanted: int,
    num_spare: int,
) -> int:
    """Number of KV blocks, at most ``wanted``, that a CUDA device's limit leaves beside the workspace of all graphs.

    Weights and slots are allocated already; ``num_spare`` bytes more stay free. Raises ``InvalidRequest`` if too little
    is left for one reply.
    """
    program = make_frames(PagedKV(model.kv_shape, 1, config.block_size, dtype, device))
    needed = workspace_bytes(call_groups(program, codec, config), device)
    block_bytes = PagedKV.block_bytes(model.kv_shape, config.block_size, dtype)
    # The program that follows this one has as many tables and buffers.
    left = free_bytes(device) - needed - num_spare
    del program
    least = min(wanted, -(-MIN_POSITIONS // config.block_size))
    # Two blocks are padding.
    num_blocks = min(wanted, left // block_bytes - 2)
    if num_blocks < least:
        missing = ((least + 2) * block_bytes - left) / GB
        raise InvalidRequest(
            f"memory_gb is {config.memory_gb}; weights, slots and graphs leave too little for the cache of one reply: "
            f"{missing:.2f} are missing{voice_note(model, codec, config)}",
            "memory_gb",
        )
    log.info("memory within the budget", extra={"workspace_mb": needed >> 20, "blocks": num_blocks})
    return num_blocks


def voice_note(model: SpeechModel, codec: GraphCodec | None, config: EngineConfig) -> str:
    """State what the decoder states of cloned voices take, if there are any."""
    if codec is None or not model.capabilities.can_clone:
        return ""
    return f"; max_cached_voices is {config.max_cached_voices}, which takes {codec.max_reference_bytes / GB:.2f}"


def call_groups(program: FrameProgramProtocol, codec: GraphCodec | None, config: EngineConfig) -> list[list[Run]]:
    """The largest calls of each set of graphs and priority."""
    rows = max(config.max_batch_size, config.fixed_batch_rows or 0)
    groups: list[list[Run]] = [
        [lambda: program.run_frame(rows)],
        [lambda: program.run_prefill(config.max_prefill_positions)],
    ]
    if codec is not None:
        decoder = codec.program
        by_priority: dict[int, list[Run]] = {}
        for n in CALL_FRAMES:
            priority = codec.graphs.priority_of(decoder.rows_of(n), n)
            by_priority.setdefault(priority, []).append(partial(decoder.run, decoder.rows_of(n), n))
        groups += by_priority.values()
    return groups


def workspace_bytes(groups: list[list[Run]], device: torch.device) -> int:
    """Bytes for all groups: calls of one share memory, groups do not, and a call runs once before it is captured."""

    def run_all() -> None:
        for group in groups:
            for run in group:
                run()

    def measure(_: bool) -> list[int]:
        run_all()  # what stays allocated from the first call on is part of no call
        return [max(peak_bytes(run, device) for run in group) for group in groups]

    peaks = run_compiled(measure, run_all)
    return int(SPARE * (sum(peaks) + max(peaks))) + STREAM_BYTES * len(groups)


def peak_bytes(run: Run, device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
