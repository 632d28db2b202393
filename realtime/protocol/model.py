"""The vocabulary of all wires: what a client asks for and what becomes of it, whatever its messages look like.

A connection of a vendor's wire holds contexts, each a text that is spoken as one signal: its dialect turns messages
into commands on contexts, and events of contexts into messages. A telephony dialect turns a provider's messages into
events of a call. Agents send commands into calls and receive their events, as JSON tagged by ``type``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from engine.api import ErrorInfo
from realtime.protocol.events import (
    HeardBody,
    Id,
    NativeSpeechSettings,
    ResponseAudioFormat,
    SessionCreated,
    SessionUpdated,
    Status,
)

Message = str | bytes
Cause = Literal["caller", "agent", "hang_up"]


@dataclass(frozen=True, slots=True)
class RequestedFormat:
    """How a client wants its audio. Whether that can be served is not decided here."""

    # One of ``sessions.config.Encoding``: ``pcm_s16le``, ``pcm_f32le``, ``mulaw``, ``alaw``, ``wav``, ``mp3``, ``aac``,
    # ``flac``, ``ogg_opus``, ``opus``.
    encoding: str = "pcm_s16le"
    sample_rate: int = 24_000
    # Bits a second.
    bitrate: int | None = None
    # Of bare Opus.
    packet_ms: int = 20


@dataclass(frozen=True, slots=True)
class SpeechOptions:
    """How a client wants a context to be spoken, in the terms of all dialects. Unsupported options become defaults."""

    # The vendor's id or a name of this server.
    voice: str | None = None
    language: str | None = None
    format: RequestedFormat = field(default_factory=RequestedFormat)
    seed: int | None = None
    speed: float = 1.0
    instruct: str = ""
    word_times: bool = False
    # As fast as it is made, for a client that gets it whole; else with a lead, on sockets.
    burst: bool = False
    # Another lead than that of all vendors' wires.
    lead_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ClientHandshake:
    """What a client said before its first message."""

    # The parameters in the path, such as ``voice_id``.
    path: Mapping[str, str]
    query: Mapping[str, str]
    # Names in lower case.
    headers: Mapping[str, str]
    # Of this connection; random, for dialects that have to make up ids.
    request_id: str
    subprotocols: tuple[str, ...] = ()


# --- what a dialect asks for


@dataclass(frozen=True, slots=True)
class SendMessage:
    """A message of the vendor's, as it is; on HTTP a piece of the body."""

    message: Message
    # Of an error that says that a message was not acted on, which counts as an error of the connection.
    refused_code: str | None = None


@dataclass(frozen=True, slots=True)
class AuthenticateKey:
    """The key stood in a message (``DialectRoute.late_key``). Everything but ``SendMessage`` and ``Close`` needs it
    first.
    """

    key: str


@dataclass(frozen=True, slots=True)
class Configure:
    """Fields of ``POST /v1/audio/speech`` that hold for the contexts opened from now on, over those given before."""

    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OpenContext:
    """A context begins; its id is free again once it has ``ContextEnded``. It takes a place only
    with its first text.
    """

    context: str
    options: SpeechOptions
    # Contexts of one line are spoken one after the other, in the order they were opened.
    track: str | None = None


@dataclass(frozen=True, slots=True)
class CreateResponse:
    """A context of the native wire: it takes a place at once, and its settings are used as given or refused."""

    context: str
    settings: NativeSpeechSettings
    text: str = ""
    last: bool = False


@dataclass(frozen=True, slots=True)
class AppendText:
    context: str
    text: str
    # As with an ``End`` right behind; the engine then knows so from the start.
    last: bool = False


@dataclass(frozen=True, slots=True)
class FlushContext:
    """Speak all text so far; answered by ``ContextFlushed``, at once if there is nothing to say."""

    context: str


@dataclass(frozen=True, slots=True)
class EndContext:
    """No more text; answered by ``ContextEnded`` when all is spoken."""

    context: str


@dataclass(frozen=True, slots=True)
class CancelContext:
    """Stop; answered by ``ContextEnded``, and no ``Audio`` before it."""

    context: str
    played_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ReportPlayback:
    """The listener has heard so much of a context; without an answer."""

    context: str
    played_ms: float


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """What holds for the responses created from now on; answered by ``SessionUpdated``."""

    settings: NativeSpeechSettings


@dataclass(frozen=True, slots=True)
class QueryHeard:
    """What was heard of a context that has ended; answered by ``HeardReported``, or by ``HeardUnknown`` if it is
    forgotten."""

    context: str
    played_ms: float | None = None


@dataclass(frozen=True, slots=True)
class FinishContexts:
    """No more contexts; once all have ended, ``AllContextsEnded`` is told."""


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Cancel everything and close. On HTTP the body is complete."""

    code: int = 1000
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AbortRequest:
    """HTTP: answer with the error's status, or cut the body short if it has begun."""

    error: ErrorInfo


