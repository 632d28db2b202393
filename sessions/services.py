"""What every session of a registry works with."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.api import SpeechEngine
from sessions.alignment.aligner import LetterAligner, MakeAligner
from sessions.alignment.late import Backlog
from sessions.alignment.spare import SpareMoments
from sessions.checks import check_settings
from sessions.config import SessionLimits, SpeechSettings
from sessions.encoders import EncoderThreads
from sessions.metrics import Metrics
from sessions.text_budget import TextBudget
from sessions.turns import Turns
from sessions.voices.naming import with_stored_voice
from sessions.voices.store import VoiceStore


@dataclass(frozen=True, slots=True)
class Services:
    engine: SpeechEngine
    limits: SessionLimits
    encoders: EncoderThreads
    metrics: Metrics
    voices: VoiceStore | None = None
    """Voices beside those of the checkpoint."""
    make_aligner: MakeAligner = LetterAligner
    """Finds when each word is spoken."""
    backlog: Backlog = field(default_factory=Backlog)
    """Speech that it has not looked through, for nobody has asked."""
    spare_moments: SpareMoments = field(default_factory=SpareMoments)
    """Speech that it looks through soon, for somebody may ask at any moment."""
    aligners: EncoderThreads = field(default_factory=lambda: EncoderThreads(0))
    """Where it catches up when somebody does."""
    turns: Turns = field(default_factory=Turns)
    """For chunks of speech: an engine gives those of many responses at once."""
    text_budget: TextBudget = field(default_factory=TextBudget)

    def checked(self, settings: SpeechSettings, key: str) -> SpeechSettings:
        """The settings with the voice that they name, for a holder of ``key``. Raises what ``check_settings`` does."""
        settings = with_stored_voice(settings, key, self.engine.info, self.voices)
        check_settings(settings, self.engine.info, self.limits)
        return settings
