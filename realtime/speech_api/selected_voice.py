"""The voice of a speech request: a name, a stored voice, or one that the request brings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from engine.api import ClonedVoice, EngineInfo, InvalidRequest
from realtime.errors import RequestRefused
from realtime.voice_cloner import VoiceCloner, check_transcript
from sessions.voices.lookup import find_voice, is_built_in

if TYPE_CHECKING:
    from realtime.auth import Principal
    from realtime.server import SpeechServer
    from realtime.speech_api.request import SpeechRequestBody
    from sessions.voices.voice import StoredVoice

BROUGHT_VOICE = "the request brings a voice of its own, the named one is left out"
UNKNOWN_VOICE = "the voice asked for is unknown, the default one spoke"
BYTES_PER_CODE = 2


class ReferenceEncoder(Protocol):
    """Makes a voice of a reference."""

    async def from_reference(self, reference: str, transcript: str) -> ClonedVoice: ...


@dataclass(frozen=True, slots=True)
class SelectedVoice:
    name: str | None
    # Speaks in place of the name.
    clone: ClonedVoice | None
    # Codec frames of the recording that it brings along, where it is cloned in context; they count as input.
    num_reference_frames: int
    warning: str | None = None


async def select_voice(
    body: SpeechRequestBody, server: SpeechServer, caller: Principal, listener: ReferenceEncoder
) -> SelectedVoice:
    """Select the voice of a request; raises ``RequestRefused`` or ``InvalidRequest``."""
    name, warning = _voice_name(body, server, caller)
    is_ours = name is None or is_built_in(name, server.engine.info)
    stored = None if name is None or is_ours else find_voice(server.voices, caller.name, name)
    _check_in_context(body, stored)
    clone = await brought_voice(body, server.cloning, listener)
    clone = clone or _embedding_only_clone(body, stored, server.engine.info)
    heard = clone or (None if stored is None else stored.clone)
    return SelectedVoice(name, clone, _num_frames(heard), warning)


def check_reference(body: SpeechRequestBody, caller: Principal) -> None:
    """Check what needs no decoding of the recording. Raises ``RequestRefused`` or ``InvalidRequest``."""
    _check_scope(body, caller)
    if body.ref_audio is not None and body.speaker_embedding is not None:
        raise InvalidRequest("a voice is made of ref_audio or of speaker_embedding, not of both", "speaker_embedding")
    if body.ref_text and body.ref_audio is None:
        raise InvalidRequest("ref_text is there without ref_audio", "ref_text")
    check_transcript(body.ref_text or "")
    if body.x_vector_only_mode is False and body.ref_audio is not None and not (body.ref_text or "").strip():
        message = "ref_text is empty: cloning in context needs what is said in ref_audio, or x_vector_only_mode"
        raise InvalidRequest(message, "ref_text")


def _check_scope(body: SpeechRequestBody, caller: Principal) -> None:
    """Refuse a voice in the request of a token, which speaks with the voices of the server only. Raises
    ``RequestRefused``.
    """
    if not caller.by_token:
        return
    given = {"ref_audio": body.ref_audio, "speaker_embedding": body.speaker_embedding}
    field = next((name for name, value in given.items() if value is not None), None)
    if field is not None:
        raise RequestRefused("insufficient_scope", f"{field} needs an API key; tokens do not clone voices", field)


async def brought_voice(
    body: SpeechRequestBody, cloning: VoiceCloner, listener: ReferenceEncoder
) -> ClonedVoice | None:
    """Return the voice of the request's recording or embedding; raises ``RequestRefused`` or ``InvalidRequest``."""
    if body.speaker_embedding is not None:
        return cloning.from_embedding(body.speaker_embedding)
    if body.ref_audio is None:
        return None
    transcript = "" if body.x_vector_only_mode else (body.ref_text or "").strip()
    return await listener.from_reference(body.ref_audio, transcript)


def _embedding_only_clone(body: SpeechRequestBody, stored: StoredVoice | None, info: EngineInfo) -> ClonedVoice | None:
    """Return the embedding-only clone of a stored voice, where that is requested."""
    if stored is None or not body.x_vector_only_mode:
        return None
    if info.transcript_optional:  # the sound of the recording goes without its words
        return msgspec.structs.replace(stored.clone, transcript="")
    return msgspec.structs.replace(stored.clone, codes=b"", num_codebooks=0, transcript="")


def _check_in_context(body: SpeechRequestBody, stored: StoredVoice | None) -> None:
    """Refuse in-context cloning of a stored voice without transcript; raises ``InvalidRequest``."""
    if body.x_vector_only_mode is False and stored is not None and not stored.clone.transcript:
        found = f"voice {stored.manifest.name!r} was stored without what is said in its recording"
        raise InvalidRequest(f"{found}; x_vector_only_mode false needs that", "x_vector_only_mode")


def _voice_name(body: SpeechRequestBody, server: SpeechServer, caller: Principal) -> tuple[str | None, str | None]:
    """Return the voice and a warning: an unknown OpenAI voice becomes the default voice."""
    name, info = body.voice_name, server.engine.info
    if body.ref_audio is not None or body.speaker_embedding is not None:
        return server.settings.voice, None if name is None else BROUGHT_VOICE
    if name is None:
        return server.settings.voice, None
    for voice in info.voices:
        if voice.name.lower() == name.lower():
            return voice.name, None
    if find_voice(server.voices, caller.name, name) is not None:
        return name, None
    if not info.voices:
        raise InvalidRequest(f"voice {name[:80]!r} is unknown, and {info.model} has none of its own", "voice")
    return server.settings.voice, UNKNOWN_VOICE


def _num_frames(clone: ClonedVoice | None) -> int:
    return len(clone.codes) // (BYTES_PER_CODE * clone.num_codebooks) if clone and clone.codes else 0
