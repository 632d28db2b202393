"""A family of the shape of CosyVoice3: 25 tokens a second, text in blocks of five ids for fifteen speech tokens, a FILL
token that makes no sound, and a decode stage that looks ahead, withholds a tail, grows by pages and works in slices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.api import SpeechRequest
from engine.config import EngineConfig
from engine.memory.block_pool import BlockPool, SlotTable
from engine.models.base import (
    AwaitText,
    ControlOutcome,
    DecodedAudio,
    FrameOutcome,
    Outcome,
    Pcm,
    SequenceState,
    StopOutcome,
    TalkerInputs,
    TokenQueue,
    VoiceReference,
)
from engine.runtime.call_planner import NO_PREFERENCE
from tests.fakes.checksum_model import CONTROL_CODE, ChecksumSequence, ChecksumTalker

NUM_TOKENS = 6561
# One that the flow raises for, and one in no codebook. No healthy row draws either.
POISON_TOKEN, BAD_TOKEN = 6560, 6562
TEXT_BASE, TASK = 10_000, 6563
BLOCK_TEXT, BLOCK_SPEECH = 5, 15
MAX_FINAL_TOKENS = 40

SAMPLE_RATE, TOKEN_SAMPLES = 600, 24
# The flow works in hops and reads three tokens on; the vocoder withholds what the last four would sound like.
HOP_TOKENS, LOOK_AHEAD_TOKENS, TAIL_TOKENS = 25, 3, 4
# ODE steps of one hop; each is one decode step.
SLICES = 10
MAX_SLICES_A_STEP = 4
PAGES_A_SLOT = 3


@dataclass(slots=True)
class CosyRow(ChecksumSequence):
    """``unfed`` is the last speech token while its keys and values are not computed."""

    unfed: int | None = None
    num_in_block: int = BLOCK_SPEECH
    is_final: bool = False
    num_final: int = 0


class CosyVoiceChecksumTalker(ChecksumTalker):
    name = "cosyvoice-shaped"

    def make_row(self, request: SpeechRequest) -> CosyRow:
        return CosyRow(text=TokenQueue())

    def next_input(self, row: SequenceState) -> AwaitText | TalkerInputs:
        assert isinstance(row, CosyRow)
        row.check("next_input")
        if not row.inputs:
            return TalkerInputs(row.prefix, sample=False)
        speech = [] if row.unfed is None else [row.unfed]
        if row.is_final or row.num_in_block < BLOCK_SPEECH:
            row.unfed = None
            return TalkerInputs(speech)
        if row.text.num_waiting < BLOCK_TEXT and not row.text.closed:
            return AwaitText()
        row.is_final = row.text.num_waiting < BLOCK_TEXT
        text = [TEXT_BASE + i for i in row.text.pop_many(BLOCK_TEXT)]
        row.unfed, row.num_in_block = None, 0
        return TalkerInputs([*speech, *text, *([TASK] if row.is_final else [])])

    def decide(self, row: ChecksumSequence, draw: int) -> Outcome:
        assert isinstance(row, CosyRow)
        if row.is_final and row.ends(draw % 16 == 0 or row.num_final == MAX_FINAL_TOKENS):
            return StopOutcome()
        if not row.is_final and row.num_in_block and draw % 16 == 0:
            return self.end_block(row)
        token = (draw >> 8) % POISON_TOKEN
        self.count_token(row, token)
        if row.fault.triggers("code", len(row.codes)):
            return FrameOutcome([BAD_TOKEN])
        return FrameOutcome([POISON_TOKEN if row.fault.triggers("decode", len(row.codes)) else token])

    def end_block(self, row: CosyRow) -> ControlOutcome:
        row.num_in_block = BLOCK_SPEECH
        return ControlOutcome()

    def count_token(self, row: CosyRow, token: int) -> None:
        row.num_final += row.is_final
        row.num_in_block += 1
        row.unfed = token

    def force(self, row: SequenceState, codes: Sequence[int]) -> Outcome:
        assert isinstance(row, CosyRow)
        (token,) = codes
        if token == CONTROL_CODE:
            outcome: Outcome = self.end_block(row)
        else:
            self.count_token(row, token)
            outcome = FrameOutcome(codes)
        self.record(row, outcome)
        return outcome


@dataclass(slots=True)
class FakeFlow:
    """One slot: tokens in, hops through the ODE, samples out."""

    pages: list[int]
    tokens: list[int] = field(default_factory=list)
    is_final: bool = False
    num_flowed: int = 0
    num_emitted: int = 0
    hop_end: int | None = None
    slices_left: int = 0
    phase: int = 0

    def begin_hop(self) -> None:
        end = self.num_flowed + HOP_TOKENS
        if self.is_final and self.num_emitted < len(self.tokens):
            self.hop_end, self.slices_left = len(self.tokens), SLICES
        elif not self.is_final and end + LOOK_AHEAD_TOKENS <= len(self.tokens):
            self.hop_end, self.slices_left = end, SLICES

    @property
    def has_work(self) -> bool:
        if self.hop_end is None:
            self.begin_hop()
        return self.hop_end is not None

    def end_hop(self) -> Pcm:
        assert self.hop_end is not None
        is_last = self.is_final and self.hop_end == len(self.tokens)
        upto = self.hop_end if is_last else self.hop_end - TAIL_TOKENS
        if POISON_TOKEN in self.tokens[self.num_emitted : upto]:
            raise RuntimeError("a fault in decode")
        heights = [self.height(i) for i in range(self.num_emitted, upto)]
        self.num_flowed, self.num_emitted, self.hop_end = self.hop_end, upto, None
        return np.repeat(np.array(heights, np.float32), TOKEN_SAMPLES)

    def height(self, index: int) -> float:
        """Of one token's sound: it hears three tokens ahead, and remembers all before."""
        ahead = self.tokens[index : index + LOOK_AHEAD_TOKENS + 1]
        self.phase = (self.phase * 3 + sum((j + 1) * token for j, token in enumerate(ahead))) % 251
        return self.phase / 512 + 0.1


