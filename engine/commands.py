"""What the asyncio side tells the loop: plain structs, fit for a queue or a pipe. No torch."""

from __future__ import annotations

import msgspec

from engine.api import SpeechRequest


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


Command = Submit | PushText | EndInput | ReportPlayback | Cancel | Prefetch
