"""Resolve the name of a stored voice, or of a blend of two, to the voice itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from engine.api import ClonedVoice, EngineInfo, InvalidRequest
from sessions.config import SpeechSettings
from sessions.voices.store import VoiceStore
from sessions.voices.voice import SHARED, StoredVoice, VoiceManifest


def blend(first: ClonedVoice, second: ClonedVoice, weight: float) -> ClonedVoice:
    """The embedding ``weight`` of the way from the first to the second, as long as theirs are on the way there.

    Recordings cannot be blended, so what comes out is cloned by its embedding alone. Raises ``InvalidRequest``.
    """
    if not 0 <= weight <= 1:
        raise InvalidRequest(f"weight must be 0 to 1, is {weight:g}", "weight")
    one, other = (np.frombuffer(voice.embedding, np.float32).astype(np.float64) for voice in (first, second))
    if one.size != other.size:
        message = f"voices of {one.size} and {other.size} numbers belong to two models and cannot be blended"
        raise InvalidRequest(message, "voice")
    mixed = (1 - weight) * one + weight * other
    length = (1 - weight) * np.linalg.norm(one) + weight * np.linalg.norm(other)
    mixed *= length / max(float(np.linalg.norm(mixed)), 1e-12)
    return ClonedVoice(embedding=mixed.astype(np.float32).tobytes())


def embedding_numbers(voice: ClonedVoice) -> list[float]:
    """Return the embedding in the shortest decimals of its float32 numbers, which read back as the same."""
    return [float(str(number)) for number in np.frombuffer(voice.embedding, np.float32)]


BYTES_PER_NUMBER = 4


def resolve_stored_voice(
    settings: SpeechSettings, key: str, info: EngineInfo, store: VoiceStore | None
) -> SpeechSettings:
    """The same settings; if ``voice`` is no voice of the checkpoint but one stored for this key, with its ``clone``.

    Raises ``InvalidRequest`` for a voice that was made for another model. An unknown name passes.
    """
    if store is None or settings.clone is not None or settings.voice is None or is_built_in(settings.voice, info):
        return settings
    found = find_voice(store, key, settings.voice)
    if found is None:
        return settings
    check_compatible(found, info)
    return replace(settings, clone=found.clone)


def find_voice(store: VoiceStore, key: str, name: str) -> StoredVoice | None:
    """A voice of this key, or one that all share."""
    return store.find(key, name) or store.find(SHARED, name)


def voices_for(store: VoiceStore, key: str) -> list[VoiceManifest]:
    """List the voices of a key: its own, then the shared ones that these do not hide. May take milliseconds."""
    own = store.list(key)
    names = {manifest.name for manifest in own}
    shared = store.list(SHARED) if key != SHARED else []
    return own + [manifest for manifest in shared if manifest.name not in names]


def is_built_in(name: str, info: EngineInfo) -> bool:
    return any(voice.name == name for voice in info.voices)


def resembles_built_in(name: str, info: EngineInfo) -> bool:
    """Return whether a name equals a voice of the checkpoint, ignoring case."""
    return name.lower() in {voice.name.lower() for voice in info.voices}


def check_compatible(voice: StoredVoice, info: EngineInfo) -> None:
    """Check that the model can use the voice; raises ``InvalidRequest``."""
    clone = voice.clone
    of_model = f"voice {voice.manifest.name!r} was made for another model"
    num = len(clone.embedding) // BYTES_PER_NUMBER
    if info.can_clone and num != info.embedding_size:
        found = f"{of_model}: its embedding has {num} numbers"
        raise InvalidRequest(f"{found}, {info.model} takes {info.embedding_size}", "voice")
    if info.can_clone and clone.codes and clone.num_codebooks != info.num_codebooks:
        found = f"{of_model}: its codes have {clone.num_codebooks} codebooks"
        raise InvalidRequest(f"{found}, {info.model} takes {info.num_codebooks}", "voice")
