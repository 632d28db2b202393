"""Read the labels of speakers at the beginnings of lines: ``Anna: Hello.``

A label that was named is never spoken. What may become one is held: at most ``MAX_LABEL_CHARS`` and the white space
before them. Lines that begin in another way, also those that look like a label, are text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from sessions.text.spans import SpannedText
from sessions.text.ssml.layers import TextLayer
from sessions.text.ssml.tokens import (
    HiddenToken,
    MarkupWarning,
    SpeakerToken,
    TagTokenizer,
    Token,
    WarningCode,
    text_tokens,
)

MAX_SPEAKERS = 16
MAX_LABEL_CHARS = 40
# What ends a label; the second is the form of Chinese and Japanese text.
COLONS = ":："

_LINE_END = re.compile(r"[\n\r]")
_SPACES = re.compile(r"\s+")
_WORD = r"[\w.'-]+"
# Up to three words that look like the label of a speaker, and what can become that.
_OTHER_LABEL = re.compile(rf"(?P<label>[^\W\d_][\w.'-]*(?: {_WORD}){{0,2}})[{COLONS}]\s")
_OPEN_OTHER_LABEL = re.compile(rf"[^\W\d_][\w.'-]*(?: {_WORD}){{0,2}}(?: |[{COLONS}])?")


class SpeakerLines(TextLayer):
    def __init__(self, inner: TagTokenizer | None, labels: Collection[str]) -> None:
        super().__init__(inner)
        self._labels = labels
        longest_first = sorted(labels, key=len, reverse=True)
        self._label = re.compile(f"({'|'.join(map(re.escape, longest_first))})[{COLONS}]")
        # Nothing but white space was read of the line.
        self._is_line_start = True
        # The beginning of a line while it may look like a label that was not named, and its place.
        self._head: str | None = None
        self._head_start = 0

    def flush(self) -> Iterator[Token]:
        """Return all that is held: text, for no label has ended."""
        yield from super().flush()
        yield from self._scan(is_end=True)

    def _read(self, text: SpannedText, at: int, is_end: bool) -> tuple[int, Iterable[Token]]:
        data = text.text
        if self._is_line_start:
            if spaces := _SPACES.match(data, at):
                return len(spaces[0]), text_tokens(text.cut(at, spaces.end()))
            if label := self._label.match(data, at):
                self._is_line_start, self._head = False, None
                place = text.cut(at, label.end())
                hidden = HiddenToken(place.raw_start, place.raw_end)
                return len(label[0]), [hidden, SpeakerToken(label[1], place.raw_start)]
            if not is_end and any(label.startswith(data[at:]) for label in self._labels):
                return 0, ()
            self._is_line_start = False
            self._head, self._head_start = "", text.cut(at, at + 1).raw_start
        line_end = _LINE_END.search(data, at)
        end = len(data) if line_end is None else line_end.end()
        warnings = self._find_other_label(data[at:end])
        self._is_line_start = line_end is not None
        return end - at, [*text_tokens(text.cut(at, end)), *warnings]

    def _find_other_label(self, piece: str) -> list[MarkupWarning]:
        """Return a warning once the line begins with what looks like a label. It is text nevertheless."""
        if self._head is None:
            return []
        self._head += piece[: MAX_LABEL_CHARS + 2 - len(self._head)]
        if found := _OTHER_LABEL.match(self._head):
            self._head = None
            return [MarkupWarning(WarningCode.UNKNOWN_SPEAKER, found["label"], self._head_start)]
        if not _OPEN_OTHER_LABEL.fullmatch(self._head):
            self._head = None
        return []
