"""What the text of a response becomes, in the order in which it is spoken: segments, flushes, breaks and marks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessions.text.dead_air import TextStats
from sessions.text.ssml.items import BreakItem, MarkItem
from sessions.text.ssml.style import PLAIN_STYLE, SpeechStyle

if TYPE_CHECKING:
    from engine.api import SpeechStream
    from sessions.checkpoint import SpokenSegment
    from sessions.text.spans import SpannedText
    from sessions.timeline import SegmentTimeline


@dataclass(slots=True, eq=False)
class TextSegment:
    """A piece of text spoken as one utterance; one request of the engine once it has begun."""

    index: int
    spoken: SegmentTimeline
    style: SpeechStyle = PLAIN_STYLE
    # Opened after an early close: waits until it is worth beginning.
    is_gathering: bool = False
    text: str = ""
    closed: bool = False
    stream: SpeechStream | None = None
    # Number of its request, and what was known of its speech when that was submitted.
    number: int = 0
    known: SpokenSegment | None = None
    # Of the known codes, those that were not made again yet.
    num_bytes_to_replay: int = 0
    # Its request has spoken, or is about to speak, all the text it was given.
    is_parked: bool = False
    has_audio: bool = False
    # The listener's position that the engine was given last, and when.
    reported_samples: int = 0
    reported_s: float = -math.inf

    @property
    def speakable(self) -> bool:
        return any(character.isalnum() for character in self.text)

    @property
    def can_starve(self) -> bool:
        """True if the segment may be waiting for text: some models need several words before the first audio."""
        return self.is_parked or not (self.closed or self.has_audio)

    @property
    def stats(self) -> TextStats:
        return TextStats.from_text(self.text)

    def add(self, text: SpannedText) -> None:
        self.text += text.text
        self.spoken.add_text(text)
        self.is_parked = False
        if self.stream is not None:
            self.stream.push_text(text.text)

    def report_playback(self, played_samples: int, now_s: float, rate: int, tolerance_samples: float) -> None:
        """Give the engine the listener's position, unless the engine's own clock is within ``tolerance_samples`` of it.

        That clock runs on at ``rate`` from the last report. A position before this segment is negative."""
        if self.stream is None or self.spoken.start_sample is None:
            return
        expected_samples = self.reported_samples + (now_s - self.reported_s) * rate
        if abs(played_samples - expected_samples) >= tolerance_samples:
            self.reported_samples, self.reported_s = played_samples, now_s
            self.stream.report_playback(self.spoken.speech_offset(played_samples - self.spoken.start_sample))

    def close(self) -> None:
        self.closed = True
        self.is_parked = False
        self.spoken.end_text()
        if self.stream is not None:
            self.stream.end_input()


@dataclass(frozen=True, slots=True)
class FlushItem:
    """A flush: the text before it is spoken without waiting for more."""

    flush: int


TextItem = TextSegment | FlushItem | BreakItem | MarkItem
