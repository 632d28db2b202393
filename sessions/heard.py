"""What was heard of a response: share of each segment's audio played x its spoken characters, cut at a word."""

from __future__ import annotations

from dataclasses import dataclass, field

from sessions.events import Heard
from sessions.text.spans import Span, SpannedText

TYPICAL_S_PER_CHAR = 0.07
"""English read aloud at about 14 characters a second: the first guess, until a voice has spoken."""
MEMORY_CHARS = 5_000
"""A voice's pace is the mean over about so many characters."""


class SpeakingPace:
    """How long each voice takes for a character, learned from what it has spoken."""

    def __init__(self) -> None:
        self._known: dict[str | None, tuple[float, float]] = {}
        """Voice -> (seconds, characters)."""

    def note(self, voice: str | None, duration_s: float, num_chars: int) -> None:
        known_s, known_chars = self._known.get(voice, (0.0, 0.0))
        keep = min(1.0, MEMORY_CHARS / (known_chars + 1))
        self._known[voice] = (known_s * keep + duration_s, known_chars * keep + num_chars)

    def s_per_char(self, voice: str | None) -> float:
        duration_s, num_chars = self._known.get(voice, (0.0, 0.0))
        return duration_s / num_chars if num_chars and duration_s else TYPICAL_S_PER_CHAR


@dataclass(slots=True)
class SpokenSegment:
    """One utterance: which of the client's characters it speaks, and how much audio there is of it so far."""

    raw_start: int
    spans: list[Span] = field(default_factory=list)
    num_chars: int = 0
    start_sample: int | None = None
    """Where it begins in all the audio; ``None`` until it does."""
    num_samples: int = 0
    complete: bool = False

    @property
    def raw_end(self) -> int:
        return self.spans[-1].raw_end if self.spans else self.raw_start

    def add_text(self, text: SpannedText) -> None:
        self.spans.extend(text.spans)
        self.num_chars += len(text.text)

    def raw_position(self, spoken_chars: float) -> float:
        """Where in the client's text so many spoken characters reach; even within a span."""
        position: float = self.raw_start
        for span in self.spans:
            if spoken_chars < span.num_chars:
                return span.raw_start + (span.raw_end - span.raw_start) * spoken_chars / span.num_chars
            spoken_chars -= span.num_chars
            position = span.raw_end
        return position


class SpokenText:
    """Keeps the client's text beside the audio made of it. Samples are at ``sample_rate``."""

    def __init__(self, sample_rate: int, s_per_char: float = TYPICAL_S_PER_CHAR) -> None:
        self._sample_rate = sample_rate
        self._s_per_char = s_per_char
        """Of the voice: tells how long a segment will be that is not finished."""
        self._raw: list[str] = []
        self.segments: list[SpokenSegment] = []

    def write(self, raw: str) -> None:
        """The client's text grows."""
        self._raw.append(raw)

    def begin_segment(self, raw_start: int) -> SpokenSegment:
        segment = SpokenSegment(raw_start)
        self.segments.append(segment)
        return segment

    def heard(self, played_samples: int) -> Heard:
        raw = "".join(self._raw)
        self._raw = [raw]
        cut = word_cut(raw, self._position(played_samples))
        return Heard(raw[:cut], raw[cut:], 1000 * played_samples / self._sample_rate)

    def all_heard(self, audio_ms: float) -> Heard:
        """Everything was played to its end."""
        return Heard("".join(self._raw), "", audio_ms)

    def _position(self, played_samples: int) -> float:
        for segment in reversed(self.segments):
            if segment.start_sample is None or played_samples <= segment.start_sample:
                continue
            share = (played_samples - segment.start_sample) / self._expected_samples(segment)
            return segment.raw_position(min(share, 1.0) * segment.num_chars)
        return 0.0

    def _expected_samples(self, segment: SpokenSegment) -> float:
        expected = 0.0 if segment.complete else segment.num_chars * self._s_per_char * self._sample_rate
        return max(segment.num_samples, expected, 1.0)


def word_cut(text: str, position: float) -> int:
    """The end of the last word that ends at or before ``position``; 0 if there is none."""
    head = text[: int(position)]
    in_word = head[-1:].strip() and text[len(head) : len(head) + 1].strip()
    if in_word:
        head = head[: len(head) - len(head.rsplit(None, 1)[-1])]
    return len(head.rstrip())