class FakeSlicedDecodeStage:
    """Implements ``DecodeStage``. A slot that finds no free page goes on with the oldest of its own."""

    sample_rate = SAMPLE_RATE
    frame_samples = TOKEN_SAMPLES
    chunk_frames = HOP_TOKENS + LOOK_AHEAD_TOKENS + TAIL_TOKENS

    def __init__(self, num_slots: int) -> None:
        self.slots = SlotTable(num_slots)
        self.pages = BlockPool(PAGES_A_SLOT * num_slots)
        self.flows: dict[int, FakeFlow] = {}

    def reserve(self) -> int | None:
        pages = self.pages.allocate(1) if self.slots.num_free else None
        slot = self.slots.reserve() if pages is not None else None
        if pages is None or slot is None:
            return None
        self.flows[slot] = FakeFlow(pages)
        return slot

    def feed(self, slot: int, codes: Sequence[int]) -> None:
        (token,) = codes
        if not 0 <= token < NUM_TOKENS:
            raise ValueError(f"token {token} is outside the codebook of {NUM_TOKENS}")
        self.flows[slot].tokens.append(token)

    def finalize(self, slot: int) -> None:
        self.flows[slot].is_final = True

    def num_pending(self, slot: int) -> int:
        flow = self.flows[slot]
        return len(flow.tokens) - flow.num_emitted

    def makes_first_chunk(self, slot: int) -> bool:
        return self.flows[slot].hop_end is not None and self.flows[slot].num_emitted == 0

    @property
    def busy(self) -> bool:
        return any(flow.has_work for flow in self.flows.values())

    def prime(self, slot: int, reference: VoiceReference) -> None:
        raise NotImplementedError("this family has no recordings")

    def resume(
        self, slot: int, reference: VoiceReference | None, frames: Sequence[Sequence[int]], num_received: int
    ) -> int:
        for codes in frames:
            self.feed(slot, codes)
        return 0

    def step(
        self, slack_s: Mapping[int, float], wanted_frames: Mapping[int, int] = NO_PREFERENCE
    ) -> list[DecodedAudio]:
        due = sorted((slack_s[slot], slot) for slot, flow in self.flows.items() if flow.has_work)
        return [out for _, slot in due[:MAX_SLICES_A_STEP] for out in self._slice(slot, self.flows[slot])]

    def _slice(self, slot: int, flow: FakeFlow) -> list[DecodedAudio]:
        flow.slices_left -= 1
        if flow.slices_left:
            return []
        flow.pages += self.pages.allocate(1) or []
        try:
            return [DecodedAudio(slot, flow.end_hop())]
        except RuntimeError as error:
            return [DecodedAudio(slot, np.zeros(0, dtype=np.float32), error=str(error))]

    def release(self, slot: int) -> None:
        self.pages.free(self.flows.pop(slot).pages)
        self.slots.release(slot)

    def release_quarantined(self) -> None:
        self.pages.release_quarantined()
        self.slots.release_quarantined()


class CosyVoiceChecksumFamily:
    name = "cosyvoice"
    chunk_frames = FakeSlicedDecodeStage.chunk_frames
    pcm_tolerance = 0.0

    def make_model(self) -> CosyVoiceChecksumTalker:
        return CosyVoiceChecksumTalker()

    def make_stage(self, config: EngineConfig) -> FakeSlicedDecodeStage:
        return FakeSlicedDecodeStage(config.max_running_requests)

    def pcm(self, codes: Sequence[Sequence[int]]) -> Pcm:
        flow = FakeFlow([], tokens=[token for (token,) in codes], is_final=True)
        flow.hop_end = len(flow.tokens)
        return flow.end_hop()
