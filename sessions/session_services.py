"""Objects that the sessions of a registry share."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.api import SpeechEngine
from sessions.admission import EvictSession
from sessions.alignment.aligner import AlignerFactory, ForcedAligner
from sessions.alignment.lazy_aligner import AlignmentBacklog, IdleAlignmentBacklog
from sessions.alignment.uniform_aligner import UniformAligner
from sessions.audio.watermark.embedder import Watermark
from sessions.config import SessionLimits, SpeechSettings
from sessions.encoders import EncoderPool
from sessions.lexicon_store import LexiconStore
from sessions.metrics import Metrics
from sessions.text_budget import TextBudget
from sessions.timeline import ResponseTimeline
from sessions.tracing import ResponseTracer
from sessions.usage import UsageRecorder
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
    evict: EvictSession = lambda _: False
    text_budget: TextBudget = field(default_factory=TextBudget)
    # Lexicons that settings name.
    lexicons: LexiconStore | None = None
    # Where each reply that ends is recorded.
    usage: UsageRecorder | None = None
    # Where the moments of each reply that ends are recorded.
    tracer: ResponseTracer | None = None
    # Marks all speech.
    watermark: Watermark | None = None

    def create_timeline(self, settings: SpeechSettings) -> ResponseTimeline:
        """Return the timeline of a response; without a need for word times it divides its speech evenly."""
        needs_alignment = settings.reports_heard_text or settings.word_times or settings.reads_markup
        make_aligner = self.make_aligner if needs_alignment else UniformAligner
        sample_rate = self.engine.info.sample_rate
        return ResponseTimeline(sample_rate, make_aligner, settings.speed, self._select_backlog(settings))

    def _select_backlog(self, settings: SpeechSettings) -> AlignmentBacklog | None:
        """Return the backlog where speech waits for alignment; ``None`` aligns it at once."""
        if settings.word_times or not settings.reports_heard_text:
            return None
        return self.idle_backlog if settings.align_eagerly else self.backlog
