"""State of one request at the talker, and its prompt rows."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, overload

import torch
from torch import Tensor

from engine.api import SamplingParams, TextLayout
from engine.errors import InvalidRequest, UnknownLanguage, UnknownVoice
from engine.models.base import SequenceState
from engine.models.qwen3_tts.config import GenerationDefaults, Qwen3TTSConfig
from engine.models.qwen3_tts.voice import PreparedVoice
from engine.ops.noise import SampleKey
from engine.ops.sampler import RowSamplingParams
from engine.text.tokenizer_files import SpecialIds


class FrameLog(Sequence[Sequence[int]]):
    """Frames of ``num_codes`` 16-bit codes, in one array for a row.

    A list of numbers for each frame takes ten times the memory, and thousands of rows of them stop the engine for a
    tenth of a second whenever Python's collector looks through them.
    """

    def __init__(self, num_codes: int, codes: array[int] | None = None) -> None:
        self._codes = array("h") if codes is None else codes
        self._size = num_codes

    def __len__(self) -> int:
        return len(self._codes) // self._size

    @overload
    def __getitem__(self, index: int) -> array[int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[array[int]]: ...
    def __getitem__(self, index: int | slice) -> array[int] | list[array[int]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"frame {index} of {len(self)}")
        start = index % len(self) * self._size
        return self._codes[start : start + self._size]

    def append(self, codes: Sequence[int]) -> None:
        self._codes.extend(codes)

    def add_bytes(self, codes: bytes) -> None:
        """One frame as the machine keeps 16-bit numbers."""
        self._codes.frombytes(codes)


# Of the official code (spec 4.2).
MIN_NEW_TOKENS = 2


@dataclass(slots=True)
class QwenSequence(SequenceState):
    """``codes`` are the frames so far; ``seen`` marks the code-0 tokens that are penalized, shared by new sequences."""

    prefix: tuple[PromptPosition, ...] = ()
    voice: PreparedVoice | None = None
    layout: TextLayout = TextLayout.STREAMING
    eos_fed: bool = False
    prompted: bool = False
    num_transcript_fed: int = 0
    num_codes: int = 1
    seen: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    owns_seen: bool = False
    seed: int = 0
    segment: int = 0
    code0: RowSamplingParams = RowSamplingParams(0.9, 50)
    residual: RowSamplingParams = RowSamplingParams(0.9, 50)
    penalty: float = 1.05
    repetition_window: int | None = None
    min_new_tokens: int = 2
    codes: FrameLog = field(init=False)

    def __post_init__(self) -> None:
        self.codes = FrameLog(self.num_codes, self.sampled_codes)

    def frame_of(self, item: PromptPosition) -> Sequence[int]:
        """The codes that an input adds up: of the recording, or of what the row has spoken."""
        if self.voice is not None and item.reference != NO_TOKEN:
            return self.voice.codes[item.reference]
        return self.codes[item.frame]

    def record_frame(self, codes: Sequence[int]) -> None:
        """One more frame: its code 0 is penalized from now on, or as long as it is in the window."""
        if not self.owns_seen:
            self.seen, self.owns_seen = self.seen.clone(), True
        self.codes.append(codes)
        self.seen[codes[0]] = True
        window = self.repetition_window
        if window is not None and len(self.codes) > window:
            gone = self.codes[-window - 1][0]
            self.seen[gone] = any(frame[0] == gone for frame in self.codes[-window:])

    def next_text_inputs(self, ids: SpecialIds) -> int | None:
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
    def sample_key(self) -> SampleKey:
        return SampleKey(self.seed, self.segment, len(self.codes))


def row_sampling_params(sampling: SamplingParams, defaults: GenerationDefaults, prefix: str) -> RowSamplingParams:
    def value(name: str) -> float:
        given = getattr(sampling, prefix + name)
        return getattr(defaults, prefix + name) if given is None else given

    temperature = value("temperature") if value("do_sample") else 0.0
    return RowSamplingParams(temperature=temperature, top_k=int(value("top_k")), top_p=value("top_p"))


# No id on this side of a row.
NO_TOKEN = -1


class PromptPosition(NamedTuple):
    """One talker position: T(text), and on the codec side E0(codec), the speaker's vector, or a whole frame by its
    index in what has been spoken or in the voice's recording; the codec side may be absent."""

    text: int
    codec: int = NO_TOKEN
    frame: int = NO_TOKEN
    reference: int = NO_TOKEN
    speaker: bool = False

    @property
    def holds_frame(self) -> bool:
        return self.frame != NO_TOKEN or self.reference != NO_TOKEN


