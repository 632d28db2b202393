"""Interface between the engine and a model family. Imports no torch at run time.

A family is two stages. ``SpeechModel`` (the talker stage) turns inputs into codes, one forward for many rows;
``DecodeStage`` turns codes into PCM in batches of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from engine.api import ClonedVoice, ReferenceAudio, SpeechRequest, VoiceInfo

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from engine.config import EngineConfig
    from engine.layers.transformer import AttentionContext
    from engine.memory.block_pool import SlotTable
    from engine.memory.kv_cache import KVShape, PagedKV
    from engine.program.buffers import StaticBuffers
    from engine.text.tokenizer import IncrementalEncoder

Pcm = npt.NDArray[np.float32]


class Tokenizer(Protocol):
    def incremental(self) -> IncrementalEncoder: ...


class TokenQueue:
    """Final text ids of one request, in order, and whether more can come."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.closed = False
        self.num_fed = 0

    @property
    def num_waiting(self) -> int:
        return len(self.ids) - self.num_fed

    def pop(self) -> int | None:
        """The next id, or None when none waits."""
        if self.num_fed == len(self.ids):
            return None
        self.num_fed += 1
        return self.ids[self.num_fed - 1]

    def pop_many(self, count: int = 1) -> list[int]:
        taken = self.ids[self.num_fed : self.num_fed + count]
        self.num_fed += len(taken)
        return taken


class VoiceReference(NamedTuple):
    """Reference that a row's speech continues; equal keys are equal references, and ``None`` is used once."""

    key: Hashable | None
    # Of a recording, to be heard as if the row had spoken them.
    frames: Sequence[Sequence[int]]
    # What else of a voice the family's own decode stage asks for.
    prompt: Any = None


@dataclass(slots=True)
class SequenceState:
    """State of one request in the talker stage; families add fields.

    ``inputs`` keeps every talker input from the first on, so that keys and values can be computed again after a
    preemption; the first ``num_computed`` of them are in the cache now.
    """

    text: TokenQueue
    inputs: list[Any] = field(default_factory=list)
    num_computed: int = 0
    # Once all inputs are computed, a sample is due.
    sample_pending: bool = False
    # Length of the first ``TalkerInputs``: what a voice prefix holds.
    num_prefix: int = 0
    # Prompt positions besides these, the text and its end.
    num_reserved: int = 0
    # Text ids that must be there before the first sample; None waits for all.
    num_prompt_tokens: int | None = 1
    # What the decode stage is to have heard before the row's own frames.
    reference: VoiceReference | None = None
    # Tokens drawn that stand for sound and were not spoken.
    num_dropped: int = 0
    # All codes sampled, control tokens included: ``SpeechModel.codes_per_step`` for each time.
    sampled_codes: array[int] = field(default_factory=lambda: array("h"))

    @property
    def num_due(self) -> int:
        return len(self.inputs) - self.num_computed

    def frame_cap(self) -> int | None:
        """Most codec frames for the text so far, of families that know; None leaves it to the engine's rule."""
        return None


class AwaitText(NamedTuple):
    """The row waits for text: it keeps its memory and takes no part in steps."""


class TalkerInputs(NamedTuple):
    """Talker inputs to compute next; ``sample`` says whether the last one's output is sampled."""

    inputs: Sequence[Any]
    sample: bool = True


class FrameOutcome(NamedTuple):
    """One codec frame."""

    codes: Sequence[int]


class ControlOutcome(NamedTuple):
    """A sampled token that makes no sound."""


class StopOutcome(NamedTuple):
    """The model ended its speech, or came to the end of what its text allows."""

    at_limit: bool = False


class FailedOutcome(NamedTuple):
    """This row cannot go on; the others can."""

    message: str


Outcome = FrameOutcome | ControlOutcome | StopOutcome | FailedOutcome


@dataclass(frozen=True, slots=True)
class ModelCapabilities:
    """Optional capabilities of a checkpoint: fields of ``EngineInfo`` by these names."""

    task: str = "custom_voice"
    takes_instruct: bool = False
    instructions: tuple[str, ...] = ()
    can_clone: bool = False
    embedding_size: int = 0
    num_codebooks: int = 0
    codebook_size: int = 0
    mel_bins: int = 0
    mel_per_code: int = 0
    transcript_optional: bool = False
    reads_phonemes: bool = False
    # Of one request, where the model has a limit of its own.
    max_text_tokens: int | None = None
    sampling_limits: dict[str, tuple[float, float]] = field(default_factory=dict)
    refused_fields: tuple[str, ...] = ()


