"""Read speech settings out of the fields of a request: all but the voice."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgspec

from engine.api import CHUNK_FRAMES, InvalidRequest, SamplingParams, TextLayout, UnknownLanguage
from realtime.server import SpeechServer
from realtime.speech_api.options import audio_format, known_language, supported_instructions
from realtime.speech_api.request_body import SpeechRequestBody
from sessions.config import SpeechSettings

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


def _layout(body: SpeechRequestBody, base: TextLayout) -> TextLayout:
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


def _sampling(body: SpeechRequestBody, base: SamplingParams) -> SamplingParams:
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
