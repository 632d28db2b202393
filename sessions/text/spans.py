"""Text that remembers which of the client's own characters each part of it stands for.

Positions count characters of the raw text, everything the client has sent, from its first character on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct


class SourceSpan(Struct, frozen=True):
    """Characters of text made of the raw characters from ``raw_start`` up to ``raw_end``."""

    num_chars: int
    raw_start: int
    raw_end: int

    @property
    def is_verbatim(self) -> bool:
        """True if each character stands for one character of the raw text."""
        return self.raw_end - self.raw_start == self.num_chars

    def cut(self, start: int, end: int) -> SourceSpan:
        """The characters from ``start`` up to ``end``; the parts of a rewritten span share its raw range evenly."""
        return SourceSpan(end - start, self._raw_at(start), self._raw_at(end))

    def _raw_at(self, place: int) -> int:
        return self.raw_start + (self.raw_end - self.raw_start) * place // self.num_chars


class SpannedText(Struct, frozen=True):
    """A piece of text on its way to the voice. The spans cover it in order, and their raw ranges never go back."""

    text: str
    spans: tuple[SourceSpan, ...]

    @classmethod
    def from_raw(cls, text: str, raw_start: int, raw_end: int | None = None) -> SpannedText:
        """Text that stands for one raw range; without ``raw_end`` it is the raw text itself."""
        if not text:
            return EMPTY
        return cls(text, (SourceSpan(len(text), raw_start, raw_start + len(text) if raw_end is None else raw_end),))

    @classmethod
    def join(cls, pieces: Iterable[SpannedText]) -> SpannedText:
        pieces = [piece for piece in pieces if piece.text]
        if len(pieces) == 1 and len(pieces[0].spans) == 1:
            return pieces[0]
        return cls("".join(piece.text for piece in pieces), merge(span for piece in pieces for span in piece.spans))

    @property
    def raw_start(self) -> int:
        return self.spans[0].raw_start

    @property
    def raw_end(self) -> int:
        return self.spans[-1].raw_end

    def cut(self, start: int, end: int) -> SpannedText:
        """The characters from ``start`` up to ``end``."""
        return self.cut_all([(start, end)])[0]

    def cut_all(self, ranges: Sequence[tuple[int, int]]) -> list[SpannedText]:
        """The characters of each range; the ranges do not overlap and go forward."""
        pieces: list[list[SourceSpan]] = [[] for _ in ranges]
        number = place = 0
        for span in self.spans:
            while number < len(ranges):
                start, end = ranges[number]
                first, last = max(start - place, 0), min(end - place, span.num_chars)
                if first < last:
                    pieces[number].append(span.cut(first, last))
                if end > place + span.num_chars:
                    break
                number += 1
            place += span.num_chars
        return [
            SpannedText(self.text[start:end], tuple(spans)) for (start, end), spans in zip(ranges, pieces, strict=True)
        ]


EMPTY = SpannedText("", ())


def merge(spans: Iterable[SourceSpan]) -> tuple[SourceSpan, ...]:
    """The same mapping in fewer spans: neighbours that are verbatim become one."""
    merged: list[SourceSpan] = []
    for span in spans:
        last = merged[-1] if merged else None
        if last and last.is_verbatim and span.is_verbatim and last.raw_end == span.raw_start:
            merged[-1] = SourceSpan(last.num_chars + span.num_chars, last.raw_start, span.raw_end)
        else:
            merged.append(span)
    return tuple(merged)
