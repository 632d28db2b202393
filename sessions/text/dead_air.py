"""When to close a segment early, so that a slow writer is never heard as a break in the middle of a sentence.

The rule knows no clock, no queue and no engine: facts go in, a decision comes out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_CLAUSE_MARK = re.compile(r"[,;:—–…、，；：،؛]|[.?!。！？．｡؟।።]")
_SENTENCE_END = re.compile(r"[.?!…][\"'”’»)\]]*(?=\s|$)|[。！？．｡؟।።]")
_WORD = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff]"
    "|[^\\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff]+(?:['’-]\\w+)*"
)
"""Scripts without spaces count a word for each letter."""


@dataclass(frozen=True, slots=True)
class DeadAirSettings:
    enabled: bool = True
    min_words: int = 6
    """A segment with fewer words, and no mark, is not closed early: it would sound chopped."""
    close_below_ms: float = 300.0
    """Close early when the listener has less than this left to hear."""
    open_below_ms: float = 400.0
    """After an early close, begin the next segment when less than this is left to hear."""


@dataclass(frozen=True, slots=True)
class TextFacts:
    """What the rule wants to know of a piece of text."""

    num_words: int = 0
    has_clause_mark: bool = False
    has_sentence_end: bool = False

    @classmethod
    def of(cls, text: str) -> TextFacts:
        return cls(
            num_words=sum(1 for _ in _WORD.finditer(text)),
            has_clause_mark=_CLAUSE_MARK.search(text) is not None,
            has_sentence_end=_SENTENCE_END.search(text) is not None,
        )


def should_close_early(open_text: TextFacts, remaining_ms: float, settings: DeadAirSettings) -> bool:
    """Of a segment whose request waits for text: whether to end it now. Every word fed to it is still spoken."""
    if not settings.enabled or remaining_ms >= settings.close_below_ms:
        return False
    return open_text.num_words >= settings.min_words or open_text.has_clause_mark


def should_open_next(gathered: TextFacts, remaining_ms: float, settings: DeadAirSettings) -> bool:
    """Of the text that has come since a segment was closed early: whether to begin the next segment with it.

    Other segments begin as soon as their first word is there; so does this one with the rule off.
    """
    if gathered.num_words == 0:
        return False
    if not settings.enabled:
        return True
    return remaining_ms < settings.open_below_ms or gathered.has_sentence_end
