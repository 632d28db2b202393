"""Times of characters, as ElevenLabs tells them: lists of characters, starts and durations."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from realtime.protocol.model import TimedWord


class TimedChar(NamedTuple):
    text: str
    start_ms: float
    end_ms: float


def characters(words: Iterable[TimedWord], spoken: bool = False) -> list[TimedChar]:
    """The characters of words, each word with the space that ends it, so that no client waits for the next one."""
    found = []
    for word in words:
        text, ends_ms = (word.spoken, word.spoken_ends_ms) if spoken and word.spoken else (word.text, word.char_ends_ms)
        starts_ms = (word.start_ms, *ends_ms[:-1])
        found += [TimedChar(*each) for each in zip(text, starts_ms, ends_ms, strict=True)]
        if text and not _is_spaceless(text[-1]):
            found.append(TimedChar(" ", word.end_ms, word.end_ms))
    return found


def shift_word(word: TimedWord, by_ms: float) -> TimedWord:
    """The same word, so much later."""
    return replace(
        word,
        start_ms=word.start_ms + by_ms,
        end_ms=word.end_ms + by_ms,
        char_ends_ms=tuple(end_ms + by_ms for end_ms in word.char_ends_ms),
        spoken_ends_ms=tuple(end_ms + by_ms for end_ms in word.spoken_ends_ms),
    )


def alignment(chars: Sequence[TimedChar], base_ms: float) -> dict[str, Any] | None:
    """As the sockets tell them: whole milliseconds since ``base_ms``."""
    if not chars:
        return None
    starts = [round(char.start_ms - base_ms) for char in chars]
    ends = [round(char.end_ms - base_ms) for char in chars]
    return {
        "chars": [char.text for char in chars],
        "charStartTimesMs": starts,
        "charDurationsMs": [end - start for start, end in zip(starts, ends, strict=True)],
    }


def snake_alignment(chars: Sequence[TimedChar], base_ms: float) -> dict[str, Any] | None:
    """As text-to-dialogue tells the same."""
    told = alignment(chars, base_ms)
    names = {"chars": "chars", "charStartTimesMs": "char_start_times_ms", "charDurationsMs": "char_durations_ms"}
    return told and {names[name]: values for name, values in told.items()}


def alignment_s(chars: Sequence[TimedChar]) -> dict[str, Any] | None:
    """As HTTP tells the same, in seconds."""
    if not chars:
        return None
    return {
        "characters": [char.text for char in chars],
        "character_start_times_seconds": [round(char.start_ms / 1000, 3) for char in chars],
        "character_end_times_seconds": [round(char.end_ms / 1000, 3) for char in chars],
    }


def _is_spaceless(character: str) -> bool:
    """Of a script that writes words without spaces between them."""
    return unicodedata.category(character) == "Lo" and unicodedata.east_asian_width(character) in "WF"
