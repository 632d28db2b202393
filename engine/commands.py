"""What the asyncio side tells the loop, and how its answers are tagged: plain structs, fit for a queue or a pipe."""

from __future__ import annotations

import msgspec

from engine.api import ClonedVoice, SpeechEvent, SpeechRequest, VoiceSample


class Submit(msgspec.Struct, frozen=True, tag=True):
    epoch: int
    request: SpeechRequest


class PushText(msgspec.Struct, frozen=True, tag=True):
    epoch: int
    text: str


class EndInput(msgspec.Struct, frozen=True, tag=True):
    epoch: int


class ReportPlayback(msgspec.Struct, frozen=True, tag=True):
    epoch: int
    played_samples: int


class Cancel(msgspec.Struct, frozen=True, tag=True):
    epoch: int


class Prefetch(msgspec.Struct, frozen=True, tag=True):
    voice: str


class EncodeVoice(msgspec.Struct, frozen=True, tag=True):
    """Answered by an ``Encoded`` of the same number."""

    number: int
    sample: VoiceSample


class DismissSample(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits any more for the voice of the ``EncodeVoice`` of that number."""

    number: int


class Encoded(msgspec.Struct, frozen=True, tag=True):
    """The voice, or why there is none."""

    number: int
    voice: ClonedVoice | None = None
    code: str = ""
    message: str = ""
    param: str | None = None
    retry_after_ms: int = 0


Command = Submit | PushText | EndInput | ReportPlayback | Cancel | Prefetch | EncodeVoice | DismissSample


class Released(msgspec.Struct, frozen=True):
    """Every resource of the request is free again; follows ``Finished``."""

    request_id: str


Emitted = tuple[int, SpeechEvent | Released]
"""(epoch, event)."""
