"""What the two shaped fakes share: a talker whose codes are a pure function of its inputs, but which only the paged
cache can tell what they were.

Queries are zero, so attention is the plain mean of the values, and mean times length is their sum: small integers,
exact in fp32 whatever the batch. A wrong block, mask or position, a row padded or fed out of turn, changes every
later code.
``reference_codes`` computes the same sums without cache, batch or scheduler.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.api import FinishReason, SpeechRequest, UnknownVoice, VoiceInfo
from engine.config import EngineConfig
from engine.layers.transformer import AttentionContext
from engine.memory.kv_cache import KVShape
from engine.models.base import (
    AwaitText,
    ControlOutcome,
    DecodeStage,
    FailedOutcome,
    FrameOutcome,
    ModelCapabilities,
    Outcome,
    Pcm,
    SequenceState,
    SpeechModel,
    StopOutcome,
    TalkerInputs,
    TokenQueue,
)
from engine.text.tokenizer import IncrementalEncoder

KV_SHAPE = KVShape(num_layers=2, num_kv_heads=1, head_dim=4)
LAYER_STEP, POSITION_STEP, ITEM_STEP, DIGITS = 97, 40_503, 2_654_435_761, 16
SHIFTS = np.arange(5, 5 + 4 * KV_SHAPE.head_dim, 4)
CONTROL_CODE = -1
# Rows in front of the text, by voice.
VOICES = {"ada": (7, 7, 1), "bo": (7, 7, 2, 2, 2)}


class CharTokenizer:
    """Every character that is no space is an id, final at once."""

    def incremental(self) -> IncrementalEncoder:
        return self

    def push(self, text: str) -> list[int]:
        return [ord(character) for character in text if not character.isspace()]

    def finish(self) -> list[int]:
        return []


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """What goes wrong with a row, and at which frame; written ``kind@frame`` in ``SpeechRequest.instruct``.

    Kinds: new_row, next_input, forward, sample, nan, code (in no codebook), decode (the decoder raises for it), and
    stop, which is no fault but the frame that the model, its text spent, ends its speech at.
    """

    kind: str = ""
    frame: int = 0

    @staticmethod
    def parse(instruct: str) -> InjectedFault:
        kind, _, frame = instruct.partition("@")
        return InjectedFault(kind, int(frame or 0))

    def triggers(self, kind: str, frame: int) -> bool:
        return self.kind == kind and self.frame == frame


@dataclass(slots=True)
class ChecksumSequence(SequenceState):
    prefix: tuple[int, ...] = ()
    seed: int = 0
    codes: list[list[int]] = field(default_factory=list)
    num_sampled: int = 0
    fault: InjectedFault = InjectedFault()

    def draw(self, checksum: Sequence[int]) -> int:
        return zlib.crc32(repr((self.seed, self.num_sampled, *checksum)).encode())

    def ends(self, by_chance: bool) -> bool:
        return len(self.codes) >= self.fault.frame if self.fault.kind == "stop" else by_chance

    def check(self, kind: str) -> None:
        if self.fault.triggers(kind, len(self.codes)):
            raise RuntimeError(f"a fault in {kind}")


def digits(items: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], layer: int) -> npt.NDArray[np.int64]:
    """[...] -> [..., head_dim]: what one input adds to the sums."""
    mixed = items * ITEM_STEP + positions * POSITION_STEP + layer * LAYER_STEP
    return (mixed[..., None] >> SHIFTS) % DIGITS


def checksum_of(items: Sequence[int]) -> list[int]:
    """The slow way: sums over the whole sequence."""
    values, positions = np.array(items, np.int64), np.arange(len(items))
    sums = [digits(values, positions, layer).sum(0) for layer in range(KV_SHAPE.num_layers)]
    return [int(total) for total in np.concatenate(sums)]


class ChecksumTalker:
    """Implements ``SpeechModel`` but for what a family decides: ``make_row``, ``next_input``, ``decide``."""

    kv_shape = KV_SHAPE
    languages = ("auto",)
    capabilities = ModelCapabilities(takes_instruct=True)
    voices = tuple(VoiceInfo(name, ("auto",)) for name in VOICES)
    max_positions = 4096
    name = "shaped"
    codes_per_step = 1

    def __init__(self) -> None:
        self.tokenizer = CharTokenizer()
        self.num_forwards = 0

    def make_row(self, request: SpeechRequest) -> ChecksumSequence:
        raise NotImplementedError

    def decide(self, row: ChecksumSequence, draw: int) -> Outcome:
        """The outcome of one draw; changes the row."""
        raise NotImplementedError

    def next_input(self, row: SequenceState) -> AwaitText | TalkerInputs:
        raise NotImplementedError

    def new_sequence(self, request: SpeechRequest, seed: int) -> ChecksumSequence:
        voice = str(request.voice or "ada").lower()
        if voice not in VOICES:
            raise UnknownVoice(f"voice is {voice!r}; known: {', '.join(VOICES)}", "voice")
        row = self.make_row(request)
        row.prefix, row.num_prefix, row.seed = VOICES[voice], len(VOICES[voice]), seed
        row.fault = InjectedFault.parse(request.instruct)
        row.check("new_row")
        return row

    def prefix_key(self, row: SequenceState) -> tuple[int, ...]:
        assert isinstance(row, ChecksumSequence)
        return row.prefix

    def forward(
        self,
        rows: Sequence[SequenceState],
        inputs: Sequence[Sequence[Any]],
        positions: Tensor,
        context: AttentionContext,
    ) -> Tensor:
        self.num_forwards += 1
        places, items = positions.numpy(), np.array(inputs, np.int64)
        zeros = torch.zeros(*places.shape, KV_SHAPE.num_kv_heads, KV_SHAPE.head_dim)
        sums = []
        for layer in range(KV_SHAPE.num_layers):
            values = torch.from_numpy(digits(items, places, layer)).float()
            mean = context.attend(layer, zeros, zeros, values[:, :, None])[:, :, 0]
            sums.append(mean * (positions[..., None] + 1))
        hidden = torch.cat(sums, dim=-1)
        for index, row in enumerate(rows):
            assert isinstance(row, ChecksumSequence)
            row.check("forward")
            if row.fault.triggers("nan", len(row.codes)):
                hidden[index] = torch.nan
        return hidden

    def sample(self, rows: Sequence[SequenceState], hidden: Tensor) -> list[Outcome]:
        for row in rows:
            assert isinstance(row, ChecksumSequence)
            row.check("sample")
        return [self.outcome(row, sums) for row, sums in zip(rows, hidden.tolist(), strict=False)]

    def outcome(self, row: SequenceState, sums: Sequence[float]) -> Outcome:
        assert isinstance(row, ChecksumSequence)
        if not np.isfinite(sums).all():
            return FailedOutcome("the talker's output is not finite")
        outcome = self.decide(row, row.draw([round(value) for value in sums]))
        if not isinstance(outcome, StopOutcome):
            self.record(row, outcome)
        return outcome

    def record(self, row: ChecksumSequence, outcome: Outcome) -> None:
        codes = outcome.codes if isinstance(outcome, FrameOutcome) else [CONTROL_CODE]
        row.num_sampled += 1
        row.sampled_codes.extend(codes)
        if isinstance(outcome, FrameOutcome):
            row.codes.append(list(codes))

    def force(self, row: SequenceState, codes: Sequence[int]) -> Outcome:
        assert isinstance(row, ChecksumSequence)
        outcome = FrameOutcome(codes)
        self.record(row, outcome)
        return outcome


class ChecksumFamily(Protocol):
    """A family of fakes: how to make one, and what it says when nothing stands in its way."""

    name: str
    chunk_frames: int
    # By how much a sample may differ from that of one piece: sums that are cut elsewhere round elsewhere.
    pcm_tolerance: float

    def make_model(self) -> SpeechModel: ...
    def make_stage(self, config: EngineConfig) -> DecodeStage: ...
    def pcm(self, codes: Sequence[Sequence[int]]) -> Pcm:
        """The whole of it, decoded in one piece."""
        ...


def reference_codes(
    model: SpeechModel, request: SpeechRequest, text: str, frame_cap: Callable[[int], int]
) -> tuple[list[list[int]], FinishReason]:
    """What ``request`` says when ``text`` is its whole text; ``frame_cap`` gives the cap for a number of ids."""
    assert request.sampling.seed is not None
    row = model.new_sequence(request, request.sampling.seed)
    assert isinstance(model, ChecksumTalker)
    assert isinstance(row, ChecksumSequence)
    row.text = TokenQueue()
    row.text.ids = model.tokenizer.incremental().push(text)
    row.text.closed = True
    while len(row.codes) < frame_cap(len(row.text.ids)):
        due = model.next_input(row)
        assert isinstance(due, TalkerInputs)
        row.inputs += due.inputs
        if due.sample and isinstance(model.outcome(row, checksum_of(row.inputs)), StopOutcome):
            return row.codes, FinishReason.STOP
    return row.codes, FinishReason.LENGTH


__all__ = [
    "VOICES",
    "CharTokenizer",
    "ChecksumFamily",
    "ChecksumSequence",
    "ChecksumTalker",
    "ControlOutcome",
    "FrameOutcome",
    "InjectedFault",
    "checksum_of",
    "reference_codes",
]
