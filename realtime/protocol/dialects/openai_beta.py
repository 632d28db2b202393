"""OpenAI Realtime's beta form, which some clients still ask for: other names for the same events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from realtime.protocol.model import ClientHandshake

EVENTS = {
    "conversation.item.added": "conversation.item.created",
    "response.output_audio.delta": "response.audio.delta",
    "response.output_audio.done": "response.audio.done",
    "response.output_audio_transcript.delta": "response.audio_transcript.delta",
    "response.output_audio_transcript.done": "response.audio_transcript.done",
}
FORMATS = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
PARTS = {"output_audio": "audio", "output_text": "text"}


def is_beta(handshake: ClientHandshake) -> bool:
    """By the header, or by the sub-protocol that browsers offer in its place."""
    by_header = "realtime=v1" in handshake.headers.get("openai-beta", "")
    return by_header or "openai-beta.realtime-v1" in handshake.subprotocols


def to_beta_event(kind: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """An event of today in the words of then. What had none then keeps its name: clients pass it over."""
    return EVENTS.get(kind, kind), _renamed(fields)


def from_beta_session(session: Mapping[str, Any]) -> dict[str, Any]:
    """A session of then in the words of today."""
    output = {name: session[name] for name in ("voice", "speed") if name in session}
    if "output_audio_format" in session:
        name = str(session["output_audio_format"])
        output["format"] = {"type": FORMATS.get(name, name)}
    modalities = session.get("modalities")
    update: dict[str, Any] = {"audio": {"output": output}}
    return update if modalities is None else update | {"output_modalities": modalities}


def _renamed(value: Any) -> Any:
    """Parts of content have other types."""
    if isinstance(value, list):
        return [_renamed(one) for one in value]
    if not isinstance(value, dict):
        return value
    fields = {name: _renamed(one) for name, one in value.items()}
    return fields | {"type": PARTS[fields["type"]]} if fields.get("type") in PARTS else fields
