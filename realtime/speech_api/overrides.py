"""Fields of ``POST /v1/audio/speech`` in the configuration of a socket: they hold for what is spoken from then on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from realtime.auth import Principal
from realtime.server import SpeechServer
from realtime.speech_api.request_body import body_of
from realtime.speech_api.settings import build_settings
from realtime.speech_api.speech_job import map_error_params
from realtime.speech_api.voice_selection import check_reference, check_task, select_voice
from sessions.config import SpeechSettings
from sessions.validation import check_settings

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
