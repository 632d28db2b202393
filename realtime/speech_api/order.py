"""A request read to the end: the text, how to speak it, and how to hand it over."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec

from engine.api import (
    CHUNK_FRAMES,
    ClonedVoice,
    EngineInfo,
    InvalidRequest,
    SamplingParams,
    TextLayout,
    UnknownLanguage,
)
from realtime.auth import Caller
from realtime.errors import Refused
from realtime.server import SpeechServer
from realtime.speech_api.body import SpeechBody
from realtime.speech_api.formats import Delivery, audio_format, delivery, file_format
from realtime.speech_api.languages import known_language
from sessions.config import SpeechSettings
from sessions.errors import SessionError
from sessions.response import Response
from sessions.session import Session
from sessions.voices.naming import find_voice
from sessions.voices.voice import StoredVoice

TASKS = {"customvoice": "custom_voice", "voicedesign": "voice_design", "base": "base"}
OFFICIAL_NAMES = {
    "predictor_do_sample": "subtalker_dosample",
    "predictor_temperature": "subtalker_temperature",
    "predictor_top_k": "subtalker_top_k",
    "predictor_top_p": "subtalker_top_p",
}
UNKNOWN_VOICE = "the voice asked for is unknown, the default one spoke"
PARAMS = {"instruct": "instructions", "text": "input"}
"""Of errors of the sessions."""
BYTES_PER_CODE = 2


@dataclass(frozen=True, slots=True)
class Order:
    text: str
    settings: SpeechSettings
    delivery: Delivery
    media_type: str
    warning: str | None = None
    num_reference_frames: int = 0
    """Codec frames of the recording that an in-context voice brings along; they count as input."""


class Listener(Protocol):
    """Makes a voice of a reference."""

    async def from_reference(self, reference: str, transcript: str) -> ClonedVoice: ...


async def order_of(body: SpeechBody, server: SpeechServer, caller: Caller, listener: Listener | None = None) -> Order:
    """What can be told without listening to a recording is told first. Raises ``Refused`` or ``InvalidRequest``."""
    _check_text(body, server)
    how = delivery(body)
    settings = _settings(body, server)
    _check_task(body, server)
    _check_reference(body)
    name, warning = _voice_name(body, server, caller)
    stored = None if name is None else find_voice(server.voices, caller.name, name)
    clone = await _clone(body, server, listener or server.cloning) or _by_embedding_alone(body, stored)
    heard = clone or (None if stored is None else stored.clone)
    return Order(
        body.input,
        replace(settings, voice=name, clone=clone),
        how,
        file_format(body).media_type,
        warning,
        _num_frames(heard, server.engine.info),
    )


def begin(order: Order, session: Session) -> Response:
    """Raises what ``Session.create_response`` does, in the words of this API."""
    try:
        return session.create_response(settings=order.settings, text=order.text, text_closed=True)
    except (InvalidRequest, SessionError) as error:
        error.param = PARAMS.get(error.param or "", error.param)
        raise


def _check_text(body: SpeechBody, server: SpeechServer) -> None:
    limit = server.config.limits.max_speech_chars
    if not body.input.strip():
        raise Refused("invalid_request", "input is empty", "input")
    if len(body.input) > limit:
        found = f"input has {len(body.input)} characters"
        raise Refused("request_too_long", f"{found}, max_speech_chars is {limit}", "input")


def _settings(body: SpeechBody, server: SpeechServer) -> SpeechSettings:
    """All but the voice; the ranges are checked where the response begins."""
    base = server.settings
    return replace(
        base,
        language=base.language if body.language is None else _language(body.language, server),
        instruct=body.instructions or base.instruct,
        format=audio_format(body),
        lead_ms=None,
        speed=base.speed if body.speed is None else body.speed,
        layout=_layout(body, base.layout),
        max_frames=_max_frames(body),
        chunk_frames=_chunk_frames(body),
        sampling=_sampling(body, base.sampling),
    )


def _language(given: str, server: SpeechServer) -> str:
    languages = server.engine.info.languages
    known = known_language(given, languages)
    if known is None:
        raise UnknownLanguage(f"language must be one of auto, {', '.join(languages)}; is {given[:40]!r}", "language")
    return known


def _layout(body: SpeechBody, base: TextLayout) -> TextLayout:
    if body.text_layout is None:
        by_mode = {None: base, True: TextLayout.FULL, False: TextLayout.STREAMING}
        return by_mode[body.non_streaming_mode]
    try:
        return TextLayout(body.text_layout)
    except ValueError:
        known = ", ".join(TextLayout)
        raise InvalidRequest(
            f"text_layout must be one of {known}, is {body.text_layout[:40]!r}", "text_layout"
        ) from None


def _max_frames(body: SpeechBody) -> int | None:
    if body.max_frames is not None or body.max_new_tokens is None:
        return body.max_frames
    if body.max_new_tokens < 2:
        raise InvalidRequest(f"max_new_tokens must be at least 2, is {body.max_new_tokens}", "max_new_tokens")
    return body.max_new_tokens - 1


def _chunk_frames(body: SpeechBody) -> tuple[int, ...]:
    if body.chunk_frames is not None:
        return tuple(body.chunk_frames)
    first = body.initial_codec_chunk_frames
    if not first:
        return ()
    if first not in CHUNK_FRAMES:
        known = ", ".join(map(str, CHUNK_FRAMES))
        raise InvalidRequest(
            f"initial_codec_chunk_frames must be one of {known}, is {first}", "initial_codec_chunk_frames"
        )
    return tuple(frames for frames in CHUNK_FRAMES if frames >= first)


def _sampling(body: SpeechBody, base: SamplingParams) -> SamplingParams:
    given: dict[str, Any] = {}
    for name in SamplingParams.__struct_fields__:
        value = getattr(body, name)
        if value is None and name in OFFICIAL_NAMES:
            value = getattr(body, OFFICIAL_NAMES[name])
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidRequest(f"{name} must be a finite number, is {value}", name)
        if value is not None:
            given[name] = value
    return msgspec.structs.replace(base, **given)


def _check_task(body: SpeechBody, server: SpeechServer) -> None:
    if body.task_type is None:
        return
    task = TASKS.get(body.task_type.replace("_", "").lower())
    info = server.engine.info
    if task is None:
        message = f"task_type must be CustomVoice, VoiceDesign or Base, is {body.task_type[:40]!r}"
        raise InvalidRequest(message, "task_type")
    if task != info.task:
        raise InvalidRequest(f"task_type is {body.task_type}; {info.model} serves {info.task} alone", "task_type")


def _check_reference(body: SpeechBody) -> None:
    if body.ref_audio is not None and body.speaker_embedding is not None:
        raise InvalidRequest("a voice is made of ref_audio or of speaker_embedding, not of both", "speaker_embedding")
    if body.ref_text and body.ref_audio is None:
        raise InvalidRequest("ref_text is there without ref_audio", "ref_text")
    if body.x_vector_only_mode is False and body.ref_audio is not None and not (body.ref_text or "").strip():
        message = "ref_text is empty: cloning in context needs what is said in ref_audio, or x_vector_only_mode"
        raise InvalidRequest(message, "ref_text")


async def _clone(body: SpeechBody, server: SpeechServer, listener: Listener) -> ClonedVoice | None:
    if body.speaker_embedding is not None:
        return server.cloning.from_embedding(body.speaker_embedding)
    if body.ref_audio is None:
        return None
    transcript = "" if body.x_vector_only_mode else (body.ref_text or "").strip()
    return await listener.from_reference(body.ref_audio, transcript)


def _by_embedding_alone(body: SpeechBody, stored: StoredVoice | None) -> ClonedVoice | None:
    """Of a stored voice that could speak in context, where that is not wanted."""
    if stored is None or not body.x_vector_only_mode:
        return None
    return msgspec.structs.replace(stored.clone, codes=b"", transcript="")


def _voice_name(body: SpeechBody, server: SpeechServer, caller: Caller) -> tuple[str | None, str | None]:
    """And a warning. OpenAI's clients insist on OpenAI's voices: an unknown one becomes ours."""
    name, info = body.voice_name, server.engine.info
    if name is None or body.ref_audio is not None or body.speaker_embedding is not None:
        return server.settings.voice, None
    for voice in info.voices:
        if voice.name.lower() == name.lower():
            return voice.name, None
    if find_voice(server.voices, caller.name, name) is not None:
        return name, None
    if not info.voices:
        raise InvalidRequest(f"voice {name[:80]!r} is unknown, and {info.model} has none of its own", "voice")
    return server.settings.voice, UNKNOWN_VOICE


def _num_frames(clone: ClonedVoice | None, info: EngineInfo) -> int:
    return len(clone.codes) // (BYTES_PER_CODE * max(info.num_codebooks, 1)) if clone else 0
