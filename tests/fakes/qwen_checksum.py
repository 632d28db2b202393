"""A family of the shape of Qwen3-TTS: one text row a frame, 12.5 frames a second, a decoder of carried state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn

from engine.api import SpeechRequest, TextLayout
from engine.config import EngineConfig
from engine.models.base import (
    AwaitText,
    DecodeStage,
    FrameOutcome,
    Outcome,
    Pcm,
    SequenceState,
    StopOutcome,
    TalkerInputs,
    TokenQueue,
)
from engine.models.qwen3_tts.codec_decoder import CodecState
from engine.runtime.call_planner import DECODE_BATCHING_SLACK_S
from engine.runtime.codec_runners import make_eager_stage
from tests.fakes.checksum_model import ChecksumSequence, ChecksumTalker

NUM_CODES, NUM_BOOKS = 64, 2
SAMPLE_RATE, FRAME_SAMPLES = 600, 48
# In no codebook; and one that the decoder raises for. No healthy row draws either.
BAD_CODE, POISON_CODE = 64, 63
END_OF_TEXT, PADDING, FIRST_ROW = -1, -2, -3


@dataclass(slots=True)
class QwenRow(ChecksumSequence):
    layout: TextLayout = TextLayout.STREAMING
    prompted: bool = False
    eos_fed: bool = False


class QwenChecksumTalker(ChecksumTalker):
    name = "qwen-shaped"
    codes_per_step = NUM_BOOKS

    def make_row(self, request: SpeechRequest) -> QwenRow:
        layout = request.layout
        if layout is TextLayout.AUTO:
            layout = TextLayout.FULL if request.text_closed else TextLayout.STREAMING
        return QwenRow(text=TokenQueue(), layout=layout)

    def next_input(self, row: SequenceState) -> AwaitText | TalkerInputs:
        assert isinstance(row, QwenRow)
        row.check("next_input")
        if not row.inputs:
            return TalkerInputs(row.prefix, sample=False)
        if row.layout is TextLayout.FULL and not row.prompted:
            if not row.text.closed:
                return AwaitText()
            row.prompted = row.eos_fed = True
            return TalkerInputs([*row.text.pop_many(row.text.num_waiting), END_OF_TEXT, FIRST_ROW])
        if row.text.num_waiting:
            row.prompted = True
            return self._frame_input(row, row.text.pop_many()[0])
        if not row.text.closed:
            return AwaitText()
        fed, row.eos_fed = row.eos_fed, True
        return self._frame_input(row, PADDING if fed else END_OF_TEXT)

    def _frame_input(self, row: QwenRow, text: int) -> TalkerInputs:
        frame = row.codes[-1] if row.codes else [FIRST_ROW]
        return TalkerInputs([text * NUM_CODES**NUM_BOOKS + sum(code * NUM_CODES**j for j, code in enumerate(frame))])

    def decide(self, row: ChecksumSequence, draw: int) -> Outcome:
        assert isinstance(row, QwenRow)
        if row.eos_fed and row.ends(len(row.codes) >= 2 and draw % 16 == 0):
            return StopOutcome()
        codes = [(draw >> 8) % POISON_CODE, (draw >> 16) % POISON_CODE]
        if row.fault.triggers("code", len(row.codes)):
            codes[1] = BAD_CODE
        if row.fault.triggers("decode", len(row.codes)):
            codes[1] = POISON_CODE
        return FrameOutcome(codes)


class RunningSumCodec(nn.Module):
    """Codes to steps whose height remembers every frame before: exact in fp32 however the frames are cut."""

    config = SimpleNamespace(sample_rate=SAMPLE_RATE, frame_samples=FRAME_SAMPLES, codebook_size=NUM_CODES)

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("nothing", nn.Parameter(torch.zeros(1)))

    def new_state(self, num_rows: int) -> CodecState:
        return CodecState(torch.zeros(num_rows, 1), torch.zeros(num_rows, dtype=torch.long))

    def forward(self, codes: Tensor, state: CodecState | None = None) -> Tensor:
        if (codes == POISON_CODE).any():
            raise RuntimeError("a fault in decode")
        state = state or self.new_state(codes.shape[0])
        before = state.values[:, 0].int().tolist()
        sums = torch.tensor([running(*row) for row in zip(before, codes.tolist(), strict=True)]).float()
        state.values[:] = sums[:, -1:]
        state.num_frames += codes.shape[-1]
        return (sums / 512 + 0.1).repeat_interleave(FRAME_SAMPLES, dim=1)


def running(before: int, codes: Sequence[Sequence[int]]) -> list[int]:
    """What the codec remembers after each frame of codes [num_books, num_frames]."""
    sums = []
    for first, second in zip(*codes, strict=True):
        before = (3 * before + first + 2 * second) % 251
        sums.append(before)
    return sums


class QwenChecksumFamily:
    name = "qwen"
    chunk_frames = 1
    pcm_tolerance = 0.0

    def make_model(self) -> QwenChecksumTalker:
        return QwenChecksumTalker()

    def make_stage(self, config: EngineConfig) -> DecodeStage:
        return make_eager_stage(RunningSumCodec(), config.max_running_requests, DECODE_BATCHING_SLACK_S)

    def pcm(self, codes: Sequence[Sequence[int]]) -> Pcm:
        if not codes:
            return np.zeros(0, dtype=np.float32)
        pcm: Pcm = RunningSumCodec()(torch.tensor([codes]).transpose(1, 2))[0].numpy()
        return pcm
