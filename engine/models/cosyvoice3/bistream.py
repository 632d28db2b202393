"""Live text: five ids of it, fifteen of speech, and so on; when a row feeds what (spec 3.2)."""

from __future__ import annotations

from engine.models.base import AwaitText, TalkerInputs
from engine.models.cosyvoice3.config import CosyTalkerConfig
from engine.models.cosyvoice3.prompt import CosyPromptBuilder
from engine.models.cosyvoice3.sequence import CosySequence, SamplingPhase


class Bistream:
    """Text and speech of the recording go in first, in the same blocks, and live text goes on from them."""

    def __init__(self, config: CosyTalkerConfig, prompts: CosyPromptBuilder) -> None:
        self.block_text, self.block_speech = config.block_text, config.block_speech
        self.fill = config.speech_ids.fill
        self.prompts = prompts

    def begin(self, row: CosySequence, head: list[int]) -> None:
        """The row's prefix: ``head``, and all whole blocks of the recording, which need no live text."""
        prefix = list(head)
        while len(row.transcript) >= self.block_text and len(row.speech) >= self.block_speech:
            prefix += self._pop_transcript(row, self.block_text)
            prefix += self._pop_speech(row)
        row.prefix = tuple(prefix)
        row.num_prompt_tokens = max(1, self._num_missing(row))
        row.phase = SamplingPhase.BLOCK

    def _num_missing(self, row: CosySequence) -> int:
        """Live ids without which no block opens for the row's own speech."""
        num_blocks = len(row.speech) // self.block_speech + 1
        return self.block_text * num_blocks - len(row.transcript)

    def next_input(self, row: CosySequence) -> AwaitText | TalkerInputs:
        """Called when all inputs so far are computed."""
        if row.phase is SamplingPhase.REST or row.block is not None:
            return self._step(row)
        if not row.text.ids and not row.text.closed:
            return AwaitText()
        if len(row.transcript) + row.text.num_waiting >= self.block_text:
            return self._open_block(row)
        return self._close(row) if row.text.closed else AwaitText()

    def _step(self, row: CosySequence) -> TalkerInputs:
        assert row.unfed is not None
        token, row.unfed = row.unfed, None
        return TalkerInputs([self.prompts.speech(token)])

    def _open_block(self, row: CosySequence) -> TalkerInputs:
        """The last speech id of the block before, five text ids and, of a recording, the speech that goes with them."""
        inputs = self._pop_unfed(row) + self._pop_text(row, self.block_text)
        if not row.speech:
            row.block = 0
            return TalkerInputs(inputs)
        num_speech = min(len(row.speech), self.block_speech)
        inputs += self._pop_speech(row)
        row.block = num_speech if num_speech < self.block_speech else None
        return TalkerInputs(inputs, sample=row.block is not None)

    def _close(self, row: CosySequence) -> TalkerInputs:
        """No more text: what is left of it, and the sign to speak on to the end."""
        inputs = self._pop_unfed(row) + self._pop_text(row, self.block_text)
        row.phase, row.block = SamplingPhase.REST, None
        rest = [self.prompts.speech(token) for token in row.speech]
        row.speech.clear()
        return TalkerInputs([*inputs, self.prompts.task, *rest])

    def _pop_unfed(self, row: CosySequence) -> list[int]:
        token, row.unfed = row.unfed, None
        return [] if token is None else [self.prompts.speech(token)]

    def _pop_text(self, row: CosySequence, count: int) -> list[int]:
        taken = self._pop_transcript(row, count)
        return taken + row.text.pop_many(count - len(taken))

    def _pop_transcript(self, row: CosySequence, count: int) -> list[int]:
        taken, row.transcript = row.transcript[:count], row.transcript[count:]
        return taken

    def _pop_speech(self, row: CosySequence) -> list[int]:
        taken, row.speech = row.speech[: self.block_speech], row.speech[self.block_speech :]
        return [self.prompts.speech(token) for token in taken]

    def record_token(self, row: CosySequence, token: int) -> None:
        """A speech id was drawn inside a block; the last is followed by a request for text that is not sampled."""
        assert row.block is not None
        row.unfed = token
        row.block += 1
        if row.block == self.block_speech:
            self.end_block(row)

    def end_block(self, row: CosySequence) -> None:
        row.record_token(self.fill)
        row.block = None
