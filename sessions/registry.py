"""Create, find, count, expire and close all sessions of a server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from dataclasses import dataclass

import numpy as np

from engine.api import SpeechChunk, SpeechEngine
from sessions.admission import SESSIONS, EvictSession, LocalUsageCounters, ResponseLimiter, UsageCounters
from sessions.alignment.aligner import AlignerFactory, ForcedAligner
from sessions.alignment.lazy_aligner import AlignmentBacklog, IdleAlignmentBacklog
from sessions.audio.formats.codecs import warm_up_codecs
from sessions.audio.opus_library import OpusUnavailable
from sessions.audio.watermark.embedder import Watermark
from sessions.audio_track import AudioTrack
from sessions.clock import now_s
from sessions.config import AudioFormat, RegistryLimits, SpeechSettings
from sessions.encoders import EncoderPool
from sessions.errors import LimitExceeded
from sessions.lexicon_store import LexiconStore
from sessions.metrics import Metrics, NoMetrics
from sessions.quotas import NO_QUOTAS, KeyMeter, KeyQuotas
from sessions.session import Session
from sessions.session_services import SessionServices
from sessions.tracing import ResponseTracer
from sessions.usage import UsageRecorder
from sessions.validation import resolve_settings
from sessions.voices.store import VoiceStore

logger = logging.getLogger(__name__)

ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class RegistryStatistics:
    num_sessions: int
    num_active_responses: int


WARM_UP_RATE = 24_000
WARM_UP_SAMPLES = 1_920


class SessionRegistry:
    """``run`` enforces time-outs while the server is up; ``aclose`` ends everything.

    Limits apply to all that ``tally`` counts, by default the sessions of this registry.
    """

    def __init__(
        self,
        engine: SpeechEngine,
        limits: RegistryLimits | None = None,
        metrics: Metrics | None = None,
        voices: VoiceStore | None = None,
        make_aligner: AlignerFactory = ForcedAligner,
        tally: UsageCounters | None = None,
        evict: EvictSession = lambda _: False,
        lexicons: LexiconStore | None = None,
        usage: UsageRecorder | None = None,
        watermark: Watermark | None = None,
        tracer: ResponseTracer | None = None,
    ) -> None:
        self.limits = limits or RegistryLimits()
        self._encoders = EncoderPool(self.limits.encoder_threads)
        make_aligner(WARM_UP_RATE)  # reads its weights before the first response needs them
        num_aligners = self.limits.aligner_threads
        self._aligners = EncoderPool(min(self.limits.encoder_threads, 1) if num_aligners is None else num_aligners)
        max_unaligned_bytes = self.limits.max_alignment_backlog_mb * 2**20
        self._services = SessionServices(
            engine,
            self.limits.session,
            self._encoders,
            metrics or NoMetrics(),
            voices,
            make_aligner,
            AlignmentBacklog(max_unaligned_bytes),
            IdleAlignmentBacklog(max_unaligned_bytes),
            self._aligners,
            evict,
            lexicons=lexicons,
            usage=usage,
            tracer=tracer,
            watermark=watermark,
        )
        self._tally = tally or LocalUsageCounters()
        self._admission = ResponseLimiter(self.limits, self._tally, evict)
        self._sessions: dict[str, Session] = {}
        self._valid_settings: SpeechSettings | None = None

    def create(
        self,
        key: str = "",
        settings: SpeechSettings | None = None,
        max_active_responses: int | None = None,
        group: str = "",
        is_resumable: bool = False,
        quotas: KeyQuotas = NO_QUOTAS,
        is_bulk: bool = False,
    ) -> Session:
        """A session of the client that holds ``key``, for which ``max_active_responses`` takes the place of the limit
        per key. Sessions of one ``group`` share what the engine has for burst; without one each stands for itself.
        Responses of a bulk session have no deadline in the engine. Raises ``LimitExceeded`` with ``retry_after_ms``,
        or what ``Session.update`` raises."""
        if self._tally.total(SESSIONS) >= self.limits.max_sessions:
            limit, retry_after_ms = self.limits.max_sessions, self.limits.retry_after_ms
            raise LimitExceeded(f"max_sessions is {limit}", retry_after_ms=retry_after_ms)
        settings = settings or SpeechSettings()
        # Settings for which no store is asked are right for all sessions.
        if settings is not self._valid_settings and resolve_settings(settings, key, self._services) is settings:
            self._valid_settings = settings
        session = Session(
            secrets.token_hex(ID_BYTES),
            key,
            self._services,
            self._admission,
            self._on_detached,
            settings,
            max_active_responses,
            group,
            is_resumable,
            None if quotas == NO_QUOTAS else self.create_meter(key, quotas),
            is_bulk,
            None if self._services.tracer is None else self._services.tracer.find_parent(),
        )
        self._sessions[session.session_id] = session
        self._tally.add(SESSIONS, 1)
        return session

    def check_capacity(self, key: str, max_active_responses: int | None = None) -> None:
        """Raise ``LimitExceeded`` if ``key`` has no capacity for another response now."""
        self._admission.check(key, max_active_responses)

    def create_meter(self, key: str, quotas: KeyQuotas) -> KeyMeter:
        """Return what checks and counts the use of a key."""
        return KeyMeter(key, quotas, self._tally, self.limits.retry_after_ms)

    def find(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def statistics(self) -> RegistryStatistics:
        return RegistryStatistics(len(self._sessions), self._admission.num_active)

    async def warm_up(self) -> None:
        """Encode a moment of silence: the first use of libraries and threads takes longer than ten later ones.

        Without libopus each response in Opus is refused later.
        """
        await self._encoders.run(warm_up_codecs)
        with contextlib.suppress(OpusUnavailable):
            audio = AudioTrack(AudioFormat(), WARM_UP_RATE, self._encoders, watermark=self._services.watermark)
            await audio.begin_segment()
            await audio.push(SpeechChunk("warm-up", 0, np.zeros(WARM_UP_SAMPLES, np.float32)))
            await audio.finish()

    async def run(self) -> None:
        """Enforce time-outs until cancelled."""
        while True:
            await asyncio.sleep(self.limits.expire_every_s)
            self.expire()

    def expire(self) -> None:
        """End stalled responses and idle sessions."""
        now = now_s()
        for session in list(self._sessions.values()):
            session.check_timeouts(now)
            if session.idle_s(now) > self.limits.idle_timeout_s:
                logger.info("session expired", extra={"session_id": session.session_id})
                session.detach()

    async def close_all(self) -> None:
        """Close every session at once, and wait until every engine resource of theirs is free."""
        await asyncio.gather(*(session.aclose() for session in list(self._sessions.values())))

    async def aclose(self) -> None:
        await self.close_all()
        self.close_threads()

    def close_threads(self) -> None:
        self._encoders.close()
        self._aligners.close()

    def _on_detached(self, session: Session) -> None:
        if self._sessions.pop(session.session_id, None) is not None:
            self._tally.add(SESSIONS, -1)
