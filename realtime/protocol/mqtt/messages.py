"""Messages on a broker: JSON tagged by ``t`` within a session, and audio.

The payload of audio is sound alone; what it is stands in user properties. Between a dialect and its connection both
travel as one message, the head before the sound.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Annotated, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError
from realtime.protocol.events import Id, NativeSamplingOptions
from realtime.protocol.model import RequestedFormat, SpeechOptions
from realtime.protocol.native import decode_json, field_at_fault

VERSION = 1
MAX_PLAYED_MS = 1e12
MAX_INSTRUCT_CHARS = 2_000
MAX_NAME_CHARS = 128
MAX_POSITIONS = 64
NATURAL_RATES = {"opus": 24_000, "pcm_s16le": 24_000, "mulaw": 8_000, "alaw": 8_000}
CONTENT_TYPES = {"opus": "audio/opus", "pcm_s16le": "audio/pcm", "mulaw": "audio/basic", "alaw": "audio/x-alaw-basic"}
JSON = "application/json"
# Number of the reply and of the message, time, whether it is the last.
HEAD = struct.Struct(">IId?")

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]
Milliseconds = Annotated[float, Meta(ge=0, le=MAX_PLAYED_MS)]
Number = Annotated[int, Meta(ge=0, le=2**53)]


class MqttFormat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    encoding: Literal["opus", "pcm_s16le", "mulaw", "alaw"] = "opus"
    sample_rate: int | None = None
    # Packet duration of Opus.
    packet_ms: Literal[20, 40, 60] = 60
    bitrate: int | None = None

    @property
    def rate(self) -> int:
        return self.sample_rate or NATURAL_RATES[self.encoding]


class MqttSpeechOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Speech settings; missing ones are the server's defaults."""

    v: int = VERSION
    voice: Name | None = None
    language: Name | None = None
    instruct: Annotated[str, Meta(max_length=MAX_INSTRUCT_CHARS)] = ""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    sampling: NativeSamplingOptions | None = None
    speed: Annotated[float, Meta(gt=0, le=100)] = 1.0
    # 0: as fast as it is made.
    lead_ms: Annotated[int, Meta(ge=0, le=3_600_000)] | None = None
    word_times: bool = False
    format: MqttFormat = MqttFormat()

    def to_options(self, default_lead_ms: int) -> SpeechOptions:
        audio = self.format
        lead_ms = default_lead_ms if self.lead_ms is None else self.lead_ms
        return SpeechOptions(
            voice=self.voice,
            language=self.language,
            format=RequestedFormat(audio.encoding, audio.rate, audio.bitrate, audio.packet_ms),
            seed=self.seed,
            sampling=self.sampling,
            speed=self.speed,
            instruct=self.instruct,
            word_times=self.word_times,
            burst=lead_ms == 0,
            lead_ms=lead_ms,
        )


class MqttOpen(MqttSpeechOptions, frozen=True):
    # Session id chosen by the client, new each time; by default the server generates one.
    sid: Id | None = None
    # Keep the session for a while when the client is gone.
    resume: bool = False


class MqttSay(MqttSpeechOptions, frozen=True):
    """A single text, sent as fast as it is generated unless ``lead_ms`` is given."""

    text: str


class MqttInbound(Struct, frozen=True, kw_only=True, tag_field="t", forbid_unknown_fields=True, omit_defaults=True):
    # 0, 1, 2 ... over the messages of a session that carry one: doubled ones are passed over, lost ones noticed.
    seq: Number | None = None


class MqttText(MqttInbound, frozen=True, tag="text"):
    d: str


class MqttFlush(MqttInbound, frozen=True, tag="flush"):
    """Speak all text so far to its end without waiting for more."""


class MqttEnd(MqttInbound, frozen=True, tag="end"):
    """The reply has all its text; what comes next begins another."""


class MqttCancel(MqttInbound, frozen=True, tag="cancel"):
    """Stop, and forget what waits. After the end: what was heard?"""

    played_ms: Milliseconds | None = None


class MqttClose(MqttInbound, frozen=True, tag="close"):
    """Speak what is there, then end the session."""


class MqttLeave(MqttInbound, frozen=True, tag="leave"):
    """End the session now. Fit for a will."""


class MqttPing(MqttInbound, frozen=True, tag="ping"):
    d: Annotated[str, Meta(max_length=256)] = ""


class MqttLost(MqttInbound, frozen=True, tag="lost"):
    """The client is gone and may come back. Fit for a will."""


class MqttReplyPosition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reply: Number
    # Audio messages of the reply that were received, in order and without a gap.
    received: Number = 0
    # By default all that was received.
    played_ms: Milliseconds | None = None


class MqttResume(MqttInbound, frozen=True, tag="resume"):
    """Go on from there; replies that are not named, from their beginning."""

    replies: Annotated[tuple[MqttReplyPosition, ...], Meta(max_length=MAX_POSITIONS)] = ()


ClientMessage = MqttText | MqttFlush | MqttEnd | MqttCancel | MqttClose | MqttLeave | MqttPing | MqttLost | MqttResume


class MqttOutbound(Struct, frozen=True, kw_only=True, tag_field="t"):
    """Base of a session's events."""


class MqttStarted(MqttOutbound, frozen=True, tag="started"):
    reply: int
    # Requested options that were replaced by a default.
    warnings: tuple[str, ...] = ()


class MqttWordMark(Struct, frozen=True, kw_only=True):
    text: str
    start_ms: float
    end_ms: float
    # Position of the word in the text of the reply, in characters.
    at: int


