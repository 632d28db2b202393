"""The vocabulary of all wires of text: commands of clients and events for them, independent of message formats.

A connection of a vendor's wire holds contexts, each a text that is spoken as one signal: its dialect turns messages
into commands on contexts, and events of contexts into messages. Calls have theirs in
``realtime/protocol/telephony/model.py``, the built-in agent in ``realtime/protocol/agent_turns.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from engine.api import ErrorInfo, SamplingFields
from realtime.protocol.agent_turns import AgentAbility, AgentCommand
from realtime.protocol.events import (
    NativeSpeechSettings,
    ResponseAudioFormat,
    ResumePosition,
    Resync,
    SessionCreated,
    SessionUpdated,
    Status,
)

Message = str | bytes


@dataclass(frozen=True, slots=True)
class RequestedFormat:
    """The audio format that a client requests. Whether it can be served is checked elsewhere."""

    # One of ``sessions.config.Encoding``: ``pcm_s16le``, ``pcm_f32le``, ``mulaw``, ``alaw``, ``wav``, ``mp3``, ``aac``,
    # ``flac``, ``ogg_opus``, ``opus``.
    encoding: str = "pcm_s16le"
    sample_rate: int = 24_000
    # Bits a second.
    bitrate: int | None = None
    # Packet duration of Opus without a container.
    packet_ms: int = 20


@dataclass(frozen=True, slots=True)
class SpeechOptions:
    """Speech options of a context, common to all dialects. Unsupported options are replaced by defaults."""

    # The vendor's id or a name of this server.
    voice: str | None = None
    language: str | None = None
    format: RequestedFormat = field(default_factory=RequestedFormat)
    seed: int | None = None
    sampling: SamplingFields | None = None
    speed: float = 1.0
    instruct: str = ""
    word_times: bool = False
    # Tags in the text control speech.
    ssml: bool = False
    # Names of ``sessions.config.InlineForm``: other forms that control speech.
    inline_forms: tuple[str, ...] = ()
    # Names of stored lexicons.
    lexicons: tuple[str, ...] = ()
    # Send audio as fast as it is generated; otherwise with a lead.
    burst: bool = False
    # Lead in place of ``dialects.lead_ms``.
    lead_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ClientHandshake:
    """Path, query and headers of a client's handshake or request."""

    # The parameters in the path, such as ``voice_id``.
    path: Mapping[str, str]
    query: Mapping[str, str]
    # Names in lower case.
    headers: Mapping[str, str]
    # Random, one for each connection; for dialects that create ids.
    request_id: str
    subprotocols: tuple[str, ...] = ()
    # What the server's built-in agent can do.
    agent: AgentAbility = "none"


# --- commands of dialects


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send a message as it is; on HTTP a piece of the body."""

    message: Message
    # Error code if it refuses a message, which counts as an error of the connection.
    refused_code: str | None = None


@dataclass(frozen=True, slots=True)
class AuthenticateKey:
    """Authenticate with a key from a message (``DialectRoute.late_key``). All commands but ``SendMessage`` and
    ``CloseConnection`` need it first.
    """

    key: str


@dataclass(frozen=True, slots=True)
class Configure:
    """Apply fields of ``POST /v1/audio/speech`` to contexts opened later, over earlier fields."""

    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OpenContext:
    """Open a context; its id is free again after ``ContextEnded``. It counts as a response from its first text on."""

    context: str
    options: SpeechOptions


@dataclass(frozen=True, slots=True)
class CreateResponse:
    """Create a response of the native wire at once. Its settings are used as given or refused."""

    context: str
    settings: NativeSpeechSettings
    text: str = ""
    last: bool = False
    # Of a response that another gateway began.
    resync: Resync | None = None


class AppendText(Struct, frozen=True):
    context: str
    text: str
    # Equal to an ``EndContext`` after it, but known to the engine from the start.
    last: bool = False


class AppendTextAt(AppendText, frozen=True):
    """Append text from this position on, in characters of the context's text; what was received before is skipped."""

    at: int = 0


