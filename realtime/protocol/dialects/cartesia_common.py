"""What Cartesia's wires share: the generation request, its formats, and the shape of its errors."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError, http_status
from realtime.protocol.model import RequestedFormat, SpeechOptions

ENCODINGS = {"pcm_s16le": "pcm_s16le", "pcm_f32le": "pcm_f32le", "pcm_mulaw": "mulaw", "pcm_alaw": "alaw"}
DEFAULT_RATE = 44_100
TITLES = {400: "Invalid request", 401: "Unauthorized", 404: "Not found", 413: "Too long", 429: "Too many requests"}


class CartesiaVoice(Struct):
    """By its id; an embedding is not understood, and spoken by the default voice."""

    id: str | None = None
    mode: str | None = None


class OutputFormat(Struct):
    container: str | None = None
    encoding: str | None = None
    sample_rate: int | None = None
    bit_rate: int | None = None


class CartesiaGenerationConfig(Struct):
    speed: float | None = None


class GenerationRequest(Struct):
    """On the socket and over HTTP; what is not named here has no counterpart."""

    transcript: str | None = None
    voice: CartesiaVoice | str | None = None
    output_format: OutputFormat | None = None
    language: str | None = None
    locale: str | None = None
    generation_config: CartesiaGenerationConfig | None = None
    seed: int | None = None
    context_id: str | None = None
    continues: bool | None = field(default=None, name="continue")
    flush: bool | None = None
    cancel: bool | None = None
    add_timestamps: bool | None = None
    use_normalized_timestamps: bool | None = None

    def to_options(self, containers: tuple[str, ...]) -> SpeechOptions:
        """Raises ``RemoteProtocolError``."""
        config = self.generation_config
        return SpeechOptions(
            voice=self.voice.id if isinstance(self.voice, CartesiaVoice) else self.voice,
            language=self.language or self.locale,
            format=wire_format(self.output_format or OutputFormat(), containers),
            seed=self.seed,
            speed=config.speed if config and config.speed is not None else 1.0,
            word_times=bool(self.add_timestamps),
        )


def wire_format(asked: OutputFormat, containers: tuple[str, ...]) -> RequestedFormat:
    """Raises ``RemoteProtocolError``."""
    container, sample_rate = asked.container or "raw", asked.sample_rate or DEFAULT_RATE
    if container not in containers:
        raise _unsupported("container", containers, container)
    if container == "mp3":
        return RequestedFormat("mp3", sample_rate, asked.bit_rate)
    encoding = asked.encoding or "pcm_s16le"
    if encoding not in ENCODINGS:
        raise _unsupported("encoding", tuple(ENCODINGS), encoding)
    return RequestedFormat("wav" if container == "wav" else ENCODINGS[encoding], sample_rate)


def error_fields(error: ErrorInfo, request_id: str) -> dict[str, Any]:
    status = http_status(error)
    return {
        "title": TITLES.get(status, "Internal error" if status >= 500 else "Invalid request"),
        "message": error.message,
        "error_code": error.code,
        "status_code": status,
        "request_id": request_id,
    }


def word_timestamps(words: Any, normalized: bool) -> dict[str, Any]:
    """In seconds since the beginning of the context."""
    return {
        "words": [word.spoken or word.text if normalized else word.text for word in words],
        "start": [round(word.start_ms / 1000, 3) for word in words],
        "end": [round(word.end_ms / 1000, 3) for word in words],
    }


def _unsupported(name: str, known: tuple[str, ...], found: str) -> RemoteProtocolError:
    message = f"output_format.{name} must be one of {', '.join(known)}, is {found[:40]!r}"
    return RemoteProtocolError("unsupported_format", message, f"output_format.{name}")
