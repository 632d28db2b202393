"""What the talker stage remembers of one request: its text track, its frames, how its codes are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.api import SamplingParams, TextLayout
from engine.models.base import SequenceState
from engine.models.qwen3_tts.config import GenerationDefaults, TextIds
from engine.models.qwen3_tts.frame_log import FrameLog
from engine.models.qwen3_tts.prepared_voice import PreparedVoice
from engine.models.qwen3_tts.prompt import NO_TOKEN
from engine.models.qwen3_tts.prompt import PromptPosition as PromptRow
from engine.ops.noise import SampleKey
from engine.ops.sampler import RowSamplingParams

# Of the official code (spec 4.2).
MIN_NEW_TOKENS = 2


@dataclass(slots=True)
class QwenSequence(SequenceState):
    """``codes`` are the frames so far; ``seen`` marks the code-0 tokens that are penalized."""

    prefix: tuple[PromptRow, ...] = ()
    voice: PreparedVoice | None = None
    layout: TextLayout = TextLayout.STREAMING
    eos_fed: bool = False
    prompted: bool = False
    num_transcript_fed: int = 0
    codes: list[Sequence[int]] | FrameLog = field(default_factory=list)
    seen: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    seed: int = 0
    segment: int = 0
    code0: RowSamplingParams = RowSamplingParams(0.9, 50)
    residual: RowSamplingParams = RowSamplingParams(0.9, 50)
    penalty: float = 1.05
    repetition_window: int | None = None
    min_new_tokens: int = 2

    def frame_of(self, item: PromptRow) -> Sequence[int]:
        """The codes that an input adds up: of the recording, or of what the row has spoken."""
        if self.voice is not None and item.reference != NO_TOKEN:
            return self.voice.codes[item.reference]
        return self.codes[item.frame]

    def record_frame(self, codes: list[int]) -> None:
        """One more frame: its code 0 is penalized from now on, or as long as it is in the window."""
        self.codes.append(codes)
        self.seen[codes[0]] = True
        window = self.repetition_window
        if window is not None and len(self.codes) > window:
            gone = self.codes[-window - 1][0]
            self.seen[gone] = any(frame[0] == gone for frame in self.codes[-window:])

    def next_text_inputs(self, ids: TextIds) -> int | None:
        """The rest of a transcript, text, then one end-of-text row, then padding; never padding while text is open
        (spec 3.7)."""
        if self.voice is not None and self.num_transcript_fed < len(self.voice.transcript_ids):
            self.num_transcript_fed += 1
            return self.voice.transcript_ids[self.num_transcript_fed - 1]
        waiting = self.text.pop()
        if waiting is not None or not self.text.closed:
            return waiting
        text = ids.tts_pad if self.eos_fed else ids.tts_eos
        self.eos_fed = True
        return text

    @property
    def draw_key(self) -> SampleKey:
        return SampleKey(self.seed, self.segment, len(self.codes))


def draw_params(sampling: SamplingParams, defaults: GenerationDefaults, prefix: str) -> RowSamplingParams:
    def value(name: str) -> float:
        given = getattr(sampling, prefix + name)
        return getattr(defaults, prefix + name) if given is None else given

    temperature = value("temperature") if value("do_sample") else 0.0
    return RowSamplingParams(temperature=temperature, top_k=int(value("top_k")), top_p=value("top_p"))
