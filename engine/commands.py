"""What the asyncio side tells the loop, and how its answers are tagged: plain structs, fit for a queue or a pipe."""

from __future__ import annotations

import msgspec

from engine.api import ClonedVoice, ReferenceAudio, SpeechEvent, SpeechRequest


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
    code: str = ""
    message: str = ""
    param: str | None = None
    retry_after_ms: int = 0


Command = (
    SubmitRequest
    | PushRequestText
    | EndRequestInput
    | ReportRequestPlayback
    | CancelRequest
    | PrefetchVoice
    | EncodeVoice
    | CancelEncodeVoice
)


class RequestReleased(msgspec.Struct, frozen=True):
    """Every resource of the request is free again; follows ``RequestFinished``."""

    request_id: str


# (epoch, event).
Emitted = tuple[int, SpeechEvent | RequestReleased]
