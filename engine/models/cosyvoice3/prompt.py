"""What the talker is fed before it speaks (spec 2.3). An input is a text id, or a speech id behind all of them."""

from __future__ import annotations

from collections.abc import Sequence

from engine.models.cosyvoice3.config import CosyTalkerConfig


class CosyPromptBuilder:
    """``[sos, instruction, transcript, text, task, recording]``, or what of it a request has."""

    def __init__(self, config: CosyTalkerConfig) -> None:
        self._offset = config.text_vocab_size
        self.sos, self.task = self.speech(config.speech_ids.sos), self.speech(config.speech_ids.task)

    def speech(self, token: int) -> int:
        return self._offset + token

    def head(self, instruct_ids: Sequence[int]) -> list[int]:
        """The same for all texts of an instruction."""
        return [self.sos, *instruct_ids]

    def tail(self, text_ids: Sequence[int], recording: Sequence[int]) -> list[int]:
        """Behind the head and the transcript, once all text is known."""
        return [*text_ids, self.task, *map(self.speech, recording)]
