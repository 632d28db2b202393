"""The events of ``voicewire.v1``: a class each, and a union for each direction.

Ranges of settings are checked where they are used, so that an invalid one fails its response and not the connection.
Client events refuse unknown fields. Server events tolerate them, so that a server may add fields which older clients do
not know.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from engine.api import ErrorInfo, SamplingFields

MAX_ID_CHARS = 64
MAX_RESUMED_RESPONSES = 64

Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID_CHARS, pattern=r"\A[A-Za-z0-9_.:-]+\Z")]
Pace = Literal["lead", "burst"]
Layout = Literal["auto", "streaming", "full"]
MarkupKind = Literal["none", "ssml"]
Status = Literal["completed", "cancelled", "failed"]


class NativeAudioFormat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Audio format of a request; missing fields take the server's default. Only ``opus`` reads the last five."""

    # ``opus``, ``pcm_s16le``, ``mulaw`` or ``alaw``.
    encoding: str | None = None
    sample_rate: int | None = None
    # Bits a second.
    bitrate: int | None = None
    complexity: int | None = None
    fec: bool | None = None
    packet_loss_percent: int | None = None
    dtx: bool | None = None


class NativeSamplingOptions(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Sampling options; missing ones take the voice's default. The engine checks the ranges."""


class NativeSpeechSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Speech settings. In ``session.update`` for all responses to come, in ``response.create`` for that one."""

    voice: str | None = None
    language: str | None = None
    instruct: str | None = None
    seed: int | None = None
    format: NativeAudioFormat | None = None
    pace: Pace | None = None
    lead_ms: int | None = None
    # True to receive ``response.words``.
    word_times: bool | None = None
    checkpoints: bool | None = None
    speed: float | None = None
    # ``ssml``: tags in the text control speech.
    markup: MarkupKind | None = None
    # Voices by the labels of speakers: lines that begin with a label and a colon are spoken by its voice.
    speakers: dict[str, str] | None = None
    # Names of stored lexicons.
    lexicons: tuple[str, ...] | None = None
    text_layout: Layout | None = None
    max_frames: int | None = None
    chunk_frames: tuple[int, ...] | None = None
    sampling: NativeSamplingOptions | None = None


class ClientEventBase(
    Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True, omit_defaults=True
):
    """Base of the client's events."""


class SessionUpdate(ClientEventBase, tag="session.update", frozen=True):
    settings: NativeSpeechSettings


class SessionClose(ClientEventBase, tag="session.close", frozen=True):
    """Speak what is there, then close."""


class ResumePosition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a client has of a response."""

    response_id: Id
    # End of the last audio message, counted as ``sample_time``.
    received_samples: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    # Playback position; by default all that was received.
    played_ms: float | None = None


class SessionResume(ClientEventBase, tag="session.resume", frozen=True):
    """Go on with a session whose connection was lost. The first event of a connection."""

    session_id: str
    token: str
    # Responses to go on with; the others are cancelled.
    responses: Annotated[tuple[ResumePosition, ...], Meta(max_length=MAX_RESUMED_RESPONSES)] = ()


class Resync(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a client has of a response whose session is lost."""

    # The data of all ``response.checkpoint``, in order.
    checkpoints: tuple[str, ...] = ()
    # As in ``ResumePosition``.
    received_samples: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    played_ms: float | None = None
    # Numbers of ``text.flushed``, and of words in ``response.words``.
    received_flushes: Annotated[int, Meta(ge=0)] = 0
    received_words: Annotated[int, Meta(ge=0)] = 0


class ResponseCreate(ClientEventBase, tag="response.create", frozen=True):
    # Id chosen by the client, so that text may follow at once; by default the server generates one.
    response_id: Id | None = None
    settings: NativeSpeechSettings = NativeSpeechSettings()
    text: str = ""
    # True if ``text`` is the whole text; the engine then has all of it before it speaks.
    end: bool = False
    # Goes on with a response of a lost session, with the settings of its ``response.created`` and all of its text.
    resync: Resync | None = None


class TextAppend(ClientEventBase, tag="text.append", frozen=True):
    response_id: Id
    text: str
    # Position of the text in the response, in characters (code points); what was received before is skipped.
    at: Annotated[int, Meta(ge=0)] | None = None


class TextFlush(ClientEventBase, tag="text.flush", frozen=True):
    response_id: Id


class TextEnd(ClientEventBase, tag="text.end", frozen=True):
    response_id: Id


class ResponseCancel(ClientEventBase, tag="response.cancel", frozen=True):
    response_id: Id
    # Playback position of this response.
    played_ms: float | None = None


class PlaybackReport(ClientEventBase, tag="playback.report", frozen=True):
    response_id: Id
    played_ms: float


class ServerEventBase(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of the server's events."""


class SessionLimitsInfo(Struct, frozen=True, kw_only=True):
    """Limits of one session."""

    max_message_bytes: int
    max_response_chars: int
    max_active_responses: int
    idle_timeout_s: float
    max_session_s: float


class ResponseAudioFormat(Struct, frozen=True, kw_only=True):
    """Audio format of one response."""

    encoding: str
    # Rate of the PCM or of the Opus decoder's output; also the unit of ``sample_time`` and ``audio_samples``.
    sample_rate: int
    # Samples of decoded Opus that come before the speech: to be thrown away.
    pre_skip_samples: int = 0


class SessionCreated(ServerEventBase, tag="session.created", frozen=True):
    session_id: str
    resume_token: str
    protocol: str
    server_version: str
    model: str
    voices: tuple[str, ...]
    languages: tuple[str, ...]
    settings: NativeSpeechSettings
    limits: SessionLimitsInfo
    # Seconds for which the session outlives a lost connection, and of sent audio that a resume can repeat at most.
    resume_grace_s: float = 0.0
    resume_window_s: float = 0.0
    # What the speech is, in a term of IPTC, and whether it has a watermark.
    digital_source_type: str = ""
    watermark: bool = False


class ResumedResponse(Struct, frozen=True, kw_only=True):
    """Where a response goes on."""

    response_id: str
    # ``open``, ``ended``, ``cancelling``, or ``unknown``: never received, or forgotten.
    state: str
    response: int | None = None
    format: ResponseAudioFormat | None = None
    # As in ``response.created``, which the client may lack.
    settings: NativeSpeechSettings | None = None
    # Text and flushes received; later ones are lost.
    received_chars: int = 0
    received_flushes: int = 0
    # ``sample_time`` of the next audio message.
    next_sample: int = 0
    # Decoded samples from there on that the client has.
    discard_samples: int = 0


class SessionResumed(ServerEventBase, tag="session.resumed", frozen=True):
    session_id: str
    # For the next resume.
    token: str
    grace_s: float
    # All settings of the next response.
    settings: NativeSpeechSettings
    responses: tuple[ResumedResponse, ...]


class SessionUpdated(ServerEventBase, tag="session.updated", frozen=True):
    # All settings of the next response.
    settings: NativeSpeechSettings


class ResponseCreated(ServerEventBase, tag="response.created", frozen=True, omit_defaults=True):
    response_id: str
    # The number that stands for this response in audio messages.
    response: int
    format: ResponseAudioFormat
    # All settings of this response.
    settings: NativeSpeechSettings
    # After a resync, as in ``ResumedResponse``.
    next_sample: int = 0
    discard_samples: int = 0


class ResponseCheckpoint(ServerEventBase, tag="response.checkpoint", frozen=True):
    """With the setting ``checkpoints``: what ``Resync`` needs to make the audio that follows again."""

    response_id: str
    # 0, 1, 2 ... over the checkpoints of the response.
    index: int
    # Opaque.
    data: str


class TextFlushed(ServerEventBase, tag="text.flushed", frozen=True):
    """Sent after all audio of the text up to a flush."""

    response_id: str
    # 0, 1, 2 ... over the flushes of the response.
    flush: int
    # End of that audio, counted as ``sample_time``.
    end_sample: int


class WordTiming(Struct, frozen=True, kw_only=True):
    """A word of the client's text, with its marks; times count from the first sample of speech."""

    text: str
    # Span in the text of the response, in characters.
    raw_start: int
    raw_end: int
    start_ms: float
    end_ms: float
    # The utterance it belongs to; the number rises from one to the next.
    segment: int = 0
    # Label of the speaker, or name of the voice that markup names; absent where the voice of the response speaks.
    speaker: str | UnsetType = UNSET


class ResponseWords(ServerEventBase, tag="response.words", frozen=True):
    """The next words and when they are spoken, after the audio they were found in."""

    response_id: str
    words: tuple[WordTiming, ...]


class ResponseMark(ServerEventBase, tag="response.mark", frozen=True):
    """A mark of the text, near its audio."""

    response_id: str
    name: str
    # Position of the mark, counted as ``sample_time``.
    sample: int
    # From the first sample of speech.
    time_ms: float


class ResponseWarning(ServerEventBase, tag="response.warning", frozen=True):
    """Markup that is broken, unknown or without effect; each kind once a response."""

    response_id: str
    code: str
    # Name of the tag; empty where there is none.
    element: str
    # Position in the text of the response, in characters.
    raw_start: int


class HeardBody(Struct, frozen=True, kw_only=True):
    """Text that the listener heard, in the client's own characters."""

    # Text from the first character to the end of the last word heard.
    text: str
    remaining: str
    played_ms: float


class ResponseDone(ServerEventBase, tag="response.done", frozen=True):
    """The one terminal event of a response."""

    response_id: str
    response: int
    status: Status
    # Samples of speech sent, at the format's rate, ``pre_skip_samples`` not counted.
    audio_samples: int
    audio_ms: float
    # The text was empty, or held nothing that can be spoken.
    nothing_spoken: bool = False
    # Time from the delta that completed the first word to the first packet, by the server's clock.
    first_audio_ms: float | None = None
    # Set if the status is ``cancelled`` or ``failed``.
    heard: HeardBody | None = None
    # Set if the status is ``failed``.
    error: ErrorInfo | None = None


class ResponseHeard(ServerEventBase, tag="response.heard", frozen=True):
    """The answer to a cancel after ``response.done``: audio that was sent and not yet played is cut."""

    response_id: str
    heard: HeardBody


class ErrorEvent(ServerEventBase, tag="error", frozen=True):
    code: str
    message: str
    param: str | None = None
    retryable: bool = False
    retry_after_ms: int | None = None
    response_id: str | None = None

    @classmethod
    def from_info(cls, info: ErrorInfo, response_id: str | None = None) -> ErrorEvent:
        return cls(**asdict(info), response_id=response_id)


class AudioKind(IntEnum):
    """Encoding of the packets of an audio message."""

    OPUS = 1
    PCM_S16LE = 2
    MULAW = 3
    ALAW = 4


class AudioMessage(Struct, frozen=True):
    """A run of packets of one response, in order."""

    kind: AudioKind
    response: int
    # 0, 1, 2 ... over the audio messages of the response.
    sequence: int
    # Position of the first sample in the response, as a decoder puts samples out (``pre_skip_samples`` included).
    sample_time: int
    # Opus: one packet of 20 ms each. Other encodings: runs of whole samples.
    packets: tuple[bytes, ...]


ClientEvent = (
    SessionUpdate
    | SessionResume
    | SessionClose
    | ResponseCreate
    | TextAppend
    | TextFlush
    | TextEnd
    | ResponseCancel
    | PlaybackReport
)
ServerEvent = (
    SessionCreated
    | SessionUpdated
    | SessionResumed
    | ResponseCreated
    | ResponseCheckpoint
    | ResponseWords
    | ResponseMark
    | ResponseWarning
    | TextFlushed
    | ResponseDone
    | ResponseHeard
    | ErrorEvent
)
