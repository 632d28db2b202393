"""Decides when to close a segment early, so that a slow writer causes no break within a sentence.

The rule knows no clock, no queue and no engine: facts go in, a decision comes out. Text that keeps coming is
never cut: a segment is closed early only after the writer has stalled.
"""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import dataclass

from sessions.text.boundaries import Boundary, strongest_boundary
from sessions.text.token_cost import text_tenths

# Scripts without spaces count a word for each letter.
_WORD = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff]"
    "|[^\\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff]+(?:['’-]\\w+)*"
)


MAX_GAPS = 16
SAME_ARRIVAL_S = 0.01  # deltas this close together came in one packet
STALL_GAPS = 3.0  # one gap this many times longer than the longest of the last ones is a stall
MIN_STALL_S, MAX_STALL_S = 0.4, 1.0
RATE_WINDOW_S = 1.5
MIN_TOKENS_PER_S = 4.0  # a person who types; such text is spoken in whole pieces


class TextPace:
    """Tracks the arrival of text deltas, and detects a stalled or slow writer.

    A language model's stream comes in clumps, so the longest recent gap between arrivals counts and not the mean.
    """

    def __init__(self) -> None:
        self._gaps_s: deque[float] = deque(maxlen=MAX_GAPS)
        self._recent: deque[tuple[float, int]] = deque()  # arrivals of the last seconds, and their tenths of a token
        self._first_s: float | None = None
        self._last_s = 0.0

    def record(self, text: str, now_s: float) -> None:
        """A delta has come."""
        if self._first_s is None or now_s - self._last_s > MAX_STALL_S:  # the pace is measured anew after a stall
            self._first_s = now_s
            self._recent.clear()
        elif now_s - self._last_s >= SAME_ARRIVAL_S:
            self._gaps_s.append(now_s - self._last_s)
        self._last_s = now_s
        self._recent.append((now_s, text_tenths(text)))
        while self._recent[0][0] <= now_s - RATE_WINDOW_S:
            self._recent.popleft()

    def stalls_at_s(self, now_s: float) -> float:
        """The moment from which on the text counts as stalled if no delta comes."""
        if self._first_s is None or self._is_slow(now_s):
            return now_s
        longest_s = max(self._gaps_s, default=MAX_STALL_S)
        return self._last_s + min(max(STALL_GAPS * longest_s, MIN_STALL_S), MAX_STALL_S)

    def _is_slow(self, now_s: float) -> bool:
        if self._first_s is None or now_s - self._first_s < RATE_WINDOW_S:
            return False
        tenths = sum(tenths for arrived_s, tenths in self._recent if arrived_s > now_s - RATE_WINDOW_S)
        return tenths / 10 < MIN_TOKENS_PER_S * RATE_WINDOW_S


@dataclass(frozen=True, slots=True)
class TextStats:
    """Properties of a piece of text that the rule uses."""

    num_words: int
    boundary: Boundary

    @classmethod
    def from_text(cls, text: str) -> TextStats:
        return cls(sum(1 for _ in _WORD.finditer(text)), strongest_boundary(text))


@dataclass(frozen=True, slots=True)
class DeadAirRule:
    """Say at which moment a segment closes early and the next one begins; infinite if time alone brings neither.

    The same moment decides and sets the timer. ``left_ms`` is the audio that the listener has still to play.
    """

    enabled: bool = True
    # A segment with fewer words, and no mark, is not closed early: it would sound chopped.
    min_words: int = 6
    # Close early when the listener has no more than this left to play.
    close_at_ms: float = 300.0
    # After an early close, begin the next segment when no more than this is left to play.
    begin_at_ms: float = 400.0

    def close_early_s(self, open_text: TextStats, left_ms: float, stalls_at_s: float, now_s: float) -> float:
        """Return when to end a segment whose request waits for text. Every word that it was given is still spoken."""
        is_short = open_text.num_words < self.min_words and open_text.boundary < Boundary.CLAUSE
        if is_short or not self.enabled:
            return math.inf
        return max(stalls_at_s, now_s + (left_ms - self.close_at_ms) / 1000)

    def begin_next_s(self, gathered: TextStats, left_ms: float, now_s: float) -> float:
        """Return when the text since an early close is enough for the next segment.

        Other segments begin as soon as their first word is there; so does this one with the rule off.
        """
        if gathered.num_words == 0:
            return math.inf
        if gathered.boundary is Boundary.SENTENCE or not self.enabled:
            return now_s
        return now_s + (left_ms - self.begin_at_ms) / 1000
