"""Objects that the sessions of a registry share."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.api import SpeechEngine
from sessions.alignment.aligner import AlignerFactory, ForcedAligner
from sessions.alignment.idle_backlog import IdleAlignmentBacklog
from sessions.alignment.lazy_aligner import AlignmentBacklog
from sessions.config import SessionLimits, SpeechSettings
from sessions.encoders import EncoderPool
from sessions.metrics import Metrics
from sessions.text_budget import TextBudget
from sessions.validation import check_settings
from sessions.voices.lookup import resolve_stored_voice
from sessions.voices.store import VoiceStore


@dataclass(frozen=True, slots=True)
class SessionServices:
    engine: SpeechEngine
    limits: SessionLimits
    encoders: EncoderPool
    metrics: Metrics
    # Voices beside those of the checkpoint.
    voices: VoiceStore | None = None
    # Finds when each word is spoken.
    make_aligner: AlignerFactory = ForcedAligner
    # Speech that is not aligned because no query came.
    backlog: AlignmentBacklog = field(default_factory=AlignmentBacklog)
    # Speech that is aligned soon, because a query may come at any moment.
    idle_backlog: IdleAlignmentBacklog = field(default_factory=IdleAlignmentBacklog)
    # Threads that align on demand for queries.
    aligners: EncoderPool = field(default_factory=lambda: EncoderPool(0))
    text_budget: TextBudget = field(default_factory=TextBudget)

    def validate(self, settings: SpeechSettings, key: str) -> SpeechSettings:
        """The settings with the voice that they name, for a holder of ``key``. Raises what ``check_settings`` does."""
        settings = resolve_stored_voice(settings, key, self.engine.info, self.voices)
        check_settings(settings, self.engine.info, self.limits)
        return settings
