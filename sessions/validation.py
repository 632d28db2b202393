"""Validates settings; each error names the field, the limit and the value."""

from __future__ import annotations

from engine.api import (
    CHUNK_FRAMES,
    MAX_CHUNK_STEPS,
    SAMPLING_RANGES,
    EngineInfo,
    InvalidRequest,
    SamplingParams,
    UnknownLanguage,
    UnknownVoice,
)
from sessions.audio.time_stretch import MAX_SPEED, MIN_SPEED
from sessions.config import AudioFormat, SessionLimits, SpeechSettings
from sessions.errors import LimitExceeded
from sessions.packetizer import create_packetizer

MAX_FRAMES = 2**32 - 1


def check_settings(settings: SpeechSettings, info: EngineInfo, limits: SessionLimits) -> None:
    """Check settings against the model and the limits.

    Raises ``UnknownVoice``, ``UnknownLanguage``, ``UnsupportedFormat``, ``LimitExceeded`` or ``InvalidRequest``.
    """
    check_voice(settings, info)
    if settings.language not in {"auto", *info.languages}:
        raise UnknownLanguage(f"language {settings.language!r} is unknown", "language")
    if settings.instruct and not info.takes_instruct:
        raise InvalidRequest(f"instruct is given; {info.model} does not take instructions", "instruct")
    if len(settings.instruct) > limits.max_instruct_chars:
        found = f"instruct has {len(settings.instruct)} characters"
        raise LimitExceeded(f"{found}, max_instruct_chars is {limits.max_instruct_chars}", "instruct")
    if settings.lead_ms is not None and not 0 <= settings.lead_ms <= limits.max_lead_ms:
        raise LimitExceeded(
            f"lead_ms must be 0 to {limits.max_lead_ms} (max_lead_ms), is {settings.lead_ms}", "lead_ms"
        )
    if not MIN_SPEED <= settings.speed <= MAX_SPEED:
        raise InvalidRequest(f"speed must be {MIN_SPEED:g} to {MAX_SPEED:g}, is {settings.speed:g}", "speed")
    check_frames(settings)
    check_fields(settings, info)
    check_sampling(settings.sampling, info)
    check_format(settings.format)


def check_voice(settings: SpeechSettings, info: EngineInfo) -> None:
    if settings.clone is not None:
        if not info.can_clone:
            raise InvalidRequest(f"voice is a cloned one; {info.model} does not clone voices", "voice")
    elif settings.voice is not None and settings.voice not in {voice.name for voice in info.voices}:
        raise UnknownVoice(f"voice {settings.voice!r} is unknown", "voice")


def check_frames(settings: SpeechSettings) -> None:
    if settings.max_frames is not None and not 1 <= settings.max_frames <= MAX_FRAMES:
        raise InvalidRequest(f"max_frames must be 1 to {MAX_FRAMES}, is {settings.max_frames}", "max_frames")
    if len(settings.chunk_frames) > MAX_CHUNK_STEPS:
        found = f"chunk_frames has {len(settings.chunk_frames)} entries"
        raise InvalidRequest(f"{found}, at most {MAX_CHUNK_STEPS} are allowed", "chunk_frames")
    for frames in settings.chunk_frames:
        if frames not in CHUNK_FRAMES:
            known = ", ".join(map(str, CHUNK_FRAMES))
            raise InvalidRequest(f"chunk_frames must hold {known}, holds {frames}", "chunk_frames")


def check_fields(settings: SpeechSettings, info: EngineInfo) -> None:
    """Refuse options that the model does not support."""
    for name in info.refused_fields:
        value = settings.chunk_frames or None if name == "chunk_frames" else getattr(settings.sampling, name)
        if value is not None:
            raise InvalidRequest(f"{name} is given; it has no meaning to {info.model}", name)


def check_sampling(sampling: SamplingParams, info: EngineInfo) -> None:
    for name, (low, high) in {**SAMPLING_RANGES, **info.sampling_limits}.items():
        value = getattr(sampling, name)
        if value is not None and not low <= value <= high:
            raise InvalidRequest(f"{name} must be {low} to {high}, is {value}", name)


def check_format(audio: AudioFormat) -> None:
    """Check an audio format; raises ``UnsupportedFormat``."""
    create_packetizer(audio)
