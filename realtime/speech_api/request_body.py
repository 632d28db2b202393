"""The fields of ``POST /v1/audio/speech``: those of OpenAI, vLLM-Omni and SGLang, and extensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from realtime.errors import RequestRefused
from realtime.protocol.native import field_at_fault

Parsed = TypeVar("Parsed")


class NamedVoice(msgspec.Struct):
    id: str | None = None
    name: str | None = None


class SpeechRequestBody(msgspec.Struct, kw_only=True):
    """Fields that are not listed are ignored, and ``null`` is as good as nothing."""

    input: str
    voice: str | NamedVoice | None = None
    # Another word for ``voice``.
    speaker: str | None = None
    instructions: str | None = None
    language: str | None = None
    task_type: str | None = None

    response_format: str | None = None
    sample_rate: int | None = None
    bitrate: int | None = None
    speed: float | None = None
    stream: bool | None = None
    stream_format: str | None = None

    ref_audio: str | None = None
    ref_text: str | None = None
    x_vector_only_mode: bool | None = None
    speaker_embedding: list[float] | None = None

    seed: int | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    repetition_window: int | None = None
    min_new_tokens: int | None = None
    predictor_do_sample: bool | None = None
    predictor_temperature: float | None = None
    predictor_top_k: int | None = None
    predictor_top_p: float | None = None
    # The official package's words for the four above.
    subtalker_dosample: bool | None = None
    subtalker_temperature: float | None = None
    subtalker_top_k: int | None = None
    subtalker_top_p: float | None = None

    # One more than ``max_frames``: the end of speech counts.
    max_new_tokens: int | None = None
    max_frames: int | None = None
    chunk_frames: list[int] | None = None
    # The first entry of ``chunk_frames``.
    initial_codec_chunk_frames: int | None = None
    text_layout: str | None = None
    # ``text_layout`` in vLLM-Omni's words: true is ``full``, false is ``streaming``.
    non_streaming_mode: bool | None = None

    @property
    def voice_name(self) -> str | None:
        if isinstance(self.voice, NamedVoice):
            return self.voice.id or self.voice.name or self.speaker
        return self.voice or self.speaker


def parse_body(data: bytes) -> SpeechRequestBody:
    """Parse and check a JSON body; raises ``RequestRefused``."""
    return _parsed(lambda: msgspec.json.decode(data, type=SpeechRequestBody))


def parse_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON object; raises ``RequestRefused``."""
    return _parsed(lambda: msgspec.json.decode(data, type=dict[str, Any]))


def body_of(fields: dict[str, Any]) -> SpeechRequestBody:
    """Check the fields of a request; raises ``RequestRefused``."""
    return _parsed(lambda: msgspec.convert(fields, SpeechRequestBody))


def _parsed(parse: Callable[[], Parsed]) -> Parsed:
    try:
        return parse()
    except msgspec.ValidationError as error:
        raise RequestRefused("invalid_event", str(error), field_at_fault(str(error))) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RequestRefused("malformed_json", f"the body is not JSON: {error}") from None
