"""The vocabulary of calls: events of telephony providers and devices, and commands and events of agents.

A telephony dialect turns a provider's messages into events of a call. Agents send commands into calls and receive their
events, as JSON tagged by ``type``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from engine.api import ErrorInfo
from realtime.protocol.events import HeardBody, Id

Cause = Literal["caller", "agent", "hang_up"]


# --- events of telephony providers


@dataclass(frozen=True, slots=True)
class TelephonyFormat:
    """Audio format of both directions; mono."""

    # ``mulaw``, ``alaw`` or ``pcm_s16le``.
    encoding: str = "mulaw"
    sample_rate: int = 8_000

    @property
    def sample_bytes(self) -> int:
        return 2 if self.encoding == "pcm_s16le" else 1


@dataclass(frozen=True, slots=True)
class StreamStarted:
    """The call is connected; audio may flow."""

    # Id of the provider.
    call_id: str
    line: TelephonyFormat
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CallerAudioReceived:
    data: bytes
    # Ascending packet number, where the provider has one.
    number: int | None = None


@dataclass(frozen=True, slots=True)
class DtmfReceived:
    digit: str


@dataclass(frozen=True, slots=True)
class MarkPlayed:
    """Emitted when the audio before the mark was played, or dropped by a clear."""

    name: str


@dataclass(frozen=True, slots=True)
class FlowControl:
    """The provider's buffer is full (``on``), or has room again."""

    on: bool


@dataclass(frozen=True, slots=True)
class RemoteBargeIn:
    """The device detected that its user speaks, or wants to."""


@dataclass(frozen=True, slots=True)
class TextReceived:
    """The device's user wrote text, or spoke a word that the device recognizes."""

    text: str


@dataclass(frozen=True, slots=True)
class ListeningStarted:
    """The device sends what its user says from now on."""

    # True if its user marks the end, by ``ListeningStopped``.
    is_manual: bool


@dataclass(frozen=True, slots=True)
class ListeningStopped:
    """The device's user has finished."""


@dataclass(frozen=True, slots=True)
class StreamEnded:
    reason: str = "caller"


TelephonyEvent = (
    StreamStarted
    | CallerAudioReceived
    | DtmfReceived
    | MarkPlayed
    | FlowControl
    | RemoteBargeIn
    | TextReceived
    | ListeningStarted
    | ListeningStopped
    | StreamEnded
)


# --- commands and events of agents


class CommandBase(Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True, omit_defaults=True):
    """``call_id`` may be left out where the address names the call."""

    call_id: Id | None = None


class SayCommand(CommandBase, tag="say", frozen=True):
    """Queue a reply. With ``end`` false more text may be appended."""

    text: str = ""
    reply_id: Id | None = None
    end: bool = True


class AppendCommand(CommandBase, tag="append", frozen=True):
    reply_id: Id
    text: str


class MarkCommand(CommandBase, tag="mark", frozen=True):
    """Request ``call.mark`` when the caller has heard the reply's text up to here."""

    reply_id: Id
    name: Annotated[str, Meta(min_length=1, max_length=64)]


class EndReplyCommand(CommandBase, tag="end", frozen=True):
    """End the text of a reply."""

    reply_id: Id


class InterruptCommand(CommandBase, tag="interrupt", frozen=True):
    """Stop speaking, and drop queued replies."""


class HangUpCommand(CommandBase, tag="hang_up", frozen=True):
    # Wait until all queued speech was played.
    after_speech: bool = False


Command = SayCommand | AppendCommand | MarkCommand | EndReplyCommand | InterruptCommand | HangUpCommand


class EventBase(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=False):
    """Base of the events for agents."""


class CallConnected(EventBase, tag="call.connected", frozen=True):
    call_id: str
    provider: str
    provider_call_id: str
    encoding: str
    sample_rate: int
    parameters: dict[str, str]
    # What the replies are, in a term of IPTC.
    digital_source_type: str = ""


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
    """Text that the device's user wrote, or the wake word."""

    call_id: str
    text: str


class CallerBargeIn(EventBase, tag="call.barge_in", frozen=True):
    """The caller interrupts. ``reply.interrupted`` follows for each reply that was cut."""

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
