"""Every limit of the engine, by name, with unit and range."""

from __future__ import annotations

import msgspec

from engine.api import CHUNK_FRAMES
from engine.errors import InvalidRequest
from engine.kernels import KERNELS
from engine.models.cosyvoice3.settings import CosyVoice3Settings

AT_LEAST_ONE = (
    "max_batch",
    "max_requests",
    "block_size",
    "num_blocks",
    "kv_memory_mb",
    "positions_per_request",
    "max_prefill_positions",
    "max_frames",
    "max_text_chars",
    "loop_limit_frames",
    "max_loop_period",
    "graph_positions",
    "pinned_rows",
    "pinned_blocks",
    "decode_threads",
    "windowed_context_frames",
)
AT_LEAST_ZERO = (
    "max_waiting",
    "max_waiting_segments",
    "reserved_memory_mb",
    "watermark_blocks",
    "preempt_margin_s",
    "max_prefixes",
    "max_prefix_positions",
    "min_frame_cap",
    "frames_per_text_token",
    "silence_limit_s",
    "lead_tick_s",
    "niceness",
    "decode_gather_slack_s",
    "reads_per_step",
    "max_kept_voices",
    "windowed_overlap_samples",
)
MAX_NICENESS = 19
MIN_SAMPLE_S = 0.1
"""Of less no speaker embedding can be had."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    max_batch: int = 32
    """Rows in one talker step."""
    max_requests: int = 64
    """Requests that hold a decoder slot at once."""
    max_waiting: int = 256
    """Requests queued behind them; more are refused with ``EngineOverloaded``, but for those of a reply that speaks."""
    max_waiting_segments: int = 1_024
    """Further segments of replies that speak, queued even behind those; beyond them these are refused, too."""
    block_size: int = 16
    """Positions in one KV block."""
    num_blocks: int | None = None
    """KV blocks in the pool; ``None`` takes what the next two allow."""
    kv_memory_mb: int | None = None
    """``None``: half a gigabyte on the CPU; on CUDA all that is free once weights and decoder slots are in place."""
    reserved_memory_mb: int = 6_144
    """Left free on CUDA then, for what the graphs compute in."""
    positions_per_request: int = 1_024
    """The pool holds no more than this for each of ``max_requests``; 80 s of speech take about 1,100."""
    watermark_blocks: int = 4
    """No request is admitted when fewer blocks than this would stay free."""
    preempt_margin_s: float = 1.0
    """A row loses its blocks only to one that runs dry so much sooner."""
    max_prefill_positions: int = 256
    """Prompt positions computed in one step beside the running rows: of more, fewer of those who come together wait."""
    max_prefixes: int = 64
    """Voice prefixes kept."""
    max_prefix_positions: int = 2_048
    """Positions in all kept prefixes together."""
    max_text_chars: int = 20_000
    """In one request."""
    min_frame_cap: int = 64
    """Frames that any request may have, whatever the length of its text."""
    frames_per_text_token: int = 10
    """A request is cut at ``min_frame_cap`` + this for every text token."""
    max_frames: int = 4_000
    """Hard cap; 80 ms each in Qwen3-TTS."""
    silence_limit_s: float = 3.0
    """So much near-silence after the text is spent ends the request."""
    silence_dbfs: float = -60.0
    """Of full scale; what is quieter is near-silence."""
    loop_limit_frames: int = 50
    """So many frames of one repeating pattern of code 0 end the request."""
    max_loop_period: int = 8
    """Frames in the longest pattern that is looked for."""
    lead_tick_s: float = 0.0
    """Rows at their leads step together, at moments so far apart; 0: each when its time has come. On a CPU an engine
    is made with 0.08 unless told."""
    niceness: int = 0
    """How far the engine's process stands back for others on the same cores: 0 to 19, as ``nice`` has it. On a CPU an
    engine is made with 5 unless told."""
    decode_gather_slack_s: float = 0.4
    """A listener with more lead than this waits until a larger decode call is full."""
    pinned_rows: int | None = None
    """Pad every talker step to so many rows, so that results do not depend on who else is in the batch."""
    pinned_blocks: int | None = None
    """Pad every block table to so many blocks, likewise."""
    starve_guard: bool = True
    """Ban the end of speech until the end-of-text row has been fed."""
    cpu_kernels: bool = True
    """What is made for the CPU alone (docs/design/engine.md); off runs plain torch, the slow reference."""
    graphs: bool | None = None
    """Run over static buffers, a step ahead of the host, as CUDA graphs where there is CUDA; ``None``: on CUDA only."""
    graph_positions: int = 5_120
    """The longest row that the graphs' block tables hold."""
    admission_share: float = 0.95
    """A paced request is refused when a step with one more would take more than this share of a frame's time."""
    hand_over_by_call: bool = True
    """Hand over what a decode call of the graphs made as it ends, the most urgent first, if one of its listeners has no
    more than ``decode_gather_slack_s``; what is left leaves with the step. Off waits for them all."""
    reads_per_step: int = 4
    """How often in a step the engine's process reads what a gateway says; 0: as it comes."""
    fast_start: bool = False
    """Record graphs, and warm up for more than one request, when they are first needed instead of at start."""
    decode_device: str | None = None
    """Where the graphs' codes become PCM: cpu, cuda or cuda:N; ``None``: where frames are made."""
    decode_threads: int = 1
    """Threads of its arithmetic when that is cpu."""
    fused_kernels: bool = True
    """Triton kernels in the graphs; off runs their plain reference."""
    plain_kernels: tuple[str, ...] = ()
    """Kernels, by name, that are off although the others are on."""
    chunk_frames: tuple[int, ...] = CHUNK_FRAMES
    """Frames of a request's first chunk, the second and so on; a listener about to run dry gets what is there."""
    voice_encoders: bool = True
    """Load the encoders of a checkpoint that clones voices; without them voices must come encoded."""
    min_sample_s: float = 1.0
    """The shortest recording to clone a voice from."""
    max_sample_s: float = 30.0
    """And the longest."""
    max_kept_voices: int = 32
    """Cloned voices whose prepared state is kept."""
    windowed_decode: bool = False
    """Decode from the codes of a left context instead of carried state: the slow reference."""
    windowed_context_frames: int = 25
    """Frames of that context."""
    windowed_overlap_samples: int = 480
    """Samples that the next chunk renders again, to fade over."""
    cosyvoice3: CosyVoice3Settings = CosyVoice3Settings()
    """Of that family's own stages."""

    def __post_init__(self) -> None:
        least = dict.fromkeys(AT_LEAST_ONE, 1) | dict.fromkeys(AT_LEAST_ZERO, 0)
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and not value >= low:  # nor what is no number
                raise InvalidRequest(f"{name} is {value}; it must be at least {low}", name)
        if self.niceness > MAX_NICENESS:
            raise InvalidRequest(f"niceness is {self.niceness}; it must be at most {MAX_NICENESS}", "niceness")
        if not self.admission_share > 0:
            raise InvalidRequest(f"admission_share is {self.admission_share}; it must be above 0", "admission_share")
        if not self.chunk_frames or any(frames not in CHUNK_FRAMES for frames in self.chunk_frames):
            known = ", ".join(map(str, CHUNK_FRAMES))
            raise InvalidRequest(f"chunk_frames is {self.chunk_frames}; it must list {known}", "chunk_frames")
        unknown = sorted(set(self.plain_kernels) - set(KERNELS))
        if unknown:
            raise InvalidRequest(f"plain_kernels names {unknown[0]!r}; known: {', '.join(KERNELS)}", "plain_kernels")
        if not MIN_SAMPLE_S <= self.min_sample_s <= self.max_sample_s:
            limits = f"it must lie in {MIN_SAMPLE_S}..max_sample_s, {self.max_sample_s}"
            raise InvalidRequest(f"min_sample_s is {self.min_sample_s}; {limits}", "min_sample_s")
        if self.pinned_rows is not None and self.pinned_rows < self.max_batch:
            raise InvalidRequest(f"pinned_rows is {self.pinned_rows}; max_batch is {self.max_batch}", "pinned_rows")
