"""Every limit of the engine, by name, with unit and range."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from engine.api import CHUNK_FRAMES
from engine.errors import InvalidRequest
from engine.models.cosyvoice3.settings import CosyVoice3Settings
from engine.ops import KERNELS

AT_LEAST_ONE = (
    "max_batch_size",
    "max_running_requests",
    "block_size",
    "num_blocks",
    "kv_memory_mb",
    "positions_per_request",
    "max_prefill_positions",
    "max_frames",
    "max_text_chars",
    "loop_limit_frames",
    "max_loop_period",
    "max_graph_positions",
    "fixed_batch_rows",
    "fixed_block_table_width",
    "decode_threads",
)
AT_LEAST_ZERO = (
    "max_queued_requests",
    "max_queued_continuations",
    "reserved_memory_mb",
    "watermark_blocks",
    "preempt_margin_s",
    "max_cached_prefixes",
    "max_cached_prefix_positions",
    "min_frame_cap",
    "frames_per_text_token",
    "silence_limit_s",
    "lead_step_interval_s",
    "process_nice",
    "decode_batching_slack_s",
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
        "kv_memory_mb",
        "max_text_chars",
        "max_frames",
        "voice_encoders",
        "max_reference_s",
        "lazy_graph_capture",
        "decode_device",
        "process_nice",
        "cosyvoice3.talker.weights",
        "cosyvoice3.talker.allow_untrained_instructions",
        "cosyvoice3.talker.parse_control_tags",
        "cosyvoice3.flow.context_blocks",
        "cosyvoice3.flow.memory_mb",
    }
)
# Of less no speaker embedding can be had.
MIN_SAMPLE_S = 0.1


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    # Rows in one talker step.
    max_batch_size: int = 32
    # Requests that hold a decoder slot at once.
    max_running_requests: int = 64
    # Requests queued behind them; more are refused with ``EngineOverloaded``, but for those of a reply that speaks.
    max_queued_requests: int = 256
    # Further segments of replies that speak, queued even behind those; beyond them these are refused, too.
    max_queued_continuations: int = 1_024
    # Positions in one KV block.
    block_size: int = 16
    # KV blocks in the pool; ``None`` takes what the next two allow.
    num_blocks: int | None = None
    # ``None``: half a gigabyte on the CPU; on CUDA all that is free once weights and decoder slots are in place.
    kv_memory_mb: int | None = None
    # Left free on CUDA then, for what the graphs compute in.
    reserved_memory_mb: int = 6_144
    # The pool holds no more than this for each of ``max_running_requests``; 80 s of speech take about 1,100.
    positions_per_request: int = 1_024
    # No request is admitted when fewer blocks than this would stay free.
    watermark_blocks: int = 4
    # A row loses its blocks only to one that runs dry so much sooner.
    preempt_margin_s: float = 1.0
    # Prompt positions computed in one step beside the running rows: of more, fewer of those who come together wait.
    max_prefill_positions: int = 256
    # Voice prefixes kept.
    max_cached_prefixes: int = 64
    # Positions in all kept prefixes together.
    max_cached_prefix_positions: int = 2_048
    # In one request.
    max_text_chars: int = 20_000
    # Frames that any request may have, whatever the length of its text.
    min_frame_cap: int = 64
    # A request is cut at ``min_frame_cap`` + this for every text token.
    frames_per_text_token: int = 10
    # Hard cap; 80 ms each in Qwen3-TTS.
    max_frames: int = 4_000
    # So much near-silence after the text is spent ends the request.
    silence_limit_s: float = 3.0
    # Of full scale; what is quieter is near-silence.
    silence_dbfs: float = -60.0
    # Frames of one repeating pattern of code 0 that end the request.
    loop_limit_frames: int = 50
    # Frames in the longest pattern that is looked for.
    max_loop_period: int = 8
    # Rows at their leads step together, at moments so far apart; 0: each when its time has come. On a CPU an engine is
    # made with 0.08 unless told.
    lead_step_interval_s: float = 0.0
    # How far the engine's process stands back for others on the same cores: 0 to 19, as ``nice`` has it. On a CPU an
    # engine is made with 5 unless told.
    process_nice: int = 0
    # A listener with more lead than this waits until a larger decode call is full.
    decode_batching_slack_s: float = 0.4
    # Rows to which every talker step is padded, so that results do not depend on the other requests of the batch.
    fixed_batch_rows: int | None = None
    # Blocks to which every block table is padded, likewise.
    fixed_block_table_width: int | None = None
    # Ban the end of speech until the end-of-text row has been fed.
    ban_eos_until_text_end: bool = True
    # What is made for the CPU alone (docs/design/engine.md); off runs plain torch, the slow reference.
    cpu_optimizations: bool = True
    # Run over static buffers, a step ahead of the host, as CUDA graphs where there is CUDA; ``None``: on CUDA only.
    graphs: bool | None = None
    # The longest row that the graphs' block tables hold.
    max_graph_positions: int = 5_120
    # A paced request is refused when a step with one more would take more than this share of a frame's time.
    admission_utilization: float = 0.95
    # Hand over what a decode call of the graphs made as it ends, the most urgent first, if one of its listeners has no
    # more than ``decode_batching_slack_s``; what is left leaves with the step. Off waits for them all.
    emit_per_decode_call: bool = True
    # How often in a step the engine's process reads what a gateway says; 0: as it comes.
    command_reads_per_step: int = 4
    # Record graphs, and warm up for more than one request, when they are first needed instead of at start.
    lazy_graph_capture: bool = False
    # Where the graphs' codes become PCM: cpu, cuda or cuda:N; ``None``: where frames are made.
    decode_device: str | None = None
    # Threads of its arithmetic when that is cpu.
    decode_threads: int = 1
    # Triton kernels in the graphs; off runs their plain reference.
    triton_kernels: bool = True
    # Kernels, by name, that are off although the others are on.
    disabled_kernels: tuple[str, ...] = ()
    # Frames of a request's first chunk, the second and so on; a listener about to run dry gets what is there.
    chunk_frames: tuple[int, ...] = CHUNK_FRAMES
    # Load the encoders of a checkpoint that clones voices; without them voices must come encoded.
    voice_encoders: bool = True
    # The shortest recording to clone a voice from.
    min_reference_s: float = 1.0
    # And the longest.
    max_reference_s: float = 30.0
    # Cloned voices whose prepared state is kept.
    max_cached_voices: int = 32
    # Of that family's own stages.
    cosyvoice3: CosyVoice3Settings = CosyVoice3Settings()

    def __post_init__(self) -> None:
        least = dict.fromkeys(AT_LEAST_ONE, 1) | dict.fromkeys(AT_LEAST_ZERO, 0)
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and not value >= low:  # nor what is no number
                raise InvalidRequest(f"{name} is {value}; it must be at least {low}", name)
        if self.process_nice > MAX_NICENESS:
            raise InvalidRequest(
                f"process_nice is {self.process_nice}; it must be at most {MAX_NICENESS}", "process_nice"
            )
        if not self.admission_utilization > 0:
            raise InvalidRequest(
                f"admission_utilization is {self.admission_utilization}; it must be above 0", "admission_utilization"
            )
        if not self.chunk_frames or any(frames not in CHUNK_FRAMES for frames in self.chunk_frames):
            known = ", ".join(map(str, CHUNK_FRAMES))
            raise InvalidRequest(f"chunk_frames is {self.chunk_frames}; it must list {known}", "chunk_frames")
        unknown = sorted(set(self.disabled_kernels) - set(KERNELS))
        if unknown:
            raise InvalidRequest(
                f"disabled_kernels names {unknown[0]!r}; known: {', '.join(KERNELS)}", "disabled_kernels"
            )
        if not MIN_SAMPLE_S <= self.min_reference_s <= self.max_reference_s:
            limits = f"it must lie in {MIN_SAMPLE_S}..max_reference_s, {self.max_reference_s}"
            raise InvalidRequest(f"min_reference_s is {self.min_reference_s}; {limits}", "min_reference_s")
        if self.fixed_batch_rows is not None and self.fixed_batch_rows < self.max_batch_size:
            raise InvalidRequest(
                f"fixed_batch_rows is {self.fixed_batch_rows}; max_batch_size is {self.max_batch_size}",
                "fixed_batch_rows",
            )


def check_options(options: Mapping[str, object], prefix: str = "") -> None:
    """Raise ``InvalidRequest`` for an option that is a constant. Unknown ones are refused where the engine is made."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            check_options(value, f"{prefix}{name}.")
        elif f"{prefix}{name}" not in OPTIONS and (constant := _constant(f"{prefix}{name}")) is not None:
            raise InvalidRequest(
                f"{prefix}{name} is a constant of the engine, {constant}: remove the option", f"{prefix}{name}"
            )


def _constant(path: str) -> str | None:
    """Return the value of a field of the configuration as text; ``None`` if there is no such field."""
    *groups, name = path.split(".")
    section: object = EngineConfig()
    for group in groups:
        section = getattr(section, group, None)
    return repr(getattr(section, name)) if name in getattr(section, "__struct_fields__", ()) else None
