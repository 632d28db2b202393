"""Settings of the stages of CosyVoice3, with unit and range. Imports no torch."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from engine.errors import InvalidRequest
from engine.validation import check_minimums

# Speech tokens for a text token: 40 s.
MAX_RATIO = 1_000
MAX_HOP_BLOCKS = 64


class TalkerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    # Which of the talker's files to load; ``None`` takes the first of them that is there.
    weights: Literal["llm.pt", "llm.rl.pt"] | None = None
    # ``merge``: the control ids stand together as one candidate of their summed likelihood, and only it stops. ``set``:
    # each is a candidate of its own, and any of them stops, as in the official code.
    stop_mode: Literal["merge", "set"] = "merge"
    min_tokens_per_text_token: float = 2.0
    max_tokens_per_text_token: float = 20.0
    # Speech tokens of one request, whatever its text.
    max_tokens: int = 2_048
    # In one segment; the model was trained on no more.
    max_text_tokens: int = 200
    # Of more silent tokens in a row the rest is not spoken; ``None`` speaks all.
    max_consecutive_silent_tokens: int | None = 5
    # Take instructions that the model was not trained on.
    allow_untrained_instructions: bool = False
    # Read ``[breath]``, ``<strong>``, phonemes and pinyin in the text as what they name.
    parse_control_tags: bool = True

    def __post_init__(self) -> None:
        minimums = {"max_tokens": 1, "max_text_tokens": 1, "max_consecutive_silent_tokens": 0}
        check_minimums(self, minimums, "cosyvoice3.talker.")
        if not 0 <= self.min_tokens_per_text_token <= self.max_tokens_per_text_token <= MAX_RATIO:
            raise InvalidRequest(
                f"cosyvoice3.talker.min_tokens_per_text_token is {self.min_tokens_per_text_token}; it must lie in "
                f"0..max_tokens_per_text_token, {self.max_tokens_per_text_token}, and that in 0..{MAX_RATIO}",
                "min_tokens_per_text_token",
            )


class FlowSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the flow (tokens to mel). A page holds the state of a block of 25 tokens: 92 MB as published."""

    # For pages; ``None``: 2 GB on the CPU, ``memory_utilization`` of what is free on CUDA.
    memory_mb: int | None = None
    memory_utilization: float = 0.6
    # Blocks that a block sees besides those of its voice, 1 s each; ``None``: all, which is exact.
    context_blocks: int | None = None
    # Pages that a request holds from its admission on when it sees all blocks; without room for them it waits.
    reserved_blocks: int = 6
    # Leave up to a second at the beginning of a recording from the flow, so that sound can leave after 13 tokens.
    trim_prompts: bool = True
    # Blocks of a request's first chunk, the second and so on; a listener about to run dry gets what is there.
    chunk_blocks: tuple[int, ...] = (1, 1, 2)
    # A listener with more lead than this waits until its next chunk is full.
    batching_slack_s: float = 0.6
    # ODE steps in one step of the engine: few, so that blocks that are ready meanwhile join.
    ode_steps_per_engine_step: int = 2
    # Blocks in one ODE step; the others wait for the next.
    max_blocks_per_step: int = 64
    # Record the steps as CUDA graphs, where there is CUDA.
    graphs: bool = True
    # Triton kernels, where there is CUDA; off runs their plain reference.
    triton_kernels: bool = True

    def __post_init__(self) -> None:
        steps = ("ode_steps_per_engine_step", "max_blocks_per_step")
        minimums = {"reserved_blocks": 2} | dict.fromkeys((*steps, "context_blocks", "memory_mb"), 1)
        check_minimums(self, minimums, "cosyvoice3.flow.")
        if not self.chunk_blocks or not all(1 <= blocks <= MAX_HOP_BLOCKS for blocks in self.chunk_blocks):
            raise InvalidRequest(
                f"cosyvoice3.flow.chunk_blocks is {self.chunk_blocks}; each in 1..{MAX_HOP_BLOCKS}", "chunk_blocks"
            )
        if not 0 <= self.batching_slack_s < math.inf:
            raise InvalidRequest(
                f"cosyvoice3.flow.batching_slack_s is {self.batching_slack_s}; at least 0", "batching_slack_s"
            )
        if not 0 < self.memory_utilization < 1:
            raise InvalidRequest(
                f"cosyvoice3.flow.memory_utilization is {self.memory_utilization}; between 0 and 1",
                "memory_utilization",
            )


class VocoderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the vocoder (mel to samples)."""

    # Record calls of usual lengths as CUDA graphs, where there is CUDA.
    graphs: bool = True


class EncoderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the voice encoder."""

    # Of each of the two networks, on the CPU; they sleep while there is no recording.
    num_threads: int = 2

    def __post_init__(self) -> None:
        check_minimums(self, {"num_threads": 1}, "cosyvoice3.encoder.")


class CosyVoice3Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One group a stage: what is set for one does not reach another."""

    talker: TalkerSettings = TalkerSettings()
    flow: FlowSettings = FlowSettings()
    vocoder: VocoderSettings = VocoderSettings()
    encoder: EncoderSettings = EncoderSettings()
