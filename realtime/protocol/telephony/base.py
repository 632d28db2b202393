"""Base of telephony dialects: a provider's messages in, events out. No I/O and no clock."""

from __future__ import annotations

import base64
import binascii
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeVar

from realtime.errors import RemoteProtocolError
from realtime.protocol.model import Message
from realtime.protocol.telephony import model

# Maximum length of an id of the provider.
MAX_NAME_CHARS = 256
MAX_PARAMETERS = 64
# Maximum audio per message; providers send 20 ms.
MAX_AUDIO_S = 2
T = TypeVar("T")
DIGIT = re.compile(r"[0-9A-D*#]")
MAX_PARAMETER_CHARS = 1_024


class TelephonyDialect(ABC):
    """A provider's media stream.

    ``receive`` raises ``RemoteProtocolError`` for a message that breaks the wire, and ignores unknown ones. The other
    methods return the message to send, or ``None`` where the provider has none.
    """

    name: ClassVar[str]
    # Accepted formats.
    formats: ClassVar[frozenset[model.TelephonyFormat]]
    # The far side holds no more than that.
    max_buffer_ms: ClassVar[int] = 10_000
    # The far side plays what comes when it comes: a frame each 20 ms, silence too.
    is_paced: ClassVar[bool] = False
    has_marks: ClassVar[bool] = True
    subprotocol: ClassVar[str | None] = None

    # Set at the start.
    format: model.TelephonyFormat | None = None

    @abstractmethod
    def receive_message(self, message: Message) -> Sequence[model.TelephonyEvent]: ...

    @abstractmethod
    def send_audio(self, data: bytes) -> Message:
        """A frame of 20 ms."""

    def send_greeting(self) -> Message | None:
        """The answer to the start."""
        return None

    def send_mark(self, name: str) -> Message | None:
        return None

    def send_clear(self) -> Message | None:
        """Throw away what was not played; marks in it come back at once."""
        return None

    def send_hang_up(self) -> Message | None:
        """Said before the connection is closed."""
        return None

    def start(self, call_id: str, line: model.TelephonyFormat, parameters: Mapping[str, str]) -> model.StreamStarted:
        """Begin the stream; raises ``RemoteProtocolError`` for a second start, an unknown format, or too long names."""
        if self.format is not None:
            raise RemoteProtocolError("invalid_event", "the call has started already", "start")
        if line not in self.formats:
            known = ", ".join(sorted(f"{one.encoding} at {one.sample_rate}" for one in self.formats))
            requested = f"{line.encoding[:40]} at {line.sample_rate}"
            raise RemoteProtocolError(
                "unsupported_format", f"{self.name} may send {known}, not {requested}", "encoding"
            )
        if not 0 < len(call_id) <= MAX_NAME_CHARS:
            found = f"a call id has 1 to {MAX_NAME_CHARS} characters, this one {len(call_id)}"
            raise RemoteProtocolError("invalid_event", found, "call_id")
        if len(parameters) > MAX_PARAMETERS:
            found = f"a call has at most {MAX_PARAMETERS} parameters, this one {len(parameters)}"
            raise RemoteProtocolError("invalid_event", found, "parameters")
        self.format = line
        return model.StreamStarted(call_id, line, parameters)

    def caller_audio(self, data: bytes, number: int | None = None) -> model.CallerAudioReceived:
        """Return audio of the caller; raises ``RemoteProtocolError`` before the start, and for half samples."""
        line = self.require_start("media")
        if len(data) % line.sample_bytes:
            found = f"{len(data)} bytes are no whole number of samples of {line.sample_bytes} bytes"
            raise RemoteProtocolError("invalid_event", found, "payload")
        if len(data) > MAX_AUDIO_S * line.sample_rate * line.sample_bytes:
            found = f"a message holds at most {MAX_AUDIO_S} s of audio, this one {len(data)} bytes"
            raise RemoteProtocolError("invalid_event", found, "payload")
        return model.CallerAudioReceived(data, number)

    def require_start(self, what: str) -> model.TelephonyFormat:
        if self.format is None:
            raise RemoteProtocolError("invalid_event", f"{what} came before the start of the call", what)
        return self.format


def required(part: T | None, name: str) -> T:
    """Return a required field; raises ``RemoteProtocolError`` if it is missing."""
    if part is None:
        raise RemoteProtocolError("invalid_event", f"Object missing required field `{name}`", name)
    return part


def payload(text: str) -> bytes:
    """Decode base64 audio; raises ``RemoteProtocolError``."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RemoteProtocolError("invalid_event", "payload is not base64", "payload") from None


def digit(text: str) -> str:
    """Check a DTMF digit; raises ``RemoteProtocolError``."""
    pressed = text.strip().upper()
    if DIGIT.fullmatch(pressed) is None:
        raise RemoteProtocolError("invalid_event", f"no key of a telephone: {text[:8]!r}", "digit")
    return pressed


def mark_name(text: str) -> str:
    """Check the name of a mark; raises ``RemoteProtocolError``."""
    if len(text) > MAX_NAME_CHARS:
        found = f"a mark has at most {MAX_NAME_CHARS} characters, this one {len(text)}"
        raise RemoteProtocolError("invalid_event", found, "name")
    return text


def parameters(given: Mapping[str, object] | None) -> dict[str, str]:
    """Return parameters as texts, long ones cut."""
    return {name[:MAX_NAME_CHARS]: str(value)[:MAX_PARAMETER_CHARS] for name, value in (given or {}).items()}
