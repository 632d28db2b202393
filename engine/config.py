"""Every limit of the engine, by name, with unit and range."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from engine.api import CHUNK_FRAMES
from engine.errors import InvalidRequest
from engine.models.cosyvoice3.settings import CosyVoice3Settings
from engine.ops import KERNELS
from engine.validation import check_minimums

AT_LEAST_ONE = (
    "max_batch_size",
    "max_running_requests",
    "block_size",
    "num_blocks",
    "kv_memory_mb",
    "max_prefill_positions",
    "max_frames",
    "max_text_chars",
    "loop_limit_frames",
    "max_graph_positions",
    "fixed_batch_rows",
    "fixed_block_table_width",
)
AT_LEAST_ZERO = (
    "max_queued_requests",
    "max_queued_continuations",
    "watermark_blocks",
    "preempt_margin_s",
    "max_cached_prefixes",
    "min_frame_cap",
    "frames_per_text_token",
    "silence_limit_s",
    "lead_step_interval_s",
    "process_nice",
    "command_reads_per_step",
    "max_cached_voices",
)
MAX_NICENESS = 19
# Options that an operator may set; the other fields are constants, which tests and benchmarks replace.
OPTIONS = frozenset(
    {
        "max_batch_size",
        "max_running_requests",
        "max_prefill_positions",
        "memory_gb",
        "max_text_chars",
        "max_frames",
        "voice_encoders",
        "max_reference_s",
        "lazy_graph_capture",
        "decode_device",
        "precision",
        "process_nice",
        "cosyvoice3.talker.weights",
        "cosyvoice3.talker.allow_untrained_instructions",
        "cosyvoice3.talker.parse_control_tags",
        "cosyvoice3.flow.context_blocks",
    }
)
# Options of earlier versions.
REPLACED = dict.fromkeys(
    ("kv_memory_mb", "cosyvoice3.flow.memory_mb"), "memory_gb limits all memory of a GPU; remove the option"
)
PRECISIONS = ("bf16", "fp8", "int4")
# Minimum duration of a recording for cloning.
MIN_REFERENCE_S = 1.0


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    # Maximum of rows in a talker step. The default on CUDA, for Qwen3-TTS: a third of the slots, 32 to 384.
    max_batch_size: int = 32
    # Maximum of requests that hold a decoder slot. The default on CUDA, for Qwen3-TTS: 64 to 1,536, by free memory.
    max_running_requests: int = 64
    # Which sizes follow the memory that is free on the device; on CUDA those that are not set.
    sizes_by_memory: tuple[str, ...] = ()
    # Maximum of queued requests; more are refused with ``EngineOverloaded``.
    max_queued_requests: int = 256
    # The same for further segments of active replies, which queue even behind those.
    max_queued_continuations: int = 1_024
    # Positions in one KV block.
    block_size: int = 16
    # KV blocks in the pool; ``None`` derives them from ``kv_memory_mb`` and ``max_running_requests``.
    num_blocks: int | None = None
    # Memory of a CUDA device, in units of 2^30 bytes, for all that an engine holds there: weights, cache, slots, graphs
    # and workspace. ``None``: all of it, of which 6 GB are left free for the workspace of the graphs.
    memory_gb: float | None = None
    # Memory of the KV cache. ``None``: 512 MB on the CPU; on CUDA what ``memory_gb`` leaves.
    kv_memory_mb: int | None = None
    # Blocks that stay free: a request that would leave fewer is not admitted.
    watermark_blocks: int = 4
    # A row is preempted only for one whose deadline is this much earlier.
    preempt_margin_s: float = 1.0
    # Maximum of prompt positions per step beside running rows; new requests beyond it wait a step. The default on CUDA
    # without ``fixed_batch_rows``: 320 for Qwen3-TTS, and 2,048 for CosyVoice3 from 16 GB of free memory on.
    max_prefill_positions: int = 256
    # Maximum of cached voice prefixes.
    max_cached_prefixes: int = 64
    # Maximum text of a request.
    max_text_chars: int = 20_000
    # Minimum of the frame cap, whatever the length of the text.
    min_frame_cap: int = 64
    # Frames added to ``min_frame_cap`` per text token; the sum is the frame cap of a request.
    frames_per_text_token: int = 10
    # Maximum of frames of a request, 80 ms each in Qwen3-TTS.
    max_frames: int = 4_000
    # Duration of near-silence after the end of the text that ends the request.
    silence_limit_s: float = 3.0
    # Frames of a repeating pattern of code 0 that end the request.
    loop_limit_frames: int = 50
    # Interval at which rows at their leads step together; 0 steps each at its own time. The CPU's default is 0.08.
    lead_step_interval_s: float = 0.0
    # Niceness of the engine process, 0 to 19. The CPU's default is 5.
    process_nice: int = 0
    # Rows to which every talker step is padded, so that results are independent of other requests.
    fixed_batch_rows: int | None = None
    # Blocks to which every block table is padded, for the same reason.
    fixed_block_table_width: int | None = None
    # Ban the end of speech until the end-of-text row has been fed.
    ban_eos_until_text_end: bool = True
    # Optimizations for the CPU (docs/design/engine.md); off runs plain torch, the slow reference.
    cpu_optimizations: bool = True
    # Run over static buffers, one step ahead of the host, as CUDA graphs on CUDA. ``None``: on CUDA only.
    graphs: bool | None = None
    # Sample first frames from the states of their prefill; off runs the talker again, the slow reference.
    sample_from_prefill: bool = True
    # Let the talker wait, with at most 32 running requests, while all that could run wait for first chunks whose frames
    # are there; off runs it beside them. No effect on Qwen3-TTS.
    first_chunks_alone: bool = True
    # Maximum positions of a row in the block tables of the graphs.
    max_graph_positions: int = 5_120
    # Maximum share of the frame time that a step may take with one more paced request.
    admission_utilization: float = 0.95
    # Emit the audio of each decode call when it ends, if one of its listeners is about to run dry; off emits it with
    # the step.
    emit_per_decode_call: bool = True
    # Give graphs priorities beside each other, as in docs/design/gpu.md; off captures all at the same.
    graph_priorities: bool = True
    # Send first chunks from the engine's thread, as far as the socket takes them; off leaves all to the writing thread.
    send_first_chunks_at_once: bool = True
    # Read the commands of gateways without TLS on the engine's thread; off reads all on threads of their own.
    commands_on_engine_thread: bool = True
    # Reads of the commands of each gateway that has a thread, per step; 0 reads them at once.
    command_reads_per_step: int = 4
    # Carry out commands and prepare newcomers also while the device computes; off does so behind the wait for it alone.
    commands_beside_device: bool = True
    # Capture graphs, and warm up larger batches, on first use instead of at the start.
    lazy_graph_capture: bool = False
    # Device of the codec decoder with graphs: cpu, cuda or cuda:N. ``None``: that of the talker.
    decode_device: str | None = None
    # Weights of talker and code predictor: bf16 or, on CUDA, fp8 or int4, made while loading. With fp8 the KV cache of
    # Qwen3-TTS is fp8, too, stored unscaled, if keys are at most 448.
    precision: str = "bf16"
    # Use Triton kernels in the graphs; off runs their plain reference.
    triton_kernels: bool = True
    # Names of kernels that are off although the others are on.
    disabled_kernels: tuple[str, ...] = ()
    # Frames of a request's first chunk, the second and so on; smaller chunks are emitted before audio runs out.
    chunk_frames: tuple[int, ...] = CHUNK_FRAMES
    # Load the encoders of a checkpoint that clones voices; off accepts encoded voices only.
    voice_encoders: bool = True
    # Maximum duration of a recording for cloning.
    max_reference_s: float = 30.0
    # Maximum of cloned voices whose prepared state is cached.
    max_cached_voices: int = 32
    # Settings of the stages of CosyVoice3.
    cosyvoice3: CosyVoice3Settings = CosyVoice3Settings()

    def __post_init__(self) -> None:
        check_minimums(self, dict.fromkeys(AT_LEAST_ONE, 1) | dict.fromkeys(AT_LEAST_ZERO, 0))
        check_minimums(self, {"max_reference_s": MIN_REFERENCE_S})
        if self.memory_gb is not None and not 0 < self.memory_gb < math.inf:
            raise InvalidRequest(f"memory_gb is {self.memory_gb}; it must be above 0", "memory_gb")
        if self.process_nice > MAX_NICENESS:
            raise InvalidRequest(
                f"process_nice is {self.process_nice}; it must be at most {MAX_NICENESS}", "process_nice"
            )
        if not self.admission_utilization > 0:
            raise InvalidRequest(
                f"admission_utilization is {self.admission_utilization}; it must be above 0", "admission_utilization"
            )
        if self.precision not in PRECISIONS:
            raise InvalidRequest(f"precision is {self.precision!r}; known: {', '.join(PRECISIONS)}", "precision")
        if not self.chunk_frames or any(frames not in CHUNK_FRAMES for frames in self.chunk_frames):
            known = ", ".join(map(str, CHUNK_FRAMES))
            raise InvalidRequest(f"chunk_frames is {self.chunk_frames}; it must list {known}", "chunk_frames")
        unknown = sorted(set(self.disabled_kernels) - set(KERNELS))
        if unknown:
            raise InvalidRequest(
                f"disabled_kernels names {unknown[0]!r}; known: {', '.join(KERNELS)}", "disabled_kernels"
            )
        if self.fixed_batch_rows is not None and self.fixed_batch_rows < self.max_batch_size:
            raise InvalidRequest(
                f"fixed_batch_rows is {self.fixed_batch_rows}; max_batch_size is {self.max_batch_size}",
                "fixed_batch_rows",
            )


# Options that decide what a request may be and how it sounds: engines of one pool must share them.
SPEECH_OPTIONS = (
    "max_text_chars",
    "min_frame_cap",
    "frames_per_text_token",
    "max_frames",
    "silence_limit_s",
    "loop_limit_frames",
    "ban_eos_until_text_end",
    "precision",
    "voice_encoders",
    "max_reference_s",
    "cosyvoice3",
)


def speech_options(config: EngineConfig) -> dict[str, Any]:
    """Return ``SPEECH_OPTIONS`` by name."""
    return {name: msgspec.to_builtins(getattr(config, name)) for name in SPEECH_OPTIONS}


def check_options(options: Mapping[str, object], prefix: str = "") -> None:
    """Raise ``InvalidRequest`` for an option that is a constant. Unknown ones are refused where the engine is made."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            check_options(value, f"{prefix}{name}.")
        elif f"{prefix}{name}" not in OPTIONS and (constant := _constant(f"{prefix}{name}")) is not None:
            instead = REPLACED.get(f"{prefix}{name}", "remove the option")
            raise InvalidRequest(
                f"{prefix}{name} is a constant of the engine, {constant}: {instead}", f"{prefix}{name}"
            )


def _constant(path: str) -> str | None:
    """Return the value of a field of the configuration as text; ``None`` if there is no such field."""
    *groups, name = path.split(".")
    section: object = EngineConfig()
    for group in groups:
        section = getattr(section, group, None)
    return repr(getattr(section, name)) if name in getattr(section, "__struct_fields__", ()) else None
