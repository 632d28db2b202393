"""The fields of a request of the speech API, with its formats, languages and instructions."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import msgspec

from engine.api import EngineInfo, SamplingParams
from realtime.errors import RequestRefused
from realtime.protocol.native import field_at_fault
from sessions.config import AudioFormat, Encoding

Parsed = TypeVar("Parsed")


class NamedVoice(msgspec.Struct):
    id: str | None = None
    name: str | None = None


class SpeechRequestBody(SamplingParams, frozen=True, kw_only=True):
    """Fields of a request, those of sampling among them. Unknown ones are ignored; ``null`` is as good as nothing."""

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

    # The official package's words for the predictor's sampling.
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
    # ``none`` or ``ssml``.
    markup: str | None = None
    # Voices by the labels of speakers.
    speakers: dict[str, str] | None = None
    # Names of stored lexicons.
    lexicons: list[str] | None = None
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


LEFT_OUT = "this model takes no instructions, they are left out"


def supported_instructions(given: str, info: EngineInfo) -> tuple[str, str]:
    """Return what the model follows of the instructions, and a warning if that is nothing of what was given."""
    if given and not info.takes_instruct:
        return "", LEFT_OUT
    return given, ""


FILE_RATE = 24_000


class Delivery(Enum):
    # Bytes as they are generated.
    STREAM = "audio"
    # The same as server-sent events, with the usage at the end.
    EVENTS = "sse"
    # The complete file, with its length and with the usage in the headers.
    COMPLETE = "whole"


class FileFormat(NamedTuple):
    encoding: Encoding
    media_type: str
    default_bitrate: int = 32_000
    can_stream: bool = True


# The header of a FLAC file holds its length, and many readers insist on it.
FILE_FORMATS = {
    "wav": FileFormat(Encoding.WAV, "audio/wav"),
    "pcm": FileFormat(Encoding.PCM_S16LE, "audio/pcm"),
    "mp3": FileFormat(Encoding.MP3, "audio/mpeg", 64_000),
    "opus": FileFormat(Encoding.OGG_OPUS, "audio/ogg"),
    "aac": FileFormat(Encoding.AAC, "audio/aac", 48_000),
    "flac": FileFormat(Encoding.FLAC, "audio/flac", can_stream=False),
}


def file_format(body: SpeechRequestBody, default: str) -> FileFormat:
    """Return the format that the body names, or the default. Raises ``RequestRefused``."""
    name = body.response_format or default
    if name not in FILE_FORMATS:
        known = ", ".join(FILE_FORMATS)
        raise RequestRefused(
            "unsupported_format", f"response_format must be one of {known}, is {name[:40]!r}", "response_format"
        )
    return FILE_FORMATS[name]


def audio_format(body: SpeechRequestBody, default: str) -> AudioFormat:
    """Rate and bitrate are checked where the response begins. Raises ``RequestRefused``."""
    chosen = file_format(body, default)
    sample_rate = FILE_RATE if body.sample_rate is None else body.sample_rate
    bitrate = chosen.default_bitrate if body.bitrate is None else body.bitrate
    return AudioFormat(encoding=chosen.encoding, sample_rate=sample_rate, bitrate=bitrate)


def delivery(body: SpeechRequestBody, default: str) -> Delivery:
    """Parse how the audio is returned; raises ``RequestRefused``."""
    delivery, field = body.stream_format, "stream_format"
    if delivery is None and body.stream:
        delivery, field = "sse", "stream"
    if delivery not in (None, "audio", "sse"):
        raise RequestRefused(
            "unsupported_format", f"stream_format must be audio or sse, is {delivery[:40]!r}", "stream_format"
        )
    can_stream = file_format(body, default).can_stream
    if delivery is not None and not can_stream:
        name = body.response_format or default
        raise RequestRefused("unsupported_format", f"{name} cannot be streamed, it is sent as a whole", field)
    if delivery is None and (body.stream is False or not can_stream):
        return Delivery.COMPLETE
    return Delivery.EVENTS if delivery == "sse" else Delivery.STREAM