@dataclass(frozen=True, slots=True)
class ChangeVoice:
    """Have another voice speak the text that follows, in a context whose options read markup."""

    context: str
    # The vendor's id or a name of this server; an unknown one becomes the default, with ``ContextWarning``.
    voice: str


@dataclass(frozen=True, slots=True)
class FlushContext:
    """Speak all text so far; answered by ``ContextFlushed``, at once if there is nothing to say."""

    context: str


@dataclass(frozen=True, slots=True)
class EndContext:
    """End the text; answered by ``ContextEnded`` when all is spoken."""

    context: str


@dataclass(frozen=True, slots=True)
class CancelContext:
    """Stop a context; ``ContextEnded`` follows, without ``ContextAudio`` before it."""

    context: str
    played_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ReportPlayback:
    """Report the listener's position; without an answer."""

    context: str
    played_ms: float


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """Change the settings of later responses; answered by ``SessionUpdated``."""

    settings: NativeSpeechSettings


@dataclass(frozen=True, slots=True)
class ResumeSession:
    """Take over a session of a lost connection, with its dialect; answered by ``ResumedSession``."""

    session_id: str
    token: str
    responses: tuple[ResumePosition, ...]


@dataclass(frozen=True, slots=True)
class SuspendContexts:
    """Stop the playback clocks, and wait a while for ``ResumeContexts``: the client is gone, the connection is not."""


@dataclass(frozen=True, slots=True)
class ResumeContexts:
    """Go on with contexts of this connection; answered by ``Dialect.send_resumed``."""

    positions: tuple[ResumePosition, ...]


@dataclass(frozen=True, slots=True)
class QueryHeard:
    """Query what was heard of a context that has ended; answered by ``HeardReported``, or by ``HeardUnknown`` if it is
    forgotten."""

    context: str
    played_ms: float | None = None


@dataclass(frozen=True, slots=True)
class FinishContexts:
    """Open no more contexts; ``AllContextsEnded`` follows when all have ended."""


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Cancel everything and close. On HTTP the body is complete."""

    code: int = 1000
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AbortRequest:
    """HTTP: answer with the error's status, or abort the body if it has begun."""

    error: ErrorInfo


DialectCommand = (
    SendMessage
    | AuthenticateKey
    | Configure
    | OpenContext
    | CreateResponse
    | AppendText
    | ChangeVoice
    | FlushContext
    | EndContext
    | CancelContext
    | ReportPlayback
    | UpdateSettings
    | ResumeSession
    | SuspendContexts
    | ResumeContexts
    | QueryHeard
    | FinishContexts
    | CloseConnection
    | AbortRequest
    | AgentCommand
)


# --- events for dialects


@dataclass(frozen=True, slots=True)
class ContextOpened:
    """The answer to ``OpenContext``. ``warnings`` name the options that became defaults."""

    context: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResponseOpened:
    """The answer to ``CreateResponse``."""

    context: str
    format: ResponseAudioFormat
    # All settings of the response.
    settings: NativeSpeechSettings
    # As in ``ResumedContext``.
    next_sample: int = 0
    discard_samples: int = 0


@dataclass(frozen=True, slots=True)
class ResumedContext:
    """Where a context goes on; ``None`` for one that is unknown."""

    context: str
    format: ResponseAudioFormat | None = None
    settings: NativeSpeechSettings | None = None
    received_chars: int = 0
    received_flushes: int = 0
    next_sample: int = 0
    discard_samples: int = 0
    # True if its end was sent before.
    had_ended: bool = False


@dataclass(frozen=True, slots=True)
class ResumedSession:
    """The answer to ``ResumeSession``."""

    session_id: str
    token: str
    grace_s: float
    settings: NativeSpeechSettings
    contexts: tuple[ResumedContext, ...]


class ContextAudio(Struct, frozen=True):
    """Encoded audio, in order. Times count from the first sample of the context."""

    context: str
    data: bytes
    start_ms: float
    end_ms: float
    # The parts of ``data``; for Opus without a container one packet each.
    packets: tuple[bytes, ...] = ()
    # 0, 1, 2 ... over the audio of the context.
    sequence: int = 0
    # Position of the first sample, as a decoder outputs samples.
    start_sample: int = 0


