"""A speech request as a job: its voice, settings and file; fields given over others; usage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from engine.api import InvalidRequest
from realtime.auth import Principal
from realtime.errors import RequestRefused
from realtime.server import SpeechServer
from realtime.speech_api.options import Delivery, delivery, file_format, supported_instructions
from realtime.speech_api.request_body import SpeechRequestBody, body_of
from realtime.speech_api.settings import build_settings
from realtime.speech_api.voice_selection import ReferenceEncoder, check_reference, check_task, select_voice
from sessions.config import SpeechSettings
from sessions.errors import SessionError
from sessions.events import ResponseFinished
from sessions.response import Response
from sessions.session import Session
from sessions.validation import check_settings

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
    with map_error_params():
        check_settings(replace(settings, voice=None), server.engine.info, server.registry.limits.session)
    voice = await select_voice(body, server, caller, listener or server.cloning)
    settings = replace(settings, voice=voice.name, clone=voice.clone)
    media_type = file_format(body, default_format).media_type
    _, instructions_warning = supported_instructions(body.instructions or "", server.engine.info)
    warning = "; ".join(filter(None, (voice.warning, instructions_warning))) or None
    return SpeechJob(body.input, settings, how, media_type, warning, voice.num_reference_frames)


def start_response(order: SpeechJob, session: Session) -> Response:
    """Create the response of a job; raises as ``Session.create_response``."""
    with map_error_params():
        return session.create_response(settings=order.settings, text=order.text, text_closed=True)


@contextmanager
def map_error_params() -> Iterator[None]:
    """Errors of the sessions name their field as this API does."""
    try:
        yield
    except (InvalidRequest, SessionError) as error:
        error.param = PARAMS.get(error.param or "", error.param)
        raise


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
    with map_error_params():
        check_settings(replace(given, voice=None), server.engine.info, server.registry.limits.session)
    clone = None
    if any(name in fields for name in CLONING_FIELDS):
        clone = (await select_voice(body, server, caller, server.cloning)).clone
    return replace(
        base,
        clone=clone,
        layout=given.layout,
        max_frames=given.max_frames,
        chunk_frames=given.chunk_frames,
        sampling=given.sampling,
    )
