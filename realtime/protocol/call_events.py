"""The JSON of agents: commands in, events of calls out."""

from __future__ import annotations

import msgspec

from realtime.protocol.model import CallEvent, Command
from realtime.protocol.native import decode_json

_decoder: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_encoder = msgspec.json.Encoder()


def parse_command(message: str | bytes) -> Command:
    """Parse a command of an agent; raises ``RemoteProtocolError``."""
    return decode_json(_decoder.decode, message)


def serialize(event: CallEvent) -> str:
    return _encoder.encode(event).decode()