@dataclass(frozen=True, slots=True)
class TimedWord:
    """A word in the client's own characters, with its marks and without white space."""

    text: str
    start_ms: float
    end_ms: float
    # One for each character of ``text``.
    char_ends_ms: tuple[float, ...]
    # The spoken form where it differs, such as a number in words.
    spoken: str = ""
    spoken_ends_ms: tuple[float, ...] = ()
    # Span in the text of the context.
    raw_start: int = 0
    raw_end: int = 0
    # The number of its utterance.
    segment: int = 0
    # Of its text, if that is not the voice of the context: a label, or the voice that the client named.
    speaker: str = ""


@dataclass(frozen=True, slots=True)
class ContextWords:
    """Word times, ascending, near their audio. Only with ``SpeechOptions.word_times``."""

    context: str
    words: tuple[TimedWord, ...]


@dataclass(frozen=True, slots=True)
class ContextCheckpoint:
    """What another gateway would need to go on with the context. Only with ``NativeSpeechSettings.checkpoints``."""

    context: str
    index: int
    data: str


@dataclass(frozen=True, slots=True)
class ContextFlushed:
    """Emitted after all audio of the text up to a ``FlushContext``."""

    context: str
    end_ms: float
    # 0, 1, 2 ... over the flushes of the context.
    flush: int = 0
    # End of that audio, counted as in ``ContextAudio.start_sample``.
    end_sample: int = 0


@dataclass(frozen=True, slots=True)
class ContextMark:
    """A mark of marked-up text, near its audio."""

    context: str
    name: str
    # Counted as in ``ContextAudio.start_sample``.
    sample: int
    time_ms: float


@dataclass(frozen=True, slots=True)
class ContextWarning:
    """Markup that is broken, unknown or without effect."""

    context: str
    code: str
    # Name of the tag, or empty.
    element: str
    # Position in the text of the context.
    raw_start: int


@dataclass(frozen=True, slots=True)
class ContextEnded:
    """The only terminal event of a context."""

    context: str
    status: Status = "completed"
    # Duration of the audio that was sent.
    audio_ms: float = 0.0
    # The client's text up to the last word heard.
    heard: str = ""
    remaining: str = ""
    played_ms: float = 0.0
    # Set if the reason is ``failed``.
    error: ErrorInfo | None = None
    audio_samples: int = 0
    # The text held nothing that can be spoken.
    nothing_spoken: bool = False
    # Time from the text that completed the first word to the first packet.
    first_audio_ms: float | None = None
    # True if it was already sent, on a connection that was lost.
    is_repeated: bool = False

    @property
    def failure(self) -> ErrorInfo | None:
        """The error to send on wires whose text simply stops: there it is no error that none came any more."""
        return None if self.error is not None and self.error.code == "text_timeout" else self.error


@dataclass(frozen=True, slots=True)
class HeardReported:
    context: str
    heard: str
    remaining: str
    played_ms: float


@dataclass(frozen=True, slots=True)
class HeardUnknown:
    """The answer to ``QueryHeard`` when the context is no longer retained."""

    context: str


@dataclass(frozen=True, slots=True)
class ContextIdle:
    """A context had neither text nor audio for ``Dialect.context_timeout_s``. Repeated while that holds."""

    context: str


@dataclass(frozen=True, slots=True)
class AllContextsEnded:
    """Emitted after ``FinishContexts``, once every context has ended."""


# Events of the native wire about its session.
SessionEvent = SessionCreated | SessionUpdated | ResumedSession
DialectEvent = (
    ContextOpened
    | ResponseOpened
    | ContextAudio
    | ContextWords
    | ContextCheckpoint
    | ContextFlushed
    | ContextMark
    | ContextWarning
    | ContextEnded
    | HeardReported
    | HeardUnknown
    | ContextIdle
    | AllContextsEnded
)
