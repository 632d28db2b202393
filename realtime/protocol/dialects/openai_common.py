"""Shared parts of the OpenAI wires: message structs, and the field names of the beta."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from realtime.errors import RemoteProtocolError
from realtime.protocol.dialects.parsing import unsupported_format
from realtime.protocol.model import ClientHandshake, RequestedFormat, SpeechOptions

FORMATS = {
    "audio/pcm": RequestedFormat("pcm_s16le", 24_000),
    "audio/pcmu": RequestedFormat("mulaw", 8_000),
    "audio/pcma": RequestedFormat("alaw", 8_000),
}
# Numbers without end are cut to this; the nearest speed there is will be taken.
MAX_SPEED = 100
MAX_AUDIO_END_MS = 1e9
# Fields kept from earlier updates; others are echoed once, so that a session never grows.
MERGED_AUDIO_FIELDS = ("format", "voice", "speed", "turn_detection", "transcription", "noise_reduction")
FUNCTION_FIELDS = ("name", "description", "parameters")


class OpenAIContentPart(Struct):
    type: str = ""
    text: str | None = None
    transcript: str | None = None


class OpenAIItem(Struct):
    id: str | None = None
    type: str = "message"
    role: str = "user"
    content: list[OpenAIContentPart] = field(default_factory=list)
    # Of function calls and their results.
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | None = None

    @property
    def text(self) -> str:
        return " ".join(part.text for part in self.content if part.text)


class OpenAIResponseParams(Struct):
    """Parameters of ``response.create``; missing ones come from the session."""

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
    audio: str | None = None


def first_session(session_id: str, model: str, turn_detection: dict[str, Any] | None = None) -> dict[str, Any]:
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
            "input": {"format": {"type": "audio/pcm", "rate": 24_000}, "turn_detection": turn_detection},
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


def parse_options(session: dict[str, Any], request: OpenAIResponseParams | None) -> SpeechOptions:
    """Parse the options of a response; raises ``RemoteProtocolError``."""
    modalities = (request and request.output_modalities) or session.get("output_modalities") or ["audio"]
    if not isinstance(modalities, list) or "audio" not in modalities:
        raise RemoteProtocolError("invalid_request", "output_modalities must hold audio", "output_modalities")
    output = dict(session["audio"]["output"])
    given = ((request and request.audio) or {}).get("output")
    output |= given if isinstance(given, dict) else {}
    speed = output.get("speed")
    return SpeechOptions(
        voice=_voice(output.get("voice")),
        format=_format(output.get("format")),
        speed=float(min(max(speed, 0), MAX_SPEED)) if isinstance(speed, int | float) else 1.0,
        word_times=True,
    )


def chat_tools(given: Any) -> tuple[dict[str, Any], ...]:
    """Return a session's functions as those of a chat completion."""
    tools = (tool for tool in given if isinstance(tool, dict)) if isinstance(given, list) else ()
    return tuple(
        {"type": "function", "function": {name: tool[name] for name in FUNCTION_FIELDS if name in tool}}
        for tool in tools
        if tool.get("type") == "function"
    )


def chat_tool_choice(given: Any) -> Any:
    if isinstance(given, dict):
        return {"type": "function", "function": {"name": str(given.get("name", ""))}}
    return given if given in ("none", "required") else "auto"


def _format(given: Any) -> RequestedFormat:
    kind = given.get("type", "audio/pcm") if isinstance(given, dict) else "audio/pcm"
    if not isinstance(kind, str) or kind not in FORMATS:
        raise unsupported_format("audio.output.format.type", FORMATS, str(kind))
    return FORMATS[kind]


def _voice(given: Any) -> str | None:
    name = given.get("id") if isinstance(given, dict) else given
    return name if isinstance(name, str) else None


# Names of the beta for those of today.
BETA_EVENTS = {
    "conversation.item.added": "conversation.item.created",
    "response.output_audio.delta": "response.audio.delta",
    "response.output_audio.done": "response.audio.done",
    "response.output_audio_transcript.delta": "response.audio_transcript.delta",
    "response.output_audio_transcript.done": "response.audio_transcript.done",
}
BETA_FORMATS = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
BETA_PARTS = {"output_audio": "audio", "output_text": "text"}


def is_beta(handshake: ClientHandshake) -> bool:
    """Return whether the client uses the beta, by header or by the sub-protocol of browsers."""
    by_header = "realtime=v1" in handshake.headers.get("openai-beta", "")
    return by_header or "openai-beta.realtime-v1" in handshake.subprotocols


def to_beta_event(kind: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """An event of today in the words of then. What had none then keeps its name: clients pass it over."""
    return BETA_EVENTS.get(kind, kind), _to_beta_parts(fields)


def from_beta_session(session: Mapping[str, Any]) -> dict[str, Any]:
    """A session of then in the words of today."""
    output = {name: session[name] for name in ("voice", "speed") if name in session}
    if "output_audio_format" in session:
        name = str(session["output_audio_format"])
        output["format"] = {"type": BETA_FORMATS.get(name, name)}
    given = {}
    if "input_audio_format" in session:
        name = str(session["input_audio_format"])
        given["format"] = {"type": BETA_FORMATS.get(name, name)}
    if "turn_detection" in session:
        given["turn_detection"] = session["turn_detection"]
    modalities = session.get("modalities")
    update: dict[str, Any] = {"audio": {"output": output} | ({"input": given} if given else {})}
    return update if modalities is None else update | {"output_modalities": modalities}


def _to_beta_parts(value: Any) -> Any:
    """Parts of content have other types."""
    if isinstance(value, list):
        return [_to_beta_parts(one) for one in value]
    if not isinstance(value, dict):
        return value
    fields = {name: _to_beta_parts(one) for name, one in value.items()}
    return fields | {"type": BETA_PARTS[fields["type"]]} if fields.get("type") in BETA_PARTS else fields
