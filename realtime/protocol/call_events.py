"""The JSON of agents: commands in, events of calls out."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from realtime.protocol.native import decode_json
from realtime.protocol.telephony.model import CallEvent, Command


class AgentSession(Struct, frozen=True):
    """The first event for an agent that can resume."""

    type: Literal["session.created", "session.resumed"]
    session_id: str
    resume_token: str
    resume_grace_s: float
    # Commands of the session that were received.
    received_commands: int


_decoder: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_encoder = msgspec.json.Encoder()


def parse_command(message: str | bytes) -> Command:
    """Parse a command of an agent; raises ``RemoteProtocolError``."""
    return decode_json(_decoder.decode, message)


def serialize(event: CallEvent | AgentSession) -> str:
    return _encoder.encode(event).decode()
