"""Events of a response: audio, word times, completed flushes, and exactly one terminal event."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct

from engine.api import ErrorInfo
from sessions.alignment.word_times import WordTime


class ResponseStatus(StrEnum):
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


class ResponseAudio(Struct, frozen=True):
    """Packets that leave together. Messages of a response abut: no gap and no overlap in samples."""

    response_id: str
    # 0, 1, 2 ... over the audio messages of the response.
    sequence: int
    # Position of the first sample, in samples at the format's rate, counted as a decoder puts them out: the first
    # ``Response.pre_skip_samples`` of an Opus response come before the speech.
    start_sample: int
    num_samples: int
    # Opus: one packet each of 20 ms. Encodings without a container: one run of bytes, a whole number of samples. All
    # others: pieces of one stream; where the format holds sound back, it is counted with the piece that it comes out
    # in, and the end of the stream may be a piece of 0 samples.
    packets: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class FlushCompleted:
    """Event after the last audio of the text up to this flush, in order with the audio."""

    response_id: str
    # 0, 1, 2 ... over the flushes of the response: what ``Response.flush`` returned.
    flush: int
    # End of that audio, counted as in ``ResponseAudio.start_sample``.
    end_sample: int


@dataclass(frozen=True, slots=True)
class ResponseWordTimes:
    """The next words of the text and their times, each word once, if ``SpeechSettings.word_times`` is set.

    The events keep the order of the words. Each follows the audio of its words, and precedes the ``FlushCompleted``
    or the completed end to which the words belong.
    """

    response_id: str
    words: tuple[WordTime, ...]


@dataclass(frozen=True, slots=True)
class CheckpointAdded:
    """What a client keeps, so that another gateway can go on with the response: ahead of the audio that it decides."""

    response_id: str
    # 0, 1, 2 ... over the checkpoints of the response.
    index: int
    # Of ``Checkpoint.encode``.
    data: str


@dataclass(frozen=True, slots=True)
class MarkReached:
    """Event of a mark in marked-up text, in order with the audio."""

    response_id: str
    name: str
    # Position of the mark, counted as in ``ResponseAudio.start_sample``.
    sample: int
    # From the first sample of speech.
    time_ms: float


@dataclass(frozen=True, slots=True)
class MarkupWarned:
    """Markup that is broken, unknown or without effect; each kind once a response. Holds no text of the client but
    the name of a tag."""

    response_id: str
    code: str
    element: str
    # Position in the client's text, in characters.
    raw_start: int


@dataclass(frozen=True, slots=True)
class HeardText:
    """Heard text in the client's own characters; docs/design/alignment.md states its accuracy."""

    # The client's text from its first character to the end of the last word heard.
    text: str
    # The rest of the text.
    remaining: str
    # Audio played.
    audio_ms: float


@dataclass(frozen=True, slots=True)
class ResponseFinished:
    """The terminal event: exactly one a response, and nothing of that response after it."""

    response_id: str
    status: ResponseStatus
    # Samples of speech handed over, at the format's rate, ``Response.pre_skip_samples`` not counted.
    audio_samples: int
    audio_ms: float
    heard: HeardText
    # The text held nothing that can be spoken: it was empty, white space, or signs alone.
    nothing_spoken: bool = False
    # Time from the delta that completed the first word to the first packet.
    first_audio_ms: float | None = None
    # Text tokens given to the engine.
    num_text_tokens: int = 0
    # Codec frames that the engine generated.
    num_frames: int = 0
    # Set if the reason is ``FAILED``.
    error: ErrorInfo | None = None
    # A segment was cut by a guard of the engine: endless silence, a loop, or the frame cap of its text.
    has_runaway: bool = False


ResponseEvent = (
    ResponseAudio | ResponseWordTimes | CheckpointAdded | FlushCompleted | MarkReached | MarkupWarned | ResponseFinished
)