class SpeechModel(Protocol):
    """The talker stage. Rows are what ``new_row`` returned; the engine owns positions, blocks and order."""

    @property
    def name(self) -> str: ...
    @property
    def kv_shape(self) -> KVShape: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def voices(self) -> tuple[VoiceInfo, ...]: ...
    @property
    def languages(self) -> tuple[str, ...]: ...
    @property
    def capabilities(self) -> ModelCapabilities: ...
    @property
    def max_positions(self) -> int: ...
    @property
    def codes_per_step(self) -> int:
        """Codes that one call of ``sample`` gives a row."""
        ...

    def new_sequence(self, request: SpeechRequest, seed: int) -> SequenceState:
        """State of a new request. Raises ``InvalidRequest`` and its kin."""
        ...

    def prefix_key(self, row: SequenceState) -> Hashable | None:
        """Equal keys have equal first inputs (``TalkerInputs`` of the first ``next_input``); None is never shared."""
        ...

    def next_input(self, row: SequenceState) -> AwaitText | TalkerInputs:
        """Return the next input, or that there is no text for it. Called only when all inputs so far are computed, and
        after ``AwaitText`` only when text has come or has closed. A row for which it raises fails alone."""
        ...

    def forward(
        self,
        rows: Sequence[SequenceState],
        inputs: Sequence[Sequence[Any]],
        positions: Tensor,
        context: AttentionContext,
    ) -> Tensor:
        """B rows of T inputs each, positions [B, T] -> hidden states [B, T, H]."""
        ...

    def sample(self, rows: Sequence[SequenceState], hidden: Tensor) -> list[Outcome]:
        """hidden [N, H] of the last input of each row; rows past ``len(rows)`` are padding. Draws its own noise.

        Row state changes only where an outcome is returned, so that a call that raises may be repeated row by row.
        """
        ...

    def force(self, row: SequenceState, codes: Sequence[int]) -> Outcome:
        """Return the outcome of these codes, recorded as if they had been sampled (teacher forcing).

        Raises ``InvalidRequest`` for codes that cannot have been.
        """
        ...


@dataclass(slots=True)
class DecodedAudio:
    """PCM of one slot out of one decode step, behind that of the step before."""

    slot: int
    pcm: Pcm
    error: str | None = None


class AudioSpec(Protocol):
    """Audio properties of a decode stage, known before it is created."""

    @property
    def sample_rate(self) -> int: ...
    @property
    def frame_samples(self) -> int: ...


class DecodeStage(Protocol):
    """The second stage: slots of carried state, fed frame by frame, stepped in batches of its own."""

    @property
    def sample_rate(self) -> int: ...
    @property
    def frame_samples(self) -> int: ...
    @property
    def chunk_frames(self) -> int:
        """Most frames a slot may hold before PCM leaves it, what is withheld included: with fewer fed ahead of
        playback no audio might ever come."""
        ...

    slots: SlotTable

    def reserve(self) -> int | None:
        """A fresh slot, or None when there is none, or no memory for one."""
        ...

    def prime(self, slot: int, reference: VoiceReference) -> None:
        """Let a fresh slot go on from frames that make no sound themselves; those of a key are worked off once."""
        ...

    def resume(
        self, slot: int, reference: VoiceReference | None, frames: Sequence[Sequence[int]], num_received: int
    ) -> int:
        """Let a fresh slot, not primed, go on behind a reference and frames of its own. PCM of the first
        ``num_received`` frames is not needed.

        Returns for how many of these it makes no PCM again; that of the others comes first.
        """
        ...

    def feed(self, slot: int, codes: Sequence[int]) -> None:
        """Queue one frame. Raises ``ValueError``, and takes nothing, when a code is in no codebook."""
        ...

    def finalize(self, slot: int) -> None:
        """No frame follows: whatever the stage withheld may leave."""
        ...

    def num_pending(self, slot: int) -> int:
        """Frames fed whose PCM has not left; 0 after ``finalize`` means all is out."""
        ...

    def makes_first_chunk(self, slot: int) -> bool:
        """Return whether the slot's first sound is on its way: it needs no more frames, and other work on the device
        would only make it late."""
        ...

    @property
    def busy(self) -> bool:
        """Return whether a step now would get anywhere; frames that wait for more frames do not count."""
        ...

    def step(self, slack_s: Mapping[int, float], wanted_frames: Mapping[int, int]) -> list[DecodedAudio]:
        """Run one round, or one slice of it: at most one ``DecodedAudio`` a slot.

        ``slack_s`` gives, for each slot, the seconds until its listener runs dry, and ``wanted_frames`` how many frames
        its next chunk should have: a slot with slack enough waits for them. Without end is the slack of a slot whose
        chunks have exactly this many, and 0 that of a slot that is fed nothing more for now.
        """
        ...

    def release(self, slot: int) -> None: ...

    def release_quarantined(self) -> None:
        """The step in flight has passed: released slots become free."""
        ...


