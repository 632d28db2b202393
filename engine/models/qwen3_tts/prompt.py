"""Which text and codec ids the talker is fed, row by row (specs/qwen3-tts.md 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.errors import InvalidRequest, UnknownLanguage, UnknownVoice
from engine.models.qwen3_tts.config import Qwen3TTSConfig

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