DialectCommand = (
    SendMessage
    | AuthenticateKey
    | Configure
    | OpenContext
    | CreateResponse
    | AppendText
    | FlushContext
    | EndContext
    | CancelContext
    | ReportPlayback
    | UpdateSettings
    | QueryHeard
    | FinishContexts
    | CloseConnection
    | AbortRequest
)


# --- what a dialect is told


@dataclass(frozen=True, slots=True)
class ContextOpened:
    """``Open`` was heard. ``warnings`` tell what of the wish became a default."""

    context: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResponseOpened:
    """The answer to ``CreateResponse``."""

    context: str
    format: ResponseAudioFormat
    # All that holds for the response.
    settings: NativeSpeechSettings


@dataclass(frozen=True, slots=True)
class ContextAudio:
    """Encoded as wished, in order. Times count from the first sample of the context."""

    context: str
    data: bytes
    start_ms: float
    end_ms: float
    # Of bare Opus: what ``data`` is made of.
    packets: tuple[bytes, ...] = ()
    # 0, 1, 2 ... over the audio of the context.
    sequence: int = 0
    # Of the first sample, as a decoder puts samples out.
    start_sample: int = 0


@dataclass(frozen=True, slots=True)
class TimedWord:
    """A word in the client's own characters, with its marks and without white space."""

    text: str
    start_ms: float
    end_ms: float
    # One for each character of ``text``.
    char_ends_ms: tuple[float, ...]
    # What is said for it, where that is something else: a number written out.
    spoken: str = ""
    spoken_ends_ms: tuple[float, ...] = ()
    # Where it stands in all text of the context.
    raw_start: int = 0
    raw_end: int = 0
    # The number of its utterance.
    segment: int = 0


@dataclass(frozen=True, slots=True)
class ContextWords:
    """Times of words, rising; about when their audio is told, before or after it. Only if they were wished."""

    context: str
    words: tuple[TimedWord, ...]


@dataclass(frozen=True, slots=True)
class ContextFlushed:
    """All audio of the text up to a ``Flush`` was told."""

    context: str
    end_ms: float
    # 0, 1, 2 ... over the flushes of the context.
    flush: int = 0
    # Where that audio ends, as ``ContextAudio.start_sample`` counts.
    end_sample: int = 0


@dataclass(frozen=True, slots=True)
class ContextEnded:
    """The one last event of a context."""

    context: str
    status: Status = "completed"
    # Of audio that was told.
    audio_ms: float = 0.0
    # The client's text up to the last word heard.
    heard: str = ""
    remaining: str = ""
    played_ms: float = 0.0
    # With ``failed``.
    error: ErrorInfo | None = None
    audio_samples: int = 0
    # The text held nothing that can be spoken.
    nothing_spoken: bool = False
    # From the text that made the first word final to the first packet.
    first_audio_ms: float | None = None


@dataclass(frozen=True, slots=True)
class HeardReported:
    context: str
    heard: str
    remaining: str
    played_ms: float


@dataclass(frozen=True, slots=True)
class HeardUnknown:
    """Others have ended since, and nothing is known of the context any more."""

    context: str


@dataclass(frozen=True, slots=True)
class ContextIdle:
    """Nothing was said to a context, nor by it, for ``Dialect.context_timeout_s``. Told again and again."""

    context: str


@dataclass(frozen=True, slots=True)
class AllContextsEnded:
    """After ``FinishContexts``: every context has ended."""


# Of the native wire.
SessionEvent = SessionCreated | SessionUpdated
DialectEvent = (
    ContextOpened
    | ResponseOpened
    | ContextAudio
    | ContextWords
    | ContextFlushed
    | ContextEnded
    | HeardReported
    | HeardUnknown
    | ContextIdle
    | AllContextsEnded
)


# --- what a telephony provider reports


@dataclass(frozen=True, slots=True)
class TelephonyFormat:
    """Of both directions; mono."""

    # ``mulaw``, ``alaw`` or ``pcm_s16le``.
    encoding: str = "mulaw"
    sample_rate: int = 8_000

    @property
    def sample_bytes(self) -> int:
        return 2 if self.encoding == "pcm_s16le" else 1


@dataclass(frozen=True, slots=True)
class StreamStarted:
    """The call is connected; audio may flow."""

    # The provider's.
    call_id: str
    line: TelephonyFormat
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CallerAudioReceived:
    data: bytes
    # Rising with time, where the provider counts.
    number: int | None = None


@dataclass(frozen=True, slots=True)
class DtmfReceived:
    digit: str


@dataclass(frozen=True, slots=True)
class MarkPlayed:
    """All audio sent before the mark was played, or thrown away by a clear."""

    name: str


@dataclass(frozen=True, slots=True)
class FlowControl:
    """The far buffer is full (``on``), or has room again."""

    on: bool


@dataclass(frozen=True, slots=True)
class RemoteBargeIn:
    """The far side itself noticed that its user speaks, or wants to."""


@dataclass(frozen=True, slots=True)
class TextReceived:
    """The far side's user wrote something, or said what the device understands by itself."""

    text: str


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
    | StreamEnded
)


# --- what an agent asks for and receives


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