class FrameProgramProtocol(Protocol):
    """Static buffers, the computations over them, and how rows fill them."""

    inputs: StaticBuffers
    outputs: StaticBuffers
    tokens: StaticBuffers

    def run_frame(self, num_rows: int, follows_prefill: int = 0) -> None:
        """``follows_prefill`` is 1 where each row's hidden state is that of ``source`` in the prefill before."""
        ...

    def run_prefill(self, num_tokens: int) -> None: ...

    def constants(self, row: SequenceState) -> dict[str, float]:
        """Return the part of ``inputs`` that is constant for all frames of a row."""
        ...

    def restore_row(self, slot: int, row: SequenceState) -> None:
        """Write what the device remembers of a row that begins in this slot with codes already sampled."""
        ...

    def stage_rows(self, rows: Sequence[SequenceState], start: int = 0) -> None:
        """Write what rows ``start``.. of ``inputs`` are for this frame; a row's last input is the one to compute.

        Raises when a row cannot be written; then each is tried alone.
        """
        ...

    def can_stage(self, items: Sequence[Any]) -> bool:
        """Return whether these inputs can be prefilled by ids."""
        ...

    def stage_tokens(self, start: int, row: SequenceState, items: Sequence[Any]) -> None: ...

    def stage_steps(self, start: int, rows: Sequence[SequenceState], slots: Sequence[int]) -> None:
        """Write the next input of each row to ``tokens``, one position each, from ``start`` on.

        Where that input is a frame, it is the last one of its slot, and may be read on the device by ``slots``.
        """
        ...

    def outcomes(self, rows: Sequence[SequenceState], out: npt.NDArray[np.int32]) -> list[Outcome]:
        """From these rows of ``outputs``; remembers the frames."""
        ...


class DecodeProgramProtocol(Protocol):
    """Static buffers of a codec, and the computation over them."""

    device: torch.device
    max_rows: int
    frame_samples: int
    ring: Tensor
    slots: Tensor
    sources: Tensor
    starts: Tensor
    first: Tensor
    pcm: Tensor
    finite: Tensor
    past: Tensor
    state: Tensor

    def rows_of(self, num_frames: int) -> int: ...
    def run(self, num_rows: int, num_frames: int) -> None: ...


class FrameContext(NamedTuple):
    """Resources of the engine that a frame program uses."""

    kv: PagedKV
    config: EngineConfig
    # Codes of each slot's latest frames, where the codec program reads them.
    ring: Tensor | None = None


class Codec(NamedTuple):
    """A codec for the engine's own decode stages."""

    # A decoder with carried state, for the stage without graphs.
    module: torch.nn.Module
    device: torch.device
    # The ring of codes on the device of the frames.
    new_ring: Callable[[EngineConfig, torch.device], Tensor]
    # Over the ring as the codec's device sees it.
    make_program: Callable[[EngineConfig, Tensor], DecodeProgramProtocol]


class Family(NamedTuple):
    """A loaded checkpoint. Every engine made of it shares the weights."""

    model: SpeechModel
    audio: AudioSpec
    make_frames: Callable[[FrameContext], FrameProgramProtocol]
    # A decode stage of its own with fresh state; ``None`` takes the engine's, over ``codec``.
    make_stage: Callable[[], DecodeStage] | None = None
    codec: Codec | None = None
    # Set where the checkpoint's encoders are loaded.
    encode_voice: Callable[[ReferenceAudio], ClonedVoice] | None = None
