"""Words of a client's text with the times at which they are spoken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sessions.alignment.word_spans import WordSpan


@dataclass(frozen=True, slots=True)
class CharTime:
    character: str
    start_ms: float
    end_ms: float


@dataclass(frozen=True, slots=True)
class WordTime:
    """Times count from the first sample of the response's speech (an Opus decoder's pre-skip not counted)."""

    # The client's own characters, with the marks on them and without white space.
    text: str
    # Span in the client's text.
    raw_start: int
    raw_end: int
    # Normalized form of the word.
    spoken: str
    # The utterance it belongs to: 0, 1, 2 ... over the response.
    segment: int
    # Start of that utterance.
    segment_start_ms: float
    start_ms: float
    end_ms: float
    # One for each character of ``text``.
    char_ends_ms: tuple[float, ...]
    # One for each character of ``spoken``.
    spoken_ends_ms: tuple[float, ...]
    # ``SpeechStyle.speaker``
    speaker: str = ""

    def characters(self) -> list[CharTime]:
        return _timed(self.text, self.start_ms, self.char_ends_ms)


def to_word_time(
    word: WordSpan,
    bounds: Sequence[int],
    segment: int,
    start_sample: int,
    sample_rate: float,
    floor_ms: float,
    speaker: str = "",
) -> WordTime:
    """``bounds`` count samples from the start of the segment, as ``Aligner.bounds``; nothing is before ``floor_ms``."""

    def end_ms(num_chars: int) -> float:
        sample = bounds[min(max(num_chars, word.sound_start), word.sound_end)]
        return max(1000 * (start_sample + sample) / sample_rate, floor_ms)

    first = word.spoken_start + 1
    return WordTime(
        word.text,
        word.raw_start,
        word.raw_end,
        word.spoken,
        segment,
        segment_start_ms=1000 * start_sample / sample_rate,
        start_ms=end_ms(word.sound_start),
        end_ms=end_ms(word.sound_end),
        char_ends_ms=tuple(end_ms(num_chars) for num_chars in word.reached),
        spoken_ends_ms=tuple(end_ms(number) for number in range(first, first + len(word.spoken))),
        speaker=speaker,
    )


def _timed(text: str, start_ms: float, ends_ms: tuple[float, ...]) -> list[CharTime]:
    starts_ms = (start_ms, *ends_ms[:-1])
    return [CharTime(*each) for each in zip(text, starts_ms, ends_ms, strict=True)]
