"""The JSON of agents: commands in, events of calls out."""

from __future__ import annotations

import msgspec

from realtime.errors import RemoteProtocolError
from realtime.protocol.model import CallEvent, Command
from realtime.protocol.native import field_at_fault

_decoder: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_encoder = msgspec.json.Encoder()


def parse_command(message: str | bytes) -> Command:
    """Raises ``RemoteProtocolError``."""
    try:
        return _decoder.decode(message)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError("invalid_event", str(error), field_at_fault(str(error))) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RemoteProtocolError("malformed_json", f"not a JSON message: {error}") from None


def serialize(event: CallEvent) -> str:
    return _encoder.encode(event).decode()
