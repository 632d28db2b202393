"""What marked-up text becomes, and the interface of what reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from sessions.text.ssml.style import SpeechStyle
from sessions.text.ssml.tokens import HiddenToken, MarkupWarning, TextToken


@dataclass(frozen=True, slots=True)
class StyleItem:
    """The style of the text that follows."""

    style: SpeechStyle


@dataclass(frozen=True, slots=True)
class BreakItem:
    """Silence between the text before and after it."""

    duration_ms: float


@dataclass(frozen=True, slots=True)
class MarkItem:
    """A place in the text that the client named."""

    name: str
    raw_start: int


MarkupItem = TextToken | HiddenToken | StyleItem | BreakItem | MarkItem | MarkupWarning


class MarkupParser(Protocol):
    """Turns raw text into items. The items do not depend on the cut of the text."""

    @property
    def num_chars_held(self) -> int: ...

    def push(self, text: str) -> Iterator[MarkupItem]: ...

    def flush(self) -> Iterator[MarkupItem]:
        """Return what is held as far as it is text."""
        ...

    def finish(self) -> Iterator[MarkupItem]: ...

    def change_speaker(self, speaker: str, voice: str | None) -> Iterator[MarkupItem]:
        """End what is held, and have ``voice`` speak the text that follows."""
        ...