class PromptBuilder:
    """``template_ids`` are the three role rows: im_start, assistant, newline."""

    def __init__(self, config: Qwen3TTSConfig, template_ids: Sequence[int]) -> None:
        self.config, self.template_ids = config, template_ids

    def language_tag(self, speaker: str | None, language: str) -> int | None:
        """The language's codec id, None for auto; a speaker's dialect overrides auto and chinese (spec 3.2)."""
        talker = self.config.talker
        name = language.lower()
        if speaker is not None and speaker in talker.dialects and name in ("auto", "chinese"):
            name = talker.dialects[speaker]
        if name == "auto":
            return None
        if name not in talker.languages:
            known = ", ".join(sorted(talker.languages))
            raise UnknownLanguage(f"language is {language!r}; this checkpoint knows auto, {known}", "language")
        return talker.languages[name]

    def speaker_row(self, speaker: str) -> int:
        talker = self.config.talker
        if speaker not in talker.speakers:
            known = ", ".join(sorted(talker.speakers)) or "none"
            raise UnknownVoice(f"voice is {speaker!r}; this checkpoint has {known}", "voice")
        return talker.speakers[speaker]

    def prefix(
        self, speaker: str | None, language: str, instruct_ids: Sequence[int] = (), cloned: bool = False
    ) -> list[PromptPosition]:
        """Every row before the text, the same for all texts of a voice (spec 3.3).

        ``instruct_ids`` is the whole user turn, empty without an instruction. ``cloned``: the speaker is a vector.
        """
        text, control = self.config.text, self.config.talker.control
        tag = self.language_tag(speaker, language)
        tags = [control.nothink, control.think_bos, control.think_eos]
        if tag is not None:
            tags = [control.think, control.think_bos, tag, control.think_eos]
        if speaker is not None:
            tags.append(self.speaker_row(speaker))
        return [
            *(PromptPosition(i) for i in instruct_ids),
            *(PromptPosition(i) for i in self.template_ids),
            *(PromptPosition(text.tts_pad, tag) for tag in tags),
            *([PromptPosition(text.tts_pad, speaker=True)] if cloned else []),
            PromptPosition(text.tts_bos, control.pad),
        ]

    def streaming_tail(self, first_id: int) -> list[PromptPosition]:
        return [PromptPosition(first_id, self.config.talker.control.bos)]

    def full_tail(self, ids: Sequence[int]) -> list[PromptPosition]:
        if not ids:
            raise InvalidRequest("text holds nothing that can be spoken", "text")
        text, control = self.config.text, self.config.talker.control
        return [
            *(PromptPosition(i, control.pad) for i in ids),
            PromptPosition(text.tts_eos, control.pad),
            PromptPosition(text.tts_pad, control.bos),
        ]

    def reference_rows(self, text_ids: Sequence[int], start: int = 0) -> list[PromptPosition]:
        """Rows of the recording's codes from ``start`` on, each with one text id (spec 3.5): 0 begins them."""
        bos = self.config.talker.control.bos
        return [
            PromptPosition(text, reference=place - 1) if place else PromptPosition(text, bos)
            for place, text in enumerate(text_ids, start)
        ]

    def transcript_rows(self, ids: Sequence[int]) -> list[PromptPosition]:
        """The transcript in front of a text that is known as a whole."""
        return [PromptPosition(i, self.config.talker.control.pad) for i in ids]

    def full_reference_tail(self, ids: Sequence[int], num_code_rows: int) -> list[PromptPosition]:
        """The text behind its transcript, and then the recording."""
        text = self.config.text
        ended = [*self.full_tail(ids)[:-1]]
        return [*ended, *self.reference_rows([text.tts_pad] * num_code_rows)]
