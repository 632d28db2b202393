"""What a dialect says and hears: intents go out, events come in, whatever the vendor's messages look like.

One connection holds contexts, each a text that is spoken as one signal. A dialect turns a client's message into intents
on its contexts, and what became of them into the vendor's messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.api import ErrorInfo

Message = str | bytes
Status = Literal["completed", "cancelled", "failed"]


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
    # Tells that a message was not acted on, which counts as an error of the connection.
    is_refusal: bool = False


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
class QueryHeard:
    """What was heard of a context that has ended; answered by ``HeardReported``, or by nothing if it is forgotten."""

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
    | AppendText
    | FlushContext
    | EndContext
    | CancelContext
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
class ContextAudio:
    """Encoded as wished, in order. Times count from the first sample of the context."""

    context: str
    data: bytes
    start_ms: float
    end_ms: float
    # Of bare Opus: what ``data`` is made of.
    packets: tuple[bytes, ...] = ()


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


@dataclass(frozen=True, slots=True)
class HeardReported:
    context: str
    heard: str
    remaining: str
    played_ms: float


@dataclass(frozen=True, slots=True)
class ContextIdle:
    """Nothing was said to a context, nor by it, for ``Dialect.context_timeout_s``. Told again and again."""

    context: str


@dataclass(frozen=True, slots=True)
class AllContextsEnded:
    """After ``FinishContexts``: every context has ended."""


DialectEvent = (
    ContextOpened
    | ContextAudio
    | ContextWords
    | ContextFlushed
    | ContextEnded
    | HeardReported
    | ContextIdle
    | AllContextsEnded
)


class Dialect(ABC):
    """One connection of a vendor's wire. No timer, no queue, no task.

    What the methods give is carried out in order; they may be generators. ``receive`` raises ``RemoteProtocolError``
    for a message that breaks the wire; ``fail`` then tells the client. The constructor raises it for a handshake that
    cannot be served.
    """

    context_timeout_s: float | None = None
    # A message that breaks the wire is answered by ``fail`` and costs no connection.
    forgiving = False
    # Whether the client learns what was heard of a context; otherwise it need not be found.
    reports_heard_text = False
    # HTTP: of the body; read with its first piece.
    media_type = "application/octet-stream"

    # What the handshake tells of it: refused there if it cannot be served, warned of in the answer's headers.
    options: SpeechOptions | None = None

    def __init__(self, handshake: ClientHandshake) -> None:
        self.handshake = handshake

    def headers(self) -> dict[str, str]:
        """Of the answer to the handshake or request."""
        return {}

    def start(self) -> Iterable[DialectCommand]:
        """The handshake has succeeded."""
        return ()

    @abstractmethod
    def receive_message(self, message: Message) -> Iterable[DialectCommand]:
        """A message of the client; on HTTP the body, once."""

    @abstractmethod
    def send_event(self, event: DialectEvent) -> Iterable[DialectCommand]:
        """What became of a context."""

    @abstractmethod
    def send_error(self, error: ErrorInfo, close: int | None) -> Iterable[DialectCommand]:
        """The connection fails, or a message did: tell the client. With ``close`` the connection ends with that code
        afterwards, whatever is given here."""

    @classmethod
    def reject_handshake(cls, error: ErrorInfo, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        """Body and headers of an HTTP answer with this ``status``, in the vendor's shape."""
        return {"error": {"message": error.message, "code": error.code}}, {}
