"""What a client can choose, and what the server allows. Every limit is a named setting."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from engine.api import SamplingParams, TextLayout


class Encoding(StrEnum):
    OPUS = "opus"
    PCM_S16LE = "pcm_s16le"
    MULAW = "mulaw"
    ALAW = "alaw"


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioFormat:
    """How audio leaves. Opus: 24 or 48 kHz, packets of 20 ms. mu-law and A-law: 8 kHz."""

    encoding: Encoding = Encoding.OPUS
    sample_rate: int = 24_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechSettings:
    """How a response speaks. A session holds one as the default of its responses."""

    voice: str | None = None
    """A name out of ``EngineInfo.voices``; ``None`` takes the first."""
    language: str = "auto"
    instruct: str = ""
    format: AudioFormat = field(default_factory=AudioFormat)
    normalize_text: bool | None = None
    """``None`` follows the checkpoint (``EngineInfo.normalize_text``)."""
    lead_ms: int | None = 2_000
    """Most audio handed over and not yet played; ``None`` hands over as fast as it is made (burst)."""
    avoid_dead_air: bool = True
    """Whether a segment short of text may be closed early (docs/sessions.md)."""
    layout: TextLayout = TextLayout.AUTO
    sampling: SamplingParams = field(default_factory=SamplingParams)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """What one session may do."""

    max_active_responses: int = 8
    max_response_chars: int = 50_000
    max_lead_ms: int = 60_000
    max_remembered_responses: int = 4
    """So many ended responses can still be asked what was heard."""
    text_timeout_s: float = 60.0
    """A response that waits for text, with nothing left to play, ends after this."""
    reader_timeout_s: float = 10.0
    """A response whose audio is due and not taken ends after this (slow_reader)."""
    engine_timeout_s: float = 20.0
    """A response whose text is with the engine and makes no sound ends after this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryLimits:
    """What all sessions together, and those of one key, may do."""

    max_sessions: int = 5_000
    max_active_responses: int = 512
    max_active_responses_per_key: int = 64
    idle_timeout_s: float = 600.0
    """A session without a response and without a message ends after this."""
    retry_after_ms: int = 1_000
    """What refused clients are told."""
    session: SessionLimits = field(default_factory=SessionLimits)
