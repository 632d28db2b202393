"""A speech request as a job: its settings and file; fields given over others; usage."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from engine.api import (
    CHUNK_FRAMES,
    EngineInfo,
    InvalidRequest,
    SamplingParams,
    TextLayout,
    UnknownLanguage,
)
from realtime.errors import RequestRefused
from realtime.speech_api.request import (
    Delivery,
    SpeechRequestBody,
    audio_format,
    body_of,
    delivery,
    file_format,
    supported_instructions,
)
from realtime.speech_api.selected_voice import ReferenceEncoder, check_reference, select_voice
from sessions.config import Markup, SpeechSettings
from sessions.errors import SessionError
from sessions.events import ResponseFinished
from sessions.languages import known_language
from sessions.validation import check_all_but_voice

if TYPE_CHECKING:
    from realtime.auth import Principal
    from realtime.server import SpeechServer
    from sessions.response import Response
    from sessions.session import Session

Choice = TypeVar("Choice", bound=StrEnum)

OFFICIAL_NAMES = {
    "predictor_do_sample": "subtalker_dosample",
    "predictor_temperature": "subtalker_temperature",
    "predictor_top_k": "subtalker_top_k",
    "predictor_top_p": "subtalker_top_p",
}


def build_settings(body: SpeechRequestBody, server: SpeechServer) -> SpeechSettings:
    """Build the settings of a request; raises ``RequestRefused`` or ``InvalidRequest``.

    The session checks their ranges.
    """
    base = server.settings
    instructions, _ = supported_instructions(body.instructions or "", server.engine.info)
    return replace(
        base,
        language=base.language if body.language is None else _language(body.language, server),
        instruct=instructions or base.instruct,
        format=audio_format(body, server.config.speech.response_format),
        lead_ms=None,
        reports_heard_text=False,
        speed=base.speed if body.speed is None else body.speed,
        markup=base.markup if body.markup is None else _choice(Markup, body.markup, "markup"),
        speakers=base.speakers if body.speakers is None else body.speakers,
        lexicon_names=base.lexicon_names if body.lexicons is None else tuple(body.lexicons),
        layout=_layout(body, base.layout),
        max_frames=_max_frames(body),
        chunk_frames=_chunk_frames(body),
        sampling=sampling_of(body, base.sampling),
    )


def _language(given: str, server: SpeechServer) -> str:
    languages = server.engine.info.languages
    known = known_language(given, languages)
    if known is None:
        raise UnknownLanguage(f"language must be one of auto, {', '.join(languages)}; is {given[:40]!r}", "language")
    return known


def _layout(body: SpeechRequestBody, base: TextLayout) -> TextLayout:
    if body.text_layout is None:
        by_mode = {None: base, True: TextLayout.FULL, False: TextLayout.STREAMING}
        return by_mode[body.non_streaming_mode]
    return _choice(TextLayout, body.text_layout, "text_layout")


def _choice(kind: type[Choice], given: str, param: str) -> Choice:
    try:
        return kind(given)
    except ValueError:
        known = ", ".join(kind)
        raise InvalidRequest(f"{param} must be one of {known}, is {given[:40]!r}", param) from None


def _max_frames(body: SpeechRequestBody) -> int | None:
    if body.max_frames is not None or body.max_new_tokens is None:
        return body.max_frames
    if body.max_new_tokens < 2:
        raise InvalidRequest(f"max_new_tokens must be at least 2, is {body.max_new_tokens}", "max_new_tokens")
    return body.max_new_tokens - 1


def _chunk_frames(body: SpeechRequestBody) -> tuple[int, ...]:
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


def sampling_of(body: SpeechRequestBody, base: SamplingParams) -> SamplingParams:
    """Return ``base`` with the sampling that the body names. Raises ``InvalidRequest``."""
    given: dict[str, Any] = {}
    for name in SamplingParams.__struct_fields__:
        value = getattr(body, name)
        if value is None and name in OFFICIAL_NAMES:
            value = getattr(body, OFFICIAL_NAMES[name])
        if value is None:
            continue
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidRequest(f"{name} must be a finite number, is {value}", name)
        given[name] = value
    return msgspec.structs.replace(base, **given) if given else base


COUNTS = ("input_tokens", "output_tokens", "total_tokens")
# Names of the request's fields in errors of sessions.
PARAMS = {"instruct": "instructions", "text": "input"}


def usage(done: ResponseFinished, num_reference_frames: int) -> dict[str, Any]:
    input_tokens = done.num_text_tokens + num_reference_frames
    return {
        "input_tokens": input_tokens,
        "output_tokens": done.num_frames,
        "total_tokens": input_tokens + done.num_frames,
        "input_token_details": {"text_tokens": done.num_text_tokens, "audio_tokens": num_reference_frames},
    }


def usage_headers(done: ResponseFinished, num_reference_frames: int) -> dict[str, str]:
    counts = usage(done, num_reference_frames)
    headers = {f"X-Voicewire-{name.replace('_', '-').title()}": str(counts[name]) for name in COUNTS}
    return headers | {"X-Voicewire-Audio-Ms": str(round(done.audio_ms))}


@dataclass(frozen=True, slots=True)
class SpeechJob:
    text: str
    settings: SpeechSettings
    delivery: Delivery
    media_type: str
    warning: str | None = None
    num_reference_frames: int = 0


async def prepare_job(
    body: SpeechRequestBody, server: SpeechServer, caller: Principal, listener: ReferenceEncoder | None = None
) -> SpeechJob:
    """Validate a request and prepare its voice. Checks that need no recording come first.

    Raises ``SpeechError``.
    """
    _check_text(body, server)
    default_format = server.config.speech.response_format
    how = delivery(body, default_format)
    settings = build_settings(body, server)
    check_task(body, server.engine.info)
    check_reference(body, caller)
    with map_error_params:
        check_all_but_voice(settings, server.engine.info, server.registry.limits.session)
    voice = await select_voice(body, server, caller, listener or server.cloning)
    if (voice.name, voice.clone) != (settings.voice, settings.clone):
        settings = replace(settings, voice=voice.name, clone=voice.clone)
    media_type = file_format(body, default_format).media_type
    _, instructions_warning = supported_instructions(body.instructions or "", server.engine.info)
    warning = "; ".join(filter(None, (voice.warning, instructions_warning))) or None
    return SpeechJob(body.input, settings, how, media_type, warning, voice.num_reference_frames)


def start_response(order: SpeechJob, session: Session) -> Response:
    """Create the response of a job; raises as ``Session.create_response``."""
    with map_error_params:
        return session.create_response(settings=order.settings, text=order.text, text_closed=True)


class ErrorParamMap:
    """Context whose errors of sessions name their field as this API does. A generator would take 10 us per request."""

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, InvalidRequest | SessionError):
            error.param = PARAMS.get(error.param or "", error.param)


map_error_params = ErrorParamMap()


def _check_text(body: SpeechRequestBody, server: SpeechServer) -> None:
    limit = server.config.limits.max_speech_request_chars
    if not body.input.strip():
        raise RequestRefused("invalid_request", "input is empty", "input")
    if len(body.input) > limit:
        found = f"input has {len(body.input)} characters"
        raise RequestRefused("request_too_long", f"{found}, max_speech_request_chars is {limit}", "input")


# A message that names any of these says anew where the voice comes from.
VOICE_SOURCES = ("voice", "ref_audio", "speaker_embedding")
VOICE_FIELDS = (*VOICE_SOURCES, "ref_text", "x_vector_only_mode")
CLONING_FIELDS = ("ref_audio", "speaker_embedding", "x_vector_only_mode")


def merge_fields(former: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration so far with a message's fields over it."""
    is_new_voice = any(name in given for name in VOICE_SOURCES)
    retained = {name: value for name, value in former.items() if not (is_new_voice and name in VOICE_FIELDS)}
    return retained | dict(given)


