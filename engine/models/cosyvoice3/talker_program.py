"""The talker's step for many rows over static buffers, its sampling included; and prompts beside it.

The arithmetic of ``SpeechLM``, ``StopRules`` and ``sample``, arranged for a graph: every choice that Python makes
there is data here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.memory.kv_cache import PagedKV
from engine.models.base import FailedOutcome, FrameContext, Outcome, SequenceState
from engine.models.cosyvoice3.config import MAX_TOP_K, MAX_WINDOW
from engine.models.cosyvoice3.model import CosyVoice3
from engine.models.cosyvoice3.prompt import CosySequence, SamplingPhase
from engine.models.cosyvoice3.talker import NOTHING
from engine.ops.noise import to_int64
from engine.ops.ras import RasTensors
from engine.ops.reference_ops import ReferenceOps, select_ops
from engine.ops.stack import PagedStack
from engine.program.buffers import Fields, StaticBuffers

SCALARS: dict[str, torch.dtype] = {
    "slot": torch.int64,
    "text": torch.int64,
    "position": torch.int32,
    "temperature": torch.float32,
    "top_p": torch.float32,
    "top_k": torch.int64,
    "min_repeats": torch.float32,
    "seed": torch.int64,
    "place": torch.int64,
    "frame": torch.int64,
    "source": torch.int64,
    "in_block": torch.bool,
    "in_rest": torch.bool,
    "too_soon": torch.bool,
    "goes_on": torch.bool,
}


class TalkerProgram:
    """At most ``max_rows`` rows in one step, ``max_tokens`` positions of prompts in one call."""

    def __init__(
        self, model: CosyVoice3, kv: PagedKV, ops: ReferenceOps, max_rows: int, max_tokens: int, max_blocks: int
    ) -> None:
        self.model, self.kv, self.ops, self.device = model, kv, ops, kv.data.device
        self.stack = PagedStack(ops, model.talker.backbone, kv.data, max_blocks * kv.block_size)
        table: Fields = {"table": (torch.int32, (max_blocks,))}
        scalars: Fields = {name: (dtype, ()) for name, dtype in SCALARS.items()}
        self.inputs = StaticBuffers(
            max_rows, {**scalars, **table, "history": (torch.int64, (MAX_WINDOW,))}, self.device
        )
        self.outputs = StaticBuffers(max_rows, {"codes": (torch.int32, (2,))}, self.device)
        token: Fields = {"text": (torch.int64, ()), "position": (torch.int32, ())}
        self.tokens = StaticBuffers(max_tokens, {**token, **table}, self.device)
        # Hidden states of the last prefill, by its position.
        self.prefilled = self.stack.norm.weight.new_zeros(max_tokens, self.stack.norm.weight.shape[0])
        self.inputs.device["temperature"].fill_(1.0)
        for buffers in (self.inputs, self.tokens):
            buffers.device["table"].fill_(kv.scratch_block)

    # -- what a graph holds --------------------------------------------------------------------------------------

    def run_frame(self, num_rows: int, follows_prefill: int = 0) -> None:
        """Rows 0 .. num_rows - 1 of ``inputs`` to ``outputs``: the id drawn, and whether the row is finite."""
        given = {name: values[:num_rows] for name, values in self.inputs.device.items()}
        if follows_prefill:
            hidden = self.prefilled[given["source"]]
        else:
            hidden = self.run_stack(given["text"], given["table"], given["position"], together=False)
        logits = self.model.talker.logits(hidden)
        control = self.model.stops.rules(given["in_block"], given["in_rest"], given["too_soon"])
        rows = RasTensors(*(given[name] for name in RasTensors._fields))
        self.ops.sample_speech(logits, control, rows, MAX_TOP_K, self.outputs.device["codes"][:num_rows])

    def run_prefill(self, num_tokens: int) -> None:
        """Keys, values and hidden states of the first ``num_tokens`` rows of ``tokens``, of any requests, in order."""
        given = {name: values[:num_tokens] for name, values in self.tokens.device.items()}
        self.prefilled[:num_tokens] = self.run_stack(given["text"], given["table"], given["position"], together=True)

    def run_stack(self, ids: Tensor, tables: Tensor, positions: Tensor, together: bool) -> Tensor:
        """ids [N] at ``positions`` -> normed hidden states [N, H]."""
        return self.stack.run(self.model.talker.embed(ids), tables, positions, together)

    # -- how rows fill it ----------------------------------------------------------------------------------------

    @staticmethod
    def constants(row: SequenceState) -> dict[str, float]:
        assert isinstance(row, CosySequence)
        ras = row.ras
        return {
            "temperature": ras.temperature,
            "top_p": ras.top_p,
            "top_k": ras.top_k,
            "min_repeats": ras.window * ras.tau,
            "seed": to_int64(row.seed),
            "place": row.segment << 8,
        }

    def restore_row(self, slot: int, row: SequenceState) -> None:
        """Do nothing: the host writes all of a row for each step."""

    def stage_rows(self, rows: Sequence[SequenceState], start: int = 0) -> None:
        inputs, end = self.inputs.host, start + len(rows)
        speech = cast(Sequence[CosySequence], rows)
        inputs["text"][start:end] = [row.inputs[row.num_computed - 1] for row in speech]
        inputs["frame"][start:end] = [row.num_sampled for row in speech]
        inputs["in_block"][start:end] = [row.phase is SamplingPhase.BLOCK for row in speech]
        inputs["in_rest"][start:end] = [row.phase is SamplingPhase.REST for row in speech]
        inputs["too_soon"][start:end] = [row.num_generated < row.min_tokens for row in speech]
        inputs["history"][start:end] = NOTHING
        for index, row in enumerate(speech, start):
            heard = row.history[-row.ras.window :]
            inputs["history"][index, : len(heard)] = heard

    @staticmethod
    def can_stage(items: Sequence[Any]) -> bool:
        return True

    def stage_tokens(self, start: int, row: SequenceState, items: Sequence[Any]) -> None:
        self.tokens.host["text"][start : start + len(items)] = items

    def stage_steps(self, start: int, rows: Sequence[SequenceState], slots: Sequence[int]) -> None:
        self.tokens.host["text"][start : start + len(rows)] = [row.inputs[row.num_computed] for row in rows]

    def outcomes(self, rows: Sequence[SequenceState], out: npt.NDArray[np.int32]) -> list[Outcome]:
        found: list[Outcome] = []
        for row, (token, finite) in zip(cast(Sequence[CosySequence], rows), out.tolist(), strict=True):
            try:
                found.append(self.model.outcome(row, token, bool(finite)))
            except Exception as error:
                found.append(FailedOutcome(f"{type(error).__name__}: {error}"))
        return found


def make_frames(model: CosyVoice3, context: FrameContext) -> TalkerProgram:
    kv, config, _ = context
    rows = max(config.max_batch_size, config.fixed_batch_rows or 0)
    width = min(config.max_graph_positions, model.max_positions)
    ops = select_ops(config, kv.data.device)
    return TalkerProgram(model, kv, ops, rows, config.max_prefill_positions, -(-width // config.block_size))
