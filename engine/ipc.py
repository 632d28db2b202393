"""Commands and events as bytes between an engine in its own process and the processes in front of it. No torch.

A message is a 4-byte big-endian length and MessagePack; the PCM of its events follows as it is, so that it is never
copied on the engine's thread. The engine begins with its protocol version; a gateway of another version closes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from engine.api import (
    ClonedVoice,
    EngineInfo,
    EngineStats,
    ReferenceAudio,
    RequestFinished,
    RequestParked,
    RequestTimings,
    SpeechChunk,
    SpeechEvent,
    SpeechRequest,
)
from engine.errors import ErrorInfo
from engine.runtime.request import Emitted, RequestReleased
from engine.tls_socket import Buffer

LENGTH = struct.Struct(">I")
# What the engine's process prints once it listens; anything else in its place is why it cannot.
READY = "ready"
# Begins the lines before that.
PROGRESS = "progress: "
MAX_MESSAGE_BYTES = 64 * 2**20
# Raised by each change of a message that the other end would misread.
PROTOCOL_VERSION = 2
# Interval of ``StatsMessage``, by which a gateway also knows that the engine's machine is there.
STATS_EVERY_S = 0.2


class SubmitRequest(msgspec.Struct, frozen=True, tag=True):
    epoch: int
    request: SpeechRequest


class PushRequestText(msgspec.Struct, frozen=True, tag=True):
    epoch: int
    text: str


class EndRequestInput(msgspec.Struct, frozen=True, tag=True):
    epoch: int


class ReportRequestPlayback(msgspec.Struct, frozen=True, tag=True):
    epoch: int
    played_samples: int


class CancelRequest(msgspec.Struct, frozen=True, tag=True):
    epoch: int


class PrefetchVoice(msgspec.Struct, frozen=True, tag=True):
    voice: str


class EncodeVoice(msgspec.Struct, frozen=True, tag=True):
    """Answered by an ``VoiceEncoded`` of the same number."""

    number: int
    sample: ReferenceAudio


class CancelEncodeVoice(msgspec.Struct, frozen=True, tag=True):
    """Cancel the ``EncodeVoice`` of that number."""

    number: int


class VoiceEncoded(msgspec.Struct, frozen=True, tag=True):
    """The voice, or why there is none."""

    number: int
    voice: ClonedVoice | None = None
    error: ErrorInfo | None = None


RequestCommand = SubmitRequest | PushRequestText | EndRequestInput | ReportRequestPlayback | CancelRequest
Command = RequestCommand | PrefetchVoice | EncodeVoice | CancelEncodeVoice


class HelloMessage(msgspec.Struct, frozen=True, tag=True):
    """The first message of the engine on every connection."""

    info: EngineInfo
    version: int = PROTOCOL_VERSION
    # Of the weights; engines with the same speak alike.
    fingerprint: str = ""
    # By name: those that decide what a request may be and how it sounds.
    options: dict[str, Any] = {}


class StatsMessage(msgspec.Struct, frozen=True, tag=True):
    stats: EngineStats


class EventsMessage(msgspec.Struct, frozen=True, tag=True):
    """Each event as (epoch, kind, fields...), PCM as its number of samples; float32 of all of them follows."""

    events: list[tuple[Any, ...]]
    num_pcm_bytes: int = 0


class DrainMessage(msgspec.Struct, frozen=True, tag=True):
    """The engine is about to end: it takes what is sent, and wants its requests to move to another."""


Message = HelloMessage | StatsMessage | EventsMessage | VoiceEncoded | DrainMessage
_encoder = msgspec.msgpack.Encoder()
_command_decoder = msgspec.msgpack.Decoder(Command)
_message_decoder = msgspec.msgpack.Decoder(Message)


class IpcError(ValueError):
    """What came from the other side cannot be right. Its message quotes no text of users."""


def frame_message(payload: bytes) -> bytes:
    return LENGTH.pack(len(payload)) + payload


def encode(message: Command | Message) -> bytes:
    return frame_message(_encoder.encode(message))


def message_size(header: bytes | bytearray, at: int = 0) -> int:
    """Read the length of the message that begins there. Raises ``IpcError`` above ``MAX_MESSAGE_BYTES``."""
    size: int = LENGTH.unpack_from(header, at)[0]
    if size > MAX_MESSAGE_BYTES:
        raise IpcError(f"a message has {size} bytes; the limit is {MAX_MESSAGE_BYTES}")
    return size


def decode_command(payload: bytes) -> Command:
    """Decode a message. Raises ``msgspec.DecodeError`` or ``IpcError``."""
    try:
        return _command_decoder.decode(payload)
    except UnicodeDecodeError:
        raise IpcError("a message has text that is not UTF-8") from None


def decode_message(payload: bytes) -> Message:
    return _message_decoder.decode(payload)


def pack_event(epoch: int, event: SpeechEvent | RequestReleased) -> tuple[Any, ...]:
    match event:
        case SpeechChunk(request_id, start, pcm, last, codes, timings):
            return (epoch, "chunk", request_id, start, len(pcm), last, codes, timings)
        case RequestParked(request_id, lead_ms):
            return (epoch, "starved", request_id, lead_ms)
        case RequestFinished():
            return (epoch, "finished", event)
        case RequestReleased(request_id):
            return (epoch, "released", request_id)


def pack_events(events: Iterable[Emitted]) -> list[Buffer]:
    """One message, in pieces: what there is to tell, then the PCM of each chunk where it lies."""
    packed, pcm = [], []
    for epoch, event in events:
        packed.append(pack_event(epoch, event))
        if isinstance(event, SpeechChunk) and len(event.pcm):
            pcm.append(np.ascontiguousarray(event.pcm, np.float32).data.cast("B"))
    return [encode(EventsMessage(packed, sum(map(len, pcm)))), *pcm]


def unpack_events(message: EventsMessage, pcm: bytes) -> Iterator[Emitted]:
    """Chunks are copies of their own: a slow reader of one must not keep all that came with it."""
    samples, end = np.frombuffer(pcm, np.float32), 0
    for epoch, kind, *fields in message.events:
        if kind == "chunk":
            request_id, start, count, last, codes, times = fields
            end += count
            timings = None if times is None else RequestTimings(*times)
            yield epoch, SpeechChunk(request_id, start, samples[end - count : end].copy(), last, codes, timings)
        else:
            yield unpack_event(epoch, kind, fields)


def unpack_event(epoch: int, kind: str, fields: Sequence[Any]) -> Emitted:
    match kind:
        case "starved":
            return epoch, RequestParked(*fields)
        case "finished":
            return epoch, msgspec.convert(fields[0], RequestFinished)
        case "released":
            return epoch, RequestReleased(*fields)
    raise IpcError(f"unknown event kind {kind!r}")