async def override_settings(
    base: SpeechSettings, fields: Mapping[str, Any], server: SpeechServer, caller: Principal
) -> SpeechSettings:
    """``base`` with the fields' sampling, layout, chunks and cloned voice. Encodes a recording that they bring.

    Raises ``SpeechError``.
    """
    body = body_of({"input": "", **fields})
    check_task(body, server.engine.info)
    check_reference(body, caller)
    given = build_settings(body, server)
    with map_error_params:
        check_all_but_voice(given, server.engine.info, server.registry.limits.session)
    clone = None
    if any(name in fields for name in CLONING_FIELDS):
        clone = (await select_voice(body, server, caller, server.cloning)).clone
    return replace(
        base,
        clone=clone,
        markup=given.markup,
        speakers=given.speakers,
        lexicon_names=given.lexicon_names,
        layout=given.layout,
        max_frames=given.max_frames,
        chunk_frames=given.chunk_frames,
        sampling=given.sampling,
    )


TASKS = {"customvoice": "custom_voice", "voicedesign": "voice_design", "base": "base"}


def check_task(body: SpeechRequestBody, info: EngineInfo) -> None:
    """Check that the model serves the task; raises ``InvalidRequest``."""
    if body.task_type is None:
        return
    task = TASKS.get(body.task_type.replace("_", "").lower())
    if task is None:
        message = f"task_type must be CustomVoice, VoiceDesign or Base, is {body.task_type[:40]!r}"
        raise InvalidRequest(message, "task_type")
    speaks_both = info.can_clone and task == "custom_voice" and bool(info.voices)
    if task != info.task and not speaks_both:
        raise InvalidRequest(f"task_type is {body.task_type}; {info.model} serves {info.task} alone", "task_type")
