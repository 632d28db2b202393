"""The stream of text cut into segments, each to be spoken as one utterance.

Text is passed on at once; where a segment ends is decided when the first visible character after a mark has come,
for only that tells "3.5" and "e.g. this" from the end of a sentence.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from msgspec import Struct

from sessions.text.block_splitter import WHITE_SPACE
from sessions.text.boundaries import Boundary, BoundaryDetector
from sessions.text.phonemes.respelling import INLINE_PHONEMES, PHONEME_STARTS
from sessions.text.spans import SpannedText
from sessions.text.token_cost import TENTHS, text_tenths, token_tenths

_PHONEME_BEGINNINGS = PHONEME_STARTS | INLINE_PHONEMES
_JOINERS = frozenset("\u200c\u200d")
# No tokenizer knows longer words: each of their letters counts as a token.
_LONG_WORD_CHARS = 24
# European letters and signs. Digits, phonemes and other scripts count in other ways.
_PLAIN = r"[!-/:-Z\\-~\xa1-\u024f\u0400-\u052f\u2010-\u2027\u2030-\u205e]"
_PLAIN_WORDS = re.compile(
    f"(?P<words>(?:{_PLAIN}{{1,{_LONG_WORD_CHARS}}} )*)(?P<open>{_PLAIN}{{0,{_LONG_WORD_CHARS}}})"
)
_NO_LIMIT = 1_000_000
_SKIN_TONES = frozenset("\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff")


@dataclass(frozen=True, slots=True)
class SegmenterSettings:
    """Lengths in characters of the segment so far.

    A run of white space counts one. A wide character (Chinese, Japanese, Korean) and a digit count several, because
    they take longer to speak and a token each.
    """

    # Beyond this length a segment ends at the end of a sentence.
    sentence_end_after_chars: int = 120
    # Beyond this length it also ends at the end of a clause.
    clause_end_after_chars: int = 250
    # Beyond this length it ends at any white space.
    word_end_after_chars: int = 400
    # Maximum length; up to twice as many characters rather than split one grapheme.
    max_segment_chars: int = 600
    wide_char_weight: int = 3
    digit_weight: int = 3
    # Maximum of the engine, estimated by ``token_tenths``. Before it a segment ends at a clause, then at white space,
    # then anywhere; at the maximum even within a grapheme.
    max_segment_tokens: int | None = None
    clause_end_at_share: float = 0.6
    word_end_at_share: float = 0.75
    end_at_share: float = 0.9
    # Whether the model reads ``[AH0]``: it counts one character and one token, and is never split.
    reads_phonemes: bool = False


def _find_shortest(settings: SegmenterSettings) -> tuple[int, float]:
    """Return the length and the share of tokens from which a segment may end. Settings may come in any order."""
    lengths = (settings.sentence_end_after_chars, settings.clause_end_after_chars, settings.word_end_after_chars)
    shares = (settings.clause_end_at_share, settings.word_end_at_share, settings.end_at_share)
    return min(*lengths, settings.max_segment_chars), min(shares)


class SegmentText(Struct, frozen=True):
    """More text of a segment; the first of an index begins it."""

    index: int
    text: SpannedText


class SegmentEnd(Struct, frozen=True):
    """The segment has all its text."""

    index: int


SegmentEvent = SegmentText | SegmentEnd


class _SegmentRun(Struct, frozen=True):
    """Part of a push that belongs to one segment, and whether the segment ends with it."""

    start: int
    end: int
    is_last: bool


class Segmenter:
    """However the text is cut into pushes, the segments are the same. White space in front of them is
    left out, and behind them too where they may end."""

    def __init__(self, settings: SegmenterSettings | None = None) -> None:
        self._settings = settings or SegmenterSettings()
        # A segment of fewer characters and fewer tenths of a token ends nowhere.
        self._short_chars, shortest_share = _find_shortest(self._settings)
        self._short_tenths = int(TENTHS * (self._settings.max_segment_tokens or _NO_LIMIT) * shortest_share)
        self._index = 0
        self._num_chars = 0
        self._token_tenths = 0
        self._previous = ""
        self._num_word_chars = 0
        # What may become a phoneme; only its bracket is counted yet.
        self._open_phoneme = ""
        self._endings = BoundaryDetector()
        self._held: list[SpannedText] = []

    def push(self, text: SpannedText) -> list[SegmentEvent]:
        runs, held_from = self._scan(text.text)
        if len(runs) == 1 and not runs[0].start and held_from == len(text.text):
            return self._emit(runs[0], text)
        ranges = [(run.start, run.end) for run in runs] + [(held_from, len(text.text))]
        *pieces, held = text.cut_all(ranges)
        events = [event for run, piece in zip(runs, pieces, strict=True) for event in self._emit(run, piece)]
        if held.text:
            self._held.append(held)
        return events

    def flush(self) -> list[SegmentEvent]:
        """End the open segment here, if there is one; at the end of the text, and wherever else it must end."""
        self._held.clear()
        if not self._num_chars:
            return []
        self._begin_next()
        self._index += 1
        return [SegmentEnd(self._index - 1)]

    def _scan(self, text: str) -> tuple[list[_SegmentRun], int]:
        """The runs of a push, and from where on its white space waits to see whether the segment ends."""
        runs: list[_SegmentRun] = []
        start = 0
        held_from: int | None = None
        place = -1
        while (place := place + 1) < len(text):
            if not self._num_word_chars:
                place = self._count_words(text, place)
                if place == len(text):
                    break
            character = text[place]
            if character in WHITE_SPACE:
                self._push_space(character)
                if not self._num_chars:
                    start = place + 1
                elif held_from is None and self._endings.possible >= self._needed():
                    held_from = place
                continue
            if self._ends_before(character):
                runs.append(_SegmentRun(start, place if held_from is None else held_from, is_last=True))
                self._begin_next()
                start = place
            held_from = None
            if self._open_phoneme:
                self._extend_phoneme(character)
            else:
                self._count(character)
        end = len(text) if held_from is None else held_from
        runs.append(_SegmentRun(start, end, is_last=False))
        return runs, end

    def _count_words(self, text: str, place: int) -> int:
        """Count the next words at once, as far as none of them can end the segment; returns the place behind them.

        Text that comes in single characters is counted one by one, which gives the same segments."""
        room = min(self._short_chars - self._num_chars, (self._short_tenths - self._token_tenths) // TENTHS)
        found = _PLAIN_WORDS.match(text, place, place + room - 1) if room > 1 and not self._open_phoneme else None
        if found is None or not found[0]:
            return place
        self._num_chars += len(found[0])
        self._token_tenths += text_tenths(found[0])
        self._previous, self._num_word_chars = found[0][-1], len(found["open"])
        self._endings.skip_words(found["words"], found["open"])
        return found.end()

    def _push_space(self, character: str) -> None:
        if self._open_phoneme:
            self._count_open_phoneme()
        if self._num_chars:
            self._num_chars += self._previous not in WHITE_SPACE
            self._token_tenths += token_tenths(character)
        self._previous = character
        self._num_word_chars = 0
        self._endings.push_space(character)

    def _ends_before(self, character: str) -> bool:
        ending = self._endings.boundary_before(character)
        if self._open_phoneme:
            if self._open_phoneme + character in _PHONEME_BEGINNINGS:
                return False
            self._count_open_phoneme()
        if self._is_short(character):
            return False
        if ending >= self._needed():
            return True
        max_chars, share = self._settings.max_segment_chars, self._token_share(character)
        if self._joins(character):
            return self._num_chars >= 2 * max_chars or share > 1
        return self._num_chars >= max_chars or share > self._settings.end_at_share

    def _is_short(self, following: str) -> bool:
        """Return whether the segment is too short to end before this character."""
        num_tenths = self._token_tenths + self._tenths(following)
        return not self._num_chars or (self._num_chars < self._short_chars and num_tenths < self._short_tenths)

    def _token_share(self, following: str = "") -> float:
        """Return the share of a segment's tokens used with one more character."""
        if self._settings.max_segment_tokens is None:
            return 0.0
        more = self._tenths(following) if following else 0
        return (self._token_tenths + more) / (TENTHS * self._settings.max_segment_tokens)

    def _needed(self) -> int:
        """The weakest ending that ends the segment now."""
        settings, share = self._settings, self._token_share()
        if self._num_chars >= settings.word_end_after_chars or share >= settings.word_end_at_share:
            return Boundary.WORD
        if self._num_chars >= settings.clause_end_after_chars or share >= settings.clause_end_at_share:
            return Boundary.CLAUSE
        return Boundary.SENTENCE if self._num_chars >= settings.sentence_end_after_chars else Boundary.SENTENCE + 1

    def _joins(self, character: str) -> bool:
        """Return whether the character forms one grapheme with the one before."""
        if self._previous in _JOINERS or character in _JOINERS or character in _SKIN_TONES:
            return True
        return unicodedata.category(character).startswith("M")

    def _count_open_phoneme(self) -> None:
        """Count as text what has not become a phoneme."""
        letters, self._open_phoneme = self._open_phoneme[1:], ""
        for letter in letters:
            self._count(letter)

    def _extend_phoneme(self, character: str) -> None:
        self._previous = character
        self._open_phoneme = "" if character == "]" else self._open_phoneme + character

    def _count(self, character: str) -> None:
        if character == "[" and self._settings.reads_phonemes:
            self._open_phoneme = character
        self._num_chars += self._weight(character)
        self._token_tenths += self._tenths(character)
        self._previous = character
        self._num_word_chars += 1

    def _tenths(self, character: str) -> int:
        least = TENTHS if self._num_word_chars >= _LONG_WORD_CHARS else 0
        return max(token_tenths(character), least)

    def _weight(self, character: str) -> int:
        if unicodedata.east_asian_width(character) in "WF":
            return self._settings.wide_char_weight
        return self._settings.digit_weight if character.isdecimal() else 1

    def _begin_next(self) -> None:
        self._count_open_phoneme()
        self._num_chars = self._token_tenths = 0

    def _emit(self, run: _SegmentRun, piece: SpannedText) -> list[SegmentEvent]:
        events: list[SegmentEvent] = []
        if piece.text:
            events.append(SegmentText(self._index, SpannedText.join([*self._held, piece])))
            self._held.clear()
        if run.is_last:
            self._held.clear()
            events.append(SegmentEnd(self._index))
            self._index += 1
        return events
