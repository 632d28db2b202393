"""Maps words between the client's text and its spoken form."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from sessions.text.spans import SourceSpan, SpannedText

# Chinese and Japanese: each character is a word, with the marks on it.
_UNSPACED = "\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff"
# A longer run without white space is several words.
_MAX_WORD_CHARS = 200
_WORD = re.compile(
    rf"[^\s\w]{{0,{_MAX_WORD_CHARS}}}[{_UNSPACED}][^\s\w{_UNSPACED}]{{0,{_MAX_WORD_CHARS}}}"
    rf"|[^\s{_UNSPACED}]{{1,{_MAX_WORD_CHARS}}}"
)


@dataclass(frozen=True, slots=True)
class WordSpan:
    """A word of the client's text, and which characters of the segment's spoken text stand for it."""

    text: str
    raw_start: int
    spoken: str
    spoken_start: int
    # The first spoken character that sounds; what is before it are marks.
    sound_start: int
    # After the last one that sounds.
    sound_end: int
    # Number of spoken characters of the segment at the end of each character of ``text``.
    reached: tuple[int, ...]

    @property
    def raw_end(self) -> int:
        return self.raw_start + len(self.text)


class WordSpanTracker:
    """The words of one segment, one after the other as its text comes. Words without a sound are passed over."""

    def __init__(self, raw_start: int, raw: Callable[[], str]) -> None:
        """``raw`` gives all that the client has written by now."""
        self._raw = raw
        self.raw_start = raw_start
        self.raw_end = raw_start
        self._raw_at = raw_start
        # Position of each spoken character in the client's text, non-decreasing.
        self._places = array("l")
        self.spoken = ""

    def add(self, text: SpannedText) -> None:
        at = 0
        for span in text.spans:
            self._places.extend(self._places_of(span, text.text[at : at + span.num_chars]))
            at += span.num_chars
            self.raw_end = max(self.raw_end, span.raw_end)
        self.spoken += text.text

    def _places_of(self, span: SourceSpan, spoken: str) -> Iterable[int]:
        if span.is_verbatim:
            return range(span.raw_start, span.raw_end)
        written = self._raw()[span.raw_start : span.raw_end]
        return (span.raw_start + place for place in align_characters(spoken, written))

    def source_index(self, spoken_char: int) -> int:
        """Return the position of a spoken character in the client's text."""
        return self._places[spoken_char] if spoken_char < len(self._places) else self.raw_end

    def next_sound(self, raw_start: int) -> int | None:
        """Return the first spoken character that sounds, from this place of the client's text on."""
        first = bisect_left(self._places, raw_start)
        return next((index for index in range(first, len(self.spoken)) if self.spoken[index].isalnum()), None)

    def next_word(self, complete: bool) -> WordSpan | None:
        """The next word that is all there; after ``take``, the one after it."""
        raw = self._raw()
        while match := _WORD.search(raw, self._raw_at, self.raw_end):
            if match.end() == self.raw_end and not complete:
                return None
            if self._sounds(match.start(), match.end()):
                return self._word(match[0], match.start())
            self._raw_at = match.end()
        return None

    def _sounds(self, raw_start: int, raw_end: int) -> bool:
        spoken = self.spoken[bisect_left(self._places, raw_start) : bisect_left(self._places, raw_end)]
        return any(character.isalnum() for character in spoken)

    def _word(self, text: str, raw_start: int) -> WordSpan:
        start = bisect_left(self._places, raw_start)
        reached = tuple(bisect_left(self._places, raw_start + place + 1) for place in range(len(text)))
        spoken = self.spoken[start : reached[-1]]
        sounds = [start + place for place, character in enumerate(spoken) if character.isalnum()]
        first, last = (sounds[0], sounds[-1] + 1) if sounds else (start, start)
        return WordSpan(
            text, raw_start, spoken.strip(), start + len(spoken) - len(spoken.lstrip()), first, last, reached
        )

    def consume(self, word: WordSpan) -> None:
        self._raw_at = word.raw_end


def align_characters(spoken: str, written: str) -> list[int]:
    """Return the position of each spoken character in the written text. Equal words match; what lies between them is
    shared evenly; every sound is within a word."""
    xs, ys = zip(*_matching_runs(spoken, written), strict=True)
    found = [int(place) for place in np.interp(range(len(spoken)), xs, ys)]
    word_before = [len(written[: place + 1].rstrip()) - 1 for place in range(len(written) + 1)]
    return [
        max(word_before[place], 0) if character.isalnum() else place
        for place, character in zip(found, spoken, strict=True)
    ]


def _matching_runs(spoken: str, written: str) -> Iterable[tuple[int, int]]:
    """Places in both that belong together, in order."""
    spoken_words, written_words = (list(re.finditer(r"\S+", text)) for text in (spoken, written))
    matcher = SequenceMatcher(
        None, [_key(word) for word in spoken_words], [_key(word) for word in written_words], autojunk=False
    )
    yield 0, 0
    for first, other, size in matcher.get_matching_blocks():
        if first and other:
            yield spoken_words[first - 1].end(), written_words[other - 1].end()
        for one, same in zip(spoken_words[first : first + size], written_words[other : other + size], strict=True):
            yield one.start(), same.start()
            yield one.end(), same.end()
        if first + size < len(spoken_words) and other + size < len(written_words):
            yield spoken_words[first + size].start(), written_words[other + size].start()
    yield len(spoken), len(written)


def _key(word: re.Match[str]) -> str:
    """A word without its marks; marks alone are like nothing else."""
    return re.sub(r"[\W_]", "", word[0]).lower() or f"{word.start()} {word[0]}"


def last_word_boundary(text: str, position: float) -> int:
    """The end of the last word that ends at or before ``position``; 0 if there is none."""
    head = text[: int(position)]
    run = head.rsplit(None, 1)[-1] if head[-1:].strip() else ""
    before = len(head) - len(run)
    ends = [word.end() for word in _WORD.finditer(text, before) if word.end() <= len(head)] if run else []
    return ends[-1] if ends else len(head[:before].rstrip())
