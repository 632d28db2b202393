"""One codec frame for many rows over static buffers: the talker, code 0, the code predictor; and prefill beside it.

The arithmetic of ``Qwen3TTS`` and its modules, arranged for a graph: every choice that Python makes there is data
here. What a row remembers on the device stands in arrays by slot; what changes each step comes in ``inputs``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.memory.kv_cache import PagedKV
from engine.models.base import FailedOutcome, FrameOutcome, Outcome, SequenceState, StopOutcome
from engine.models.qwen3_tts.model import Qwen3TTS
from engine.models.qwen3_tts.prompt import NO_TOKEN, PromptPosition, QwenSequence
from engine.ops.noise import to_int64
from engine.ops.params import FirstCodeRules, SamplingTensors
from engine.ops.predictor import PredictorWeights
from engine.ops.reference_ops import ReferenceOps
from engine.ops.stack import PagedStack, StackLayer, rope_tables
from engine.program.buffers import StaticBuffers, to_device

# Frames of codes kept by slot for the decode stage.
RING_FRAMES = 32
NO_ID = -1
PASS_FAILED = "the device did not run all programs of a code predictor's pass at once"
log = logging.getLogger(__name__)
STOP = StopOutcome()


class FrameProgram:
    """``num_slots`` rows of memory besides the dummy's, slot 0; at most ``max_rows`` of them in one step."""

    def __init__(
        self,
        model: Qwen3TTS,
        kv: PagedKV,
        ops: ReferenceOps,
        ring: Tensor,
        *,
        num_slots: int,
        max_rows: int,
        max_tokens: int,
        max_blocks: int,
    ) -> None:
        self.config, self.talker, self.kv, self.ops = model.config, model.talker, kv, ops
        # Codes by slot and frame index modulo its length, for the decode stage.
        self.ring = ring
        self.device = kv.data.device
        self.num_books = model.config.talker.num_code_groups
        self._make_tables()
        self._make_stacks(max_blocks * kv.block_size)
        self._make_memory(num_slots)
        self._make_buffers(max_rows, max_tokens, max_blocks)
        # What the host needs of these to fill the buffers.
        self.guard_eos, self.eos = model.guard_eos, model.config.talker.control.eos
        self.book_offsets: list[int] = self.offsets.tolist()
        self.nothing = [self.no_codec] * self.num_books
        self.frame_outcomes = [FrameOutcome((code,)) for code in range(self.config.talker.vocab_size)]

    def _make_tables(self) -> None:
        """Embedding tables with a row of zeros at the end, for rows that have no codec side."""
        talker, predictor = self.talker, self.talker.code_predictor
        assert talker.text_table is not None
        assert talker.frame_table is not None
        assert predictor.input_tables is not None
        self.text_table = talker.text_table
        self.frame_table = F.pad(talker.frame_table, (0, 0, 0, 1))
        self.no_codec = talker.frame_table.shape[0]
        self.offsets = talker.frame_offsets
        self.code0_table = predictor.small_to_mtp_projection(talker.model.codec_embedding.weight)
        self.code_tables = predictor.input_tables

    def _make_stacks(self, num_positions: int) -> None:
        predictor = self.talker.code_predictor.model
        self.talker_stack = PagedStack(self.ops, self.talker.model, self.kv.data, num_positions)
        weights = PredictorWeights(
            layers=[StackLayer.from_module(layer) for layer in predictor.layers],
            norm=predictor.norm.weight,
            eps=predictor.norm.eps,
            heads=[head.weight for head in self.talker.code_predictor.lm_head],
            rope=rope_tables(predictor.rope.inverse_frequency, self.num_books, self.device),
        )
        self.passes = self.ops.predictor_passes(weights)

    def _make_memory(self, num_slots: int) -> None:
        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(num_slots + 1, *shape, dtype=dtype, device=self.device)

        # Rows of the frame table that make up each slot's last frame.
        self.last = zeros(self.num_books, dtype=torch.int64)
        self.seen = zeros(self.config.talker.vocab_size, dtype=torch.bool)

    def _make_buffers(self, max_rows: int, max_tokens: int, max_blocks: int) -> None:
        i32, i64, f32 = torch.int32, torch.int64, torch.float32
        one: tuple[int, ...] = ()
        draws = dict.fromkeys(("temperature", "top_p", "predictor_temperature", "predictor_top_p"), (f32, one))
        limits = dict.fromkeys(("top_k", "predictor_top_k", "seed", "place", "frame"), (i64, one))
        token = dict.fromkeys(("slot", "text"), (i64, one)) | {"position": (i32, one), "goes_on": (torch.bool, one)}
        token |= {"table": (i32, (max_blocks,)), "ids": (i64, (self.num_books,))}
        row = draws | limits | token | dict.fromkeys(("forget", "source"), (i64, one))
        row |= {"banned": (torch.bool, one), "penalty": (f32, one)}
        self.inputs = StaticBuffers(max_rows, row, self.device)
        self.outputs = StaticBuffers(max_rows, {"codes": (i32, (self.num_books + 1,))}, self.device)
        self.tokens = StaticBuffers(max_tokens, token, self.device)
        # Of the last prefill, by its position.
        self.prefilled = self.text_table.new_zeros(max_tokens, self.text_table.shape[1])
        for buffers in (self.inputs, self.tokens):
            buffers.device["table"].fill_(self.kv.scratch_block)

    def sampling_tensors(self, num_rows: int, prefix: str) -> SamplingTensors:
        given = {name: value[:num_rows] for name, value in self.inputs.device.items()}
        return SamplingTensors(
            temperature=given[prefix + "temperature"],
            top_k=given[prefix + "top_k"],
            top_p=given[prefix + "top_p"],
            seed=given["seed"],
            place=given["place"],
            frame=given["frame"],
        )

    # -- what a graph holds --------------------------------------------------------------------------------------

    def run_frame(self, num_rows: int, follows_prefill: int = 0) -> None:
        """Rows 0 .. num_rows - 1 of ``inputs`` to ``outputs``: the codes, and the status of ``write_status``."""
        given = {name: value[:num_rows] for name, value in self.inputs.device.items()}
        slots = given["slot"]
        hidden = self.prefilled[given["source"]] if follows_prefill else self.run_talker(given)
        code0, finite = self.first_code(hidden, given)
        codes = self.run_predictor(hidden, code0, self.sampling_tensors(num_rows, "predictor_"))
        self.last[slots] = codes + self.offsets
        self.ring[slots, given["frame"] % self.ring.shape[1]] = codes.clamp(max=self.config.codec.codebook_size - 1)
        out = self.outputs.device["codes"][:num_rows]
        out[:, :-1] = codes
        self.passes.write_status(finite, out[:, -1])

    def run_talker(self, given: dict[str, Tensor]) -> Tensor:
        """Hidden states [N, H] of one input of each row."""
        return self.talker_stack.run(self.embed_inputs(given), given["table"], given["position"], together=False)

    def run_prefill(self, num_tokens: int) -> None:
        """Keys, values and hidden states of the first ``num_tokens`` rows of ``tokens``, of any requests, in order."""
        given = {name: value[:num_tokens] for name, value in self.tokens.device.items()}
        x = self.embed_inputs(given)
        self.prefilled[:num_tokens] = self.talker_stack.run(x, given["table"], given["position"], together=True)

    def embed_inputs(self, given: dict[str, Tensor]) -> Tensor:
        """Inputs [N, H]: a text id and, on the codec side, the last frame of a slot or ids."""
        ids = torch.where(given["goes_on"][:, None], self.last[given["slot"]], given["ids"])
        return self.text_table[given["text"]] + F.embedding_bag(ids, self.frame_table, mode="sum")

    def first_code(self, hidden: Tensor, given: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        talker = self.config.talker
        slots, penalty, forget, banned = (given[name] for name in ("slot", "penalty", "forget", "banned"))
        rules = FirstCodeRules(self.seen, slots, penalty, forget, banned, talker.num_codes, talker.control.eos)
        logits = F.linear(hidden, self.talker.codec_head.weight)
        return self.ops.sample_first(logits, self.sampling_tensors(hidden.shape[0], ""), rules)

    def run_predictor(self, hidden: Tensor, code0: Tensor, settings: SamplingTensors) -> Tensor:
        """Whole frames [N, K]: the codes after ``code0``, each from all before it."""
        predictor = self.talker.code_predictor
        num_rows, size = hidden.shape[0], predictor.config.transformer
        cache = hidden.new_empty(
            size.num_hidden_layers, 2, num_rows, self.num_books, size.num_key_value_heads, size.head_dim
        )
        self.passes.begin(num_rows)
        inputs: tuple[Tensor, ...] = (predictor.small_to_mtp_projection(hidden), self.code0_table[code0])
        codes = [code0]
        for codebook in range(1, self.num_books):
            logits = self.passes.run(inputs, cache, 0 if codebook == 1 else codebook, codebook)
            if codebook == self.num_books - 1:
                codes.append(self.ops.sample(logits, settings, codebook))
            else:
                code, x = self.ops.sample_next(logits, settings, codebook, self.code_tables[codebook - 1])
                codes.append(code)
                inputs = (x,)
        return torch.stack(codes, dim=1)

    # -- how rows fill it ----------------------------------------------------------------------------------------

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
        self.stage_inputs(self.inputs, start, speech, -1)
        inputs["frame"][start:end] = frames = [len(row.codes) for row in speech]
        guards = self.guard_eos
        inputs["banned"][start:end] = [
            (guards and not row.eos_fed) or frame < row.min_new_tokens
            for row, frame in zip(speech, frames, strict=True)
        ]
        inputs["forget"][start:end] = NO_ID
        for index, row in enumerate(speech, start):
            if row.repetition_window is not None:
                inputs["forget"][index] = self.id_leaving_window(row)

    def stage_inputs(self, buffers: StaticBuffers, start: int, rows: Sequence[QwenSequence], ahead: int) -> None:
        """Input ``num_computed + ahead`` of each row; a frame is the last one of its slot."""
        host, end = buffers.host, start + len(rows)
        items: list[PromptPosition] = [row.inputs[row.num_computed + ahead] for row in rows]
        host["text"][start:end] = [item.text for item in items]
        host["goes_on"][start:end] = [item.frame != NO_TOKEN for item in items]
        for index, (row, item) in enumerate(zip(rows, items, strict=True), start):
            if item.frame == NO_TOKEN:
                host["ids"][index] = self.ids_of(row, item)

    @staticmethod
    def id_leaving_window(row: QwenSequence) -> int:
        """The code 0 that is no longer among the last ``repetition_window``, if it is not there twice."""
        window, codes = row.repetition_window, row.codes
        if window is None or len(codes) <= window:
            return NO_ID
        gone = codes[-window - 1][0]
        return NO_ID if any(frame[0] == gone for frame in codes[-window:]) else gone

    def ids_of(self, row: QwenSequence, item: PromptPosition) -> list[int]:
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
        tokens["goes_on"][start:end] = False
        # Nearly all have one code or none: a column costs a fifth of whole rows.
        tokens["ids"][start:end] = self.no_codec
        tokens["ids"][start:end, 0] = [self.no_codec if item.codec == NO_TOKEN else item.codec for item in items]
        for index, item in enumerate(items, start):
            if item.holds_frame:
                tokens["ids"][index] = self.ids_of(row, item)

    def stage_steps(self, start: int, rows: Sequence[SequenceState], slots: Sequence[int]) -> None:
        self.tokens.host["slot"][start : start + len(rows)] = slots
        self.stage_inputs(self.tokens, start, cast(Sequence[QwenSequence], rows), 0)

    def restore_row(self, slot: int, row: SequenceState) -> None:
        """Write its last frame, and the codes that are penalized."""
        assert isinstance(row, QwenSequence)
        if row.codes:
            self.last[slot] = to_device(list(row.codes[-1]), torch.int64, self.device) + self.offsets
            self.seen[slot] = row.seen

    def outcomes(self, rows: Sequence[SequenceState], out: npt.NDArray[np.int32]) -> list[Outcome]:
        """Return the outcomes of a frame. The engine needs code 0; the device has the rest."""
        speech, status, first = cast(Sequence[QwenSequence], rows), out[:, -1].tolist(), out[:, 0].tolist()
        frames, size = out[:, :-1].astype(np.int16).tobytes(), 2 * (out.shape[1] - 1)
        found: list[Outcome] = []
        for index, row in enumerate(speech):
            if status[index] < 0:
                found.append(FailedOutcome(PASS_FAILED))
            elif not status[index]:
                found.append(FailedOutcome("the talker's output is not finite"))
            elif first[index] == self.eos:
                found.append(STOP)
            else:
                row.codes.add_bytes(frames[index * size : (index + 1) * size])
                found.append(self.frame_outcomes[first[index]])
        if min(status, default=0) < 0:
            log.warning('%s; VOICEWIRE_DEBUG=1 and debug.engine.disabled_kernels = ["predictor"] avoid it', PASS_FAILED)
        return found
