"""OpenAI Realtime's objects, as far as text goes in and speech comes out."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, field

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError
from realtime.protocol.model import RequestedFormat, SpeechOptions

FORMATS = {
    "audio/pcm": RequestedFormat("pcm_s16le", 24_000),
    "audio/pcmu": RequestedFormat("mulaw", 8_000),
    "audio/pcma": RequestedFormat("alaw", 8_000),
}
# Numbers without end are cut to this; the nearest speed there is will be taken.
MAX_SPEED = 100
MAX_AUDIO_END_MS = 1e9
# Of earlier updates; anything else is echoed once, so that a session never grows.
MERGED_AUDIO_FIELDS = ("format", "voice", "speed", "turn_detection", "transcription", "noise_reduction")
CAPACITY = ("overloaded", "limit_exceeded", "too_many_connections", "draining")
SERVER_FAULT_CODES = ("internal_error", "session_error", "engine_error", "engine_timeout", "engine_dead")


class OpenAIContentPart(Struct):
    type: str = ""
    text: str | None = None
    transcript: str | None = None


class OpenAIItem(Struct):
    id: str | None = None
    type: str = "message"
    role: str = "user"
    content: list[OpenAIContentPart] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join(part.text for part in self.content if part.text)


class OpenAIResponseParams(Struct):
    """Of ``response.create``; what a session says about audio holds where it is silent."""

    input: list[OpenAIItem] | None = None
    instructions: str | None = None
    output_modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    conversation: str = "auto"


class OpenAIClientEvent(Struct):
    type: str
    event_id: str | None = None
    session: dict[str, Any] | None = None
    item: OpenAIItem | None = None
    item_id: str | None = None
    previous_item_id: str | None = None
    response: OpenAIResponseParams | None = None
    response_id: str | None = None
    content_index: int = 0
    # Bounded: JSON is read leniently here, and "nan" and "inf" are numbers then.
    audio_end_ms: Annotated[float, Meta(ge=-MAX_AUDIO_END_MS, le=MAX_AUDIO_END_MS)] = 0.0
    delta: str = ""


def first_session(session_id: str, model: str) -> dict[str, Any]:
    return {
        "type": "realtime",
        "object": "realtime.session",
        "id": session_id,
        "model": model,
        "output_modalities": ["audio"],
        "instructions": "",
        "tools": [],
        "tool_choice": "auto",
        "audio": {
            "input": {"format": {"type": "audio/pcm", "rate": 24_000}, "turn_detection": None},
            "output": {"format": {"type": "audio/pcm", "rate": 24_000}, "voice": "default", "speed": 1.0},
        },
    }


def merged(session: dict[str, Any], update: dict[str, Any]) -> dict[str, Any]:
    """The first session with what a client says now over what it said before of audio; other fields of earlier
    updates are kept if they are known."""
    audio = dict(session["audio"])
    given = update.get("audio")
    for side in ("input", "output"):
        if isinstance(given, dict) and isinstance(given.get(side), dict):
            kept = {name: value for name, value in audio[side].items() if name in MERGED_AUDIO_FIELDS}
            audio[side] = {**kept, **given[side]}
    known = {name: value for name, value in session.items() if name in first_session("", "")}
    return {**known, **update, "id": session["id"], "object": session["object"], "audio": audio}


def parse_options(session: dict[str, Any], asked: OpenAIResponseParams | None) -> SpeechOptions:
    """Raises ``RemoteProtocolError``."""
    modalities = (asked and asked.output_modalities) or session.get("output_modalities") or ["audio"]
    if not isinstance(modalities, list) or "audio" not in modalities:
        raise RemoteProtocolError("invalid_request", "output_modalities must hold audio", "output_modalities")
    output = dict(session["audio"]["output"])
    given = ((asked and asked.audio) or {}).get("output")
    output |= given if isinstance(given, dict) else {}
    speed = output.get("speed")
    return SpeechOptions(
        voice=_voice(output.get("voice")),
        format=_format(output.get("format")),
        speed=float(min(max(speed, 0), MAX_SPEED)) if isinstance(speed, int | float) else 1.0,
        word_times=True,
    )


def _format(given: Any) -> RequestedFormat:
    kind = given.get("type", "audio/pcm") if isinstance(given, dict) else "audio/pcm"
    if not isinstance(kind, str) or kind not in FORMATS:
        message = f"type must be one of {', '.join(FORMATS)}, is {str(kind)[:40]!r}"
        raise RemoteProtocolError("unsupported_format", message, "audio.output.format.type")
    return FORMATS[kind]


def _voice(given: Any) -> str | None:
    name = given.get("id") if isinstance(given, dict) else given
    return name if isinstance(name, str) else None


def error_fields(error: ErrorInfo, event_id: str | None = None) -> dict[str, Any]:
    if error.code in CAPACITY:
        kind = "rate_limit_error"
    else:
        kind = "server_error" if error.code in SERVER_FAULT_CODES else "invalid_request_error"
    return {"type": kind, "code": error.code, "message": error.message, "param": error.param, "event_id": event_id}