class MqttWordMarks(MqttOutbound, frozen=True, tag="marks"):
    reply: int
    words: tuple[MqttWordMark, ...]


class MqttSegmentDone(MqttOutbound, frozen=True, tag="seg_done"):
    """Sent after all audio of the text up to a flush."""

    reply: int
    seg: int
    end_ms: float


class MqttDone(MqttOutbound, frozen=True, tag="done"):
    """The one last event of a reply."""

    reply: int
    status: Literal["completed", "cancelled", "failed"]
    audio_ms: float
    heard: str
    remaining: str
    played_ms: float
    error: ErrorInfo | None = None


class MqttHeard(MqttOutbound, frozen=True, tag="heard"):
    """The answer to a cancel after the end."""

    reply: int
    heard: str
    remaining: str
    played_ms: float


class MqttResumed(MqttOutbound, frozen=True, tag="resumed"):
    """The answer to ``resume``."""

    # The first number of a message that was not received.
    seq: int
    # Replies that go on.
    replies: tuple[int, ...]


class MqttPong(MqttOutbound, frozen=True, tag="pong"):
    d: str = ""


class MqttFailed(MqttOutbound, frozen=True, tag="error"):
    """A message was refused; the session goes on."""

    error: ErrorInfo


class MqttClosed(MqttOutbound, frozen=True, tag="closed"):
    """The one last event of a session."""

    reason: str


ServerMessage = (
    MqttStarted
    | MqttWordMarks
    | MqttSegmentDone
    | MqttDone
    | MqttHeard
    | MqttPong
    | MqttFailed
    | MqttResumed
    | MqttClosed
)


class MqttOpened(Struct, frozen=True, kw_only=True):
    """The answer to ``open``."""

    sid: str
    worker: str
    inbox: str = msgspec.field(name="in")
    audio: str
    ev: str
    # What the speech is, in a term of IPTC.
    digital_source_type: str = ""


class MqttRefusal(Struct, frozen=True, kw_only=True):
    """Or this one."""

    error: ErrorInfo


class MqttServerStatus(Struct, frozen=True, kw_only=True):
    state: Literal["online", "draining", "offline"]
    sessions: int = 0
    max_sessions: int = 0


_encoder = msgspec.json.Encoder()
_open: msgspec.json.Decoder[MqttOpen] = msgspec.json.Decoder(MqttOpen)
_say: msgspec.json.Decoder[MqttSay] = msgspec.json.Decoder(MqttSay)
_in: msgspec.json.Decoder[ClientMessage] = msgspec.json.Decoder(ClientMessage)
_out: msgspec.json.Decoder[ServerMessage] = msgspec.json.Decoder(ServerMessage)
_answer: msgspec.json.Decoder[object] = msgspec.json.Decoder()


def serialize(message: Struct) -> str:
    return _encoder.encode(message).decode()


def parse_open(payload: bytes) -> MqttOpen:
    """Parse a request for a session; raises ``RemoteProtocolError``."""
    return _checked(decode_json(_open.decode, payload, "t"))


def parse_say(payload: bytes) -> MqttSay:
    return _checked(decode_json(_say.decode, payload, "t"))


def parse_client_message(payload: str | bytes) -> ClientMessage:
    return decode_json(_in.decode, payload, "t")


def parse_server_message(payload: str | bytes) -> ServerMessage:
    return decode_json(_out.decode, payload, "t")


def parse_answer(payload: bytes) -> MqttOpened | MqttRefusal:
    """Parse the answer to ``open``."""
    found = decode_json(_answer.decode, payload, "t")
    try:
        if isinstance(found, dict) and "error" in found:
            return msgspec.convert(found, MqttRefusal)
        return msgspec.convert(found, MqttOpened)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError("invalid_event", str(error), field_at_fault(str(error))) from None


SpeechMessage = TypeVar("SpeechMessage", bound=MqttSpeechOptions)


def _checked(message: SpeechMessage) -> SpeechMessage:
    if message.v != VERSION:
        raise RemoteProtocolError("invalid_event", f"v must be {VERSION}, the version spoken here; is {message.v}", "v")
    return message


class AudioHeader(NamedTuple):
    # 0, 1, 2 ... over the replies of a session.
    reply: int
    # 0, 1, 2 ... over the audio messages of a reply.
    seq: int
    # Start of the audio in its reply.
    ts_ms: float
    # True for the last message of the reply.
    last: bool = False


class MqttAudioMessage(NamedTuple):
    head: AudioHeader
    data: bytes


def pack(part: MqttAudioMessage) -> bytes:
    return HEAD.pack(*part.head) + part.data


def unpack(message: bytes) -> MqttAudioMessage:
    return MqttAudioMessage(AudioHeader(*HEAD.unpack_from(message)), message[HEAD.size :])


def properties(head: AudioHeader) -> list[tuple[str, str]]:
    """User properties for a head."""
    named = [("reply", str(head.reply)), ("seq", str(head.seq)), ("ts", f"{head.ts_ms:.10g}")]
    return [*named, ("last", "1")] if head.last else named


def parse_header(found: Iterable[tuple[str, str]]) -> AudioHeader:
    """Parse the properties of an audio message; raises ``RemoteProtocolError``."""
    named = dict(found)
    try:
        return AudioHeader(int(named["reply"]), int(named["seq"]), float(named["ts"]), named.get("last") == "1")
    except (KeyError, ValueError) as error:
        raise RemoteProtocolError("malformed_audio", f"audio without its properties: {error}") from None
