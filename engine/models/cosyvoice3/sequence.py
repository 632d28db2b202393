"""What the talker remembers of one request: its text track, what it has said, how far its prompt has been fed."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from engine.models.base import SequenceState
from engine.models.cosyvoice3.ras import RasParams
from engine.models.cosyvoice3.settings import TalkerSettings
from engine.models.cosyvoice3.voice_prompt import VoicePrompt
from engine.ops.noise import SampleKey

# Speech ids that sound like silence or breath (spec 2.2).
SILENT_IDS = frozenset((1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323))


class SamplingPhase(Enum):
    """What may be drawn next."""

    # All text is known: speech, or the end.
    WHOLE = auto()
    # Live text, inside a block: speech, or a wish for more text.
    BLOCK = auto()
    # Live text has ended: speech, or the end.
    REST = auto()


@dataclass(slots=True)
class CosySequence(SequenceState):
    """``unfed`` is the last speech id while its keys and values are not computed; ``history`` the last ids drawn."""

    settings: TalkerSettings = TalkerSettings()
    prefix: tuple[int, ...] = ()
    voice: VoicePrompt | None = None
    phase: SamplingPhase = SamplingPhase.WHOLE
    prompted: bool = False
    # Of the recording, as far as it is still to be fed; live text goes on from it.
    transcript: list[int] = field(default_factory=list)
    # The recording's ids, likewise.
    speech: list[int] = field(default_factory=list)
    # Speech ids in the open block; None between two.
    block: int | None = None
    unfed: int | None = None
    history: list[int] = field(default_factory=list)
    num_drawn: int = 0
    num_generated: int = 0
    num_silent: int = 0
    # Speech ids the request allows.
    max_tokens_limit: int | None = None
    min_tokens_limit: int | None = None
    ras: RasParams = RasParams()
    seed: int = 0
    segment: int = 0

    @property
    def num_text(self) -> int:
        """Ids to be spoken, as far as they are known."""
        return len(self.text.ids)

    @property
    def max_tokens(self) -> int:
        """Speech ids that this text may take, unless the request says how many (spec 2.4, 8.14); live text goes on from
        a transcript, which counts there."""
        if self.max_tokens_limit is not None:
            return min(self.max_tokens_limit, self.settings.max_tokens)
        told = 0 if self.phase is SamplingPhase.WHOLE or self.voice is None else len(self.voice.transcript_ids)
        by_text = int(self.settings.max_tokens_per_text_token * (self.num_text + told))
        return max(1, min(by_text, self.settings.max_tokens))

    @property
    def min_tokens(self) -> int:
        """Speech ids before which it may not end; live text, whose length is unknown, has none (spec 3.2)."""
        if self.phase is not SamplingPhase.WHOLE:
            return 0 if self.min_tokens_limit is None else self.min_tokens_limit
        by_text = max(1, int(self.settings.min_tokens_per_text_token * self.num_text))
        return min(self.max_tokens, by_text if self.min_tokens_limit is None else self.min_tokens_limit)

    def frame_cap(self) -> int | None:
        return self.max_tokens

    @property
    def draw_key(self) -> SampleKey:
        return SampleKey(self.seed, self.segment, self.num_drawn)

    def record_token(self, token: int) -> None:
        """One more id that counts as drawn."""
        self.history.append(token)
        del self.history[: -self.ras.window]
        self.num_drawn += 1

    def record_silence(self, token: int) -> bool:
        """Count one more speech id; true when it is one silent id too many in a row to be spoken (spec 2.7)."""
        self.num_generated += 1
        self.num_silent = self.num_silent + 1 if token in SILENT_IDS else 0
        limit = self.settings.max_consecutive_silent_tokens
        is_too_many = limit is not None and self.num_silent > limit
        self.num_dropped += is_too_many
        return is_too_many
