"""How rows of ``Qwen3TTS`` fill the frame program's buffers, and what its codes mean for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from torch import Tensor

from engine.memory.kv_cache import PagedKV
from engine.models.base import FailedOutcome, FrameOutcome, Outcome, SequenceState, StopOutcome
from engine.models.qwen3_tts.frame_log import FrameLog
from engine.models.qwen3_tts.frame_program import FrameProgram
from engine.models.qwen3_tts.model import Qwen3TTS
from engine.models.qwen3_tts.prompt import NO_TOKEN
from engine.models.qwen3_tts.prompt import PromptPosition as PromptRow
from engine.models.qwen3_tts.sequence import QwenSequence
from engine.ops.reference_ops import ReferenceOps

NO_ID = -1
STOP = StopOutcome()
SIGN_BIT = 1 << 63


def to_int64(seed: int) -> int:
    """64 bits as the device counts them."""
    return (seed & (2 * SIGN_BIT - 1) ^ SIGN_BIT) - SIGN_BIT


class FrameInputs(FrameProgram):
    def __init__(self, model: Qwen3TTS, kv: PagedKV, ops: ReferenceOps, ring: Tensor, **sizes: int) -> None:
        super().__init__(model.config, model.talker, kv, ops, ring, **sizes)
        self.guard_eos = model.guard_eos
        self.book_offsets: list[int] = self.offsets.tolist()
        self.eos = model.config.talker.control.eos
        self.nothing = [self.no_codec] * self.num_books
        self.frame_outcomes = [FrameOutcome((code,)) for code in range(self.config.talker.vocab_size)]

    @staticmethod
    def constants(row: SequenceState) -> dict[str, float]:
        assert isinstance(row, QwenSequence)
        return {
            "temperature": row.code0.temperature,
            "top_k": row.code0.top_k,
            "top_p": row.code0.top_p,
            "predictor_temperature": row.residual.temperature,
            "predictor_top_k": row.residual.top_k,
            "predictor_top_p": row.residual.top_p,
            "penalty": row.penalty,
            "seed": to_int64(row.seed),
            "place": row.segment << 8,
        }

    def stage_rows(self, rows: Sequence[SequenceState], start: int = 0) -> None:
        """Column by column: a number at a time costs a microsecond in an array."""
        inputs, end = self.inputs.host, start + len(rows)
        speech = cast(Sequence[QwenSequence], rows)
        items: list[PromptRow] = [row.inputs[row.num_computed - 1] for row in speech]
        inputs["text"][start:end] = [item.text for item in items]
        inputs["frame"][start:end] = frames = [len(row.codes) for row in speech]
        inputs["goes_on"][start:end] = [item.frame != NO_TOKEN for item in items]
        guards = self.guard_eos
        inputs["banned"][start:end] = [
            (guards and not row.eos_fed) or frame < row.min_new_tokens
            for row, frame in zip(speech, frames, strict=True)
        ]
        inputs["forget"][start:end] = NO_ID
        for index, (row, item) in enumerate(zip(speech, items, strict=True), start):
            if row.repetition_window is not None:
                inputs["forget"][index] = self.id_leaving_window(row)
            if item.frame == NO_TOKEN:
                inputs["ids"][index] = self.ids_of(row, item)

    @staticmethod
    def id_leaving_window(row: QwenSequence) -> int:
        """The code 0 that is no longer among the last ``repetition_window``, if it is not there twice."""
        window, codes = row.repetition_window, row.codes
        if window is None or len(codes) <= window:
            return NO_ID
        gone = codes[-window - 1][0]
        return NO_ID if any(frame[0] == gone for frame in codes[-window:]) else gone

    def ids_of(self, row: QwenSequence, item: PromptRow) -> list[int]:
        """Rows of the frame table that add up to the codec side of an input."""
        if item.holds_frame:
            return [code + offset for code, offset in zip(row.frame_of(item), self.book_offsets, strict=True)]
        return self.nothing if item.codec == NO_TOKEN else [item.codec, *self.nothing[1:]]

    @staticmethod
    def can_stage(items: Sequence[Any]) -> bool:
        return not any(item.speaker for item in items)

    def stage_tokens(self, start: int, row: SequenceState, items: Sequence[Any]) -> None:
        assert isinstance(row, QwenSequence)
        tokens, end = self.tokens.host, start + len(items)
        tokens["text"][start:end] = [item.text for item in items]
        tokens["ids"][start:end] = [self.ids_of(row, item) for item in items]

    def log_of(self, row: QwenSequence) -> FrameLog:
        if not isinstance(row.codes, FrameLog):
            row.codes = FrameLog(self.num_books)
        return row.codes

    def outcomes(self, rows: Sequence[SequenceState], out: npt.NDArray[np.int32]) -> list[Outcome]:
        """Of a frame only code 0 goes on to the engine, for the device has the rest."""
        speech, finite, first = cast(Sequence[QwenSequence], rows), out[:, -1].tolist(), out[:, 0].tolist()
        frames, size = out[:, :-1].astype(np.int16).tobytes(), 2 * (out.shape[1] - 1)
        found: list[Outcome] = []
        for index, row in enumerate(speech):
            if not finite[index]:
                found.append(FailedOutcome("the talker's output is not finite"))
            elif first[index] == self.eos:
                found.append(STOP)
            else:
                self.log_of(row).add_bytes(frames[index * size : (index + 1) * size])
                found.append(self.frame_outcomes[first[index]])
        return found
