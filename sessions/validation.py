"""Validates settings; each error names the field, the limit and the value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.api import (
    EngineInfo,
    InvalidRequest,
    UnknownLanguage,
    UnknownVoice,
)
from sessions.audio.formats.registry import check_format
from sessions.audio.time_stretch import MAX_SPEED, MIN_SPEED
from sessions.config import SessionLimits, SpeechSettings
from sessions.errors import LimitExceeded
from sessions.lexicon_store import MAX_NAMED_LEXICONS, LexiconStore, UnknownLexicon
from sessions.text.ssml.speaker_lines import COLONS, MAX_LABEL_CHARS, MAX_SPEAKERS
from sessions.voices.lookup import resolve_stored_voice

if TYPE_CHECKING:
    from sessions.session_services import SessionServices

MAX_FRAMES = 2**32 - 1


def resolve_settings(settings: SpeechSettings, key: str, services: SessionServices) -> SpeechSettings:
    """Return the settings with the voice that they name, for a holder of ``key``. Raises as ``check_settings``."""
    info = services.engine.info
    settings = resolve_lexicons(resolve_stored_voice(settings, key, info, services.voices), key, services.lexicons)
    check_settings(settings, info, services.limits)
    return settings


def resolve_lexicons(settings: SpeechSettings, key: str, store: LexiconStore | None) -> SpeechSettings:
    """The same settings with the lexicons that they name. Raises ``UnknownLexicon`` or ``InvalidRequest``."""
    names = settings.lexicon_names
    if not names:
        return settings
    if len(names) > MAX_NAMED_LEXICONS:
        raise InvalidRequest(f"lexicons has {len(names)} names, at most {MAX_NAMED_LEXICONS} are allowed", "lexicons")
    if store is None:
        raise UnknownLexicon("lexicons are named, and there is no store of lexicons", "lexicons")
    return replace(settings, lexicon_names=(), lexicons=settings.lexicons + store.find_all(key, names))


def check_settings(settings: SpeechSettings, info: EngineInfo, limits: SessionLimits) -> None:
    """Check settings against the model and the limits.

    Raises ``UnknownVoice``, ``UnknownLanguage``, ``UnsupportedFormat``, ``LimitExceeded`` or ``InvalidRequest``.
    """
    check_voice(settings, info)
    check_all_but_voice(settings, info, limits)


def check_all_but_voice(settings: SpeechSettings, info: EngineInfo, limits: SessionLimits) -> None:
    """Check what ``check_settings`` checks but for the voice, and raise the same."""
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
    if settings.max_frames is not None and not 1 <= settings.max_frames <= MAX_FRAMES:
        raise InvalidRequest(f"max_frames must be 1 to {MAX_FRAMES}, is {settings.max_frames}", "max_frames")
    check_labels(settings.speakers)
    info.check_options(settings.sampling, settings.chunk_frames)
    check_format(settings.format)


def check_labels(speakers: Mapping[str, str]) -> None:
    """Check the labels of speakers; whether their voices exist is checked elsewhere. Raises ``InvalidRequest``."""
    if len(speakers) > MAX_SPEAKERS:
        raise InvalidRequest(f"speakers has {len(speakers)} labels, at most {MAX_SPEAKERS} are allowed", "speakers")
    for label in speakers:
        if not 0 < len(label) <= MAX_LABEL_CHARS:
            message = f"speakers: a label must have 1 to {MAX_LABEL_CHARS} characters, has {len(label)}"
            raise InvalidRequest(message, "speakers")
        if label != label.strip() or not label.isprintable() or any(colon in label for colon in COLONS):
            message = f"speakers: a label must be of one line, without colons or spaces around it, is {label!r}"
            raise InvalidRequest(message, "speakers")


def check_voice(settings: SpeechSettings, info: EngineInfo) -> None:
    if settings.clone is not None:
        if not info.can_clone:
            raise InvalidRequest(f"voice is a cloned one; {info.model} does not clone voices", "voice")
    elif settings.voice is not None and settings.voice not in {voice.name for voice in info.voices}:
        raise UnknownVoice(f"voice {settings.voice!r} is unknown", "voice")
