"""How rows of ``Qwen3TTS`` fill the frame program's buffers, and what its codes mean for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from engine.cache.kv_cache import PagedKV
from engine.kernels.plain import PlainOps
from engine.models.base import Audio, Failed, Outcome, Row, Stop
from engine.models.qwen3_tts.frame_program import FrameProgram
from engine.models.qwen3_tts.model import Qwen3TTS
from engine.models.qwen3_tts.prompt import NONE
from engine.models.qwen3_tts.prompt import Row as PromptRow
from engine.models.qwen3_tts.row import SpeechRow

NOBODY = -1
SIGN_BIT = 1 << 63


def signed(seed: int) -> int:
    """64 bits as the device counts them."""
    return (seed & (2 * SIGN_BIT - 1) ^ SIGN_BIT) - SIGN_BIT


class FrameRows(FrameProgram):
    def __init__(self, model: Qwen3TTS, kv: PagedKV, ops: PlainOps, ring: Tensor, **sizes: int) -> None:
        super().__init__(model.config, model.talker, kv, ops, ring, **sizes)
        self.guard_eos = model.guard_eos
        self.book_offsets: list[int] = self.offsets.tolist()
        self.eos = model.config.talker.control.eos
        self.nothing = [self.no_codec] * self.num_books

    @staticmethod
    def constants(row: Row) -> dict[str, float]:
        assert isinstance(row, SpeechRow)
        return {
            "temperature": row.code0.temperature,
            "top_k": row.code0.top_k,
            "top_p": row.code0.top_p,
            "predictor_temperature": row.residual.temperature,
            "predictor_top_k": row.residual.top_k,
            "predictor_top_p": row.residual.top_p,
            "penalty": row.penalty,
            "seed": signed(row.seed),
            "place": row.segment << 8,
        }

    def stage_row(self, index: int, row: Row) -> None:
        assert isinstance(row, SpeechRow)
        inputs, item, frame = self.inputs.host, row.inputs[row.num_computed - 1], len(row.codes)
        inputs["text"][index] = item.text
        inputs["frame"][index] = frame
        inputs["goes_on"][index] = item.frame != NONE
        inputs["banned"][index] = frame < row.min_new_tokens or (self.guard_eos and not row.eos_fed)
        inputs["forget"][index] = self.leaves_window(row)
        if item.frame == NONE:
            inputs["ids"][index] = self.ids_of(row, item)

    @staticmethod
    def leaves_window(row: SpeechRow) -> int:
        """The code 0 that is no longer among the last ``repetition_window``, if it is not there twice."""
        window, codes = row.repetition_window, row.codes
        if window is None or len(codes) <= window:
            return NOBODY
        gone = codes[-window - 1][0]
        return NOBODY if any(frame[0] == gone for frame in codes[-window:]) else gone

    def ids_of(self, row: SpeechRow, item: PromptRow) -> list[int]:
        """Rows of the frame table that add up to the codec side of an input."""
        if item.holds_frame:
            return [code + offset for code, offset in zip(row.frame_of(item), self.book_offsets, strict=True)]
        return self.nothing if item.codec == NONE else [item.codec, *self.nothing[1:]]

    @staticmethod
    def can_stage(items: Sequence[Any]) -> bool:
        return not any(item.speaker for item in items)

    def stage_tokens(self, start: int, row: Row, items: Sequence[Any]) -> None:
        assert isinstance(row, SpeechRow)
        tokens, end = self.tokens.host, start + len(items)
        tokens["text"][start:end] = [item.text for item in items]
        tokens["ids"][start:end] = [self.ids_of(row, item) for item in items]

    def outcome(self, row: Row, codes: list[int]) -> Outcome:
        assert isinstance(row, SpeechRow)
        *frame, finite = codes
        if not finite:
            return Failed("the talker's output is not finite")
        if frame[0] == self.eos:
            return Stop()
        row.codes.append(frame)
        return Audio(frame)
