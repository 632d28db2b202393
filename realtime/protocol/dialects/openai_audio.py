"""Spoken turns on OpenAI Realtime: the options of audio input, and the items that turns become."""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from realtime.errors import RemoteProtocolError
from realtime.protocol.agent_turns import ConfigureAudio, DetectedTurns
from realtime.protocol.dialects.openai_common import FORMATS
from realtime.protocol.dialects.parsing import unsupported_format

# Of a session with a recognizer.
FIRST_DETECTION: dict[str, Any] = {
    "type": "server_vad",
    "prefix_padding_ms": 300,
    "silence_duration_ms": 500,
    "create_response": True,
    "interrupt_response": True,
}
# The second finds the end of a turn by its meaning; here it is served as the first.
DETECTIONS = ("server_vad", "semantic_vad")
# Name of each option and its range.
RANGES = {"threshold": (0.0, 1.0), "prefix_padding_ms": (0, 5_000), "silence_duration_ms": (100, 10_000)}


def parse_audio_input(session: Mapping[str, Any]) -> ConfigureAudio:
    """Parse format and turn detection of a session. Raises ``RemoteProtocolError``."""
    given = session["audio"]["input"]
    sound = given.get("format")
    kind = sound.get("type", "audio/pcm") if isinstance(sound, dict) else "audio/pcm"
    if not isinstance(kind, str) or kind not in FORMATS:
        raise unsupported_format("audio.input.format.type", FORMATS, str(kind))
    if isinstance(sound, dict) and sound.get("rate") not in (None, FORMATS[kind].sample_rate):
        found = f"{kind} has a rate of {FORMATS[kind].sample_rate}, not {str(sound['rate'])[:20]}"
        raise RemoteProtocolError("unsupported_format", found, "audio.input.format.rate")
    return ConfigureAudio(FORMATS[kind].encoding, FORMATS[kind].sample_rate, _detection(given.get("turn_detection")))


def _detection(given: Any) -> DetectedTurns | None:
    if given is None:
        return None
    field_name = "audio.input.turn_detection"
    kind = given.get("type", "server_vad") if isinstance(given, dict) else given
    if kind not in DETECTIONS:
        message = f"{field_name}.type must be one of {', '.join(DETECTIONS)}, is {str(kind)[:40]!r}"
        raise RemoteProtocolError("invalid_request", message, field_name)
    values = {name: given.get(name) for name in RANGES}
    for name, (low, high) in RANGES.items():
        value = values[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and low <= value <= high):
            message = f"{field_name}.{name} must be a number from {low} to {high}, is {str(value)[:40]}"
            raise RemoteProtocolError("invalid_request", message, f"{field_name}.{name}")
    padding, silence = values["prefix_padding_ms"], values["silence_duration_ms"]
    return DetectedTurns(
        values["threshold"],
        FIRST_DETECTION["prefix_padding_ms"] if padding is None else int(padding),
        FIRST_DETECTION["silence_duration_ms"] if silence is None else int(silence),
    )


def is_on(session: Mapping[str, Any], option: str) -> bool:
    """Return an option of the turn detection, ``create_response`` or ``interrupt_response``."""
    given = session["audio"]["input"].get("turn_detection")
    return isinstance(given, dict) and given.get(option, True) is not False


def decode_audio(text: str | None) -> bytes:
    """Decode the audio of a message. Raises ``RemoteProtocolError``."""
    try:
        return binascii.a2b_base64((text or "").encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        raise RemoteProtocolError("invalid_event", "audio is not base64", "audio") from None


@dataclass(slots=True)
class SpokenItems:
    """Items of spoken turns."""

    # Of the turn that is being spoken; it was sent to the client already.
    next_id: str | None = None
    # Turns without a transcript, and their items.
    pending: dict[int, str] = field(default_factory=dict)

    def pop_next_id(self, new_id: str) -> str:
        item_id, self.next_id = self.next_id or new_id, None
        return item_id
