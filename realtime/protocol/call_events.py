"""The text side of calls: commands of agents and events of calls. JSON, tagged by ``type``."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError
from realtime.protocol.events import HeardBody, Id
from realtime.protocol.native import field_at_fault

Cause = Literal["caller", "agent", "hang_up"]


class CommandBase(Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True, omit_defaults=True):
    """``call_id`` may be left out where the address names the call."""

    call_id: Id | None = None


class SayCommand(CommandBase, tag="say", frozen=True):
    """A reply, behind those that wait already. Unless it has its ``end``, more text may be appended."""

    text: str = ""
    reply_id: Id | None = None
    end: bool = True


class AppendCommand(CommandBase, tag="append", frozen=True):
    reply_id: Id
    text: str


class MarkCommand(CommandBase, tag="mark", frozen=True):
    """Tell ``call.mark`` when the caller has heard the reply's text up to here."""

    reply_id: Id
    name: Annotated[str, Meta(min_length=1, max_length=64)]


class EndReplyCommand(CommandBase, tag="end", frozen=True):
    """The reply has all its text."""

    reply_id: Id


class InterruptCommand(CommandBase, tag="interrupt", frozen=True):
    """Stop speaking, and forget what waits."""


class HangUpCommand(CommandBase, tag="hang_up", frozen=True):
    # Once everything said so far was heard.
    after_speech: bool = False


Command = SayCommand | AppendCommand | MarkCommand | EndReplyCommand | InterruptCommand | HangUpCommand


class EventBase(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=False):
    """What an agent is told."""


class CallConnected(EventBase, tag="call.connected", frozen=True):
    call_id: str
    provider: str
    provider_call_id: str
    encoding: str
    sample_rate: int
    parameters: dict[str, str]


class CallReplyAccepted(EventBase, tag="reply.accepted", frozen=True):
    """The answer to ``say``."""

    call_id: str
    reply_id: str


class CallReplyPlayed(EventBase, tag="reply.played", frozen=True):
    call_id: str
    reply_id: str
    played_ms: float
    # Confirmed by the provider's mark; else by the local clock.
    confirmed: bool


class CallReplyInterrupted(EventBase, tag="reply.interrupted", frozen=True):
    call_id: str
    reply_id: str
    cause: Cause
    heard: HeardBody


class CallReplyFailed(EventBase, tag="reply.failed", frozen=True):
    call_id: str
    reply_id: str
    error: ErrorInfo
    heard: HeardBody


class CallMarkReached(EventBase, tag="call.mark", frozen=True):
    call_id: str
    reply_id: str
    name: str
    confirmed: bool


class CallDtmf(EventBase, tag="call.dtmf", frozen=True):
    call_id: str
    digit: str


class CallerText(EventBase, tag="call.text", frozen=True):
    """A device's user wrote this, or it is the word that woke the device."""

    call_id: str
    text: str


class CallerBargeIn(EventBase, tag="call.barge_in", frozen=True):
    """The caller speaks into a reply. ``reply.interrupted`` follows for each that was cut."""

    call_id: str


class CallEnded(EventBase, tag="call.hung_up", frozen=True):
    """The last event of a call."""

    call_id: str
    reason: str


class CommandRefused(EventBase, tag="error", frozen=True):
    call_id: str | None
    code: str
    message: str
    param: str | None = None
    retryable: bool = False
    retry_after_ms: int | None = None

    @classmethod
    def from_info(cls, info: ErrorInfo, call_id: str | None) -> CommandRefused:
        return cls(call_id=call_id, **asdict(info))


CallEvent = (
    CallConnected
    | CallReplyAccepted
    | CallReplyPlayed
    | CallReplyInterrupted
    | CallReplyFailed
    | CallMarkReached
    | CallDtmf
    | CallerText
    | CallerBargeIn
    | CallEnded
    | CommandRefused
)

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
