"""Positions of text without markup in the client's raw text."""

from __future__ import annotations

from collections.abc import Iterator

from sessions.text.spans import EMPTY, SourceSpan, SpannedText


class RawMap:
    """Runs of plain text, each with the raw characters that it stands for. Text that has passed is forgotten."""

    def __init__(self) -> None:
        # Plain start of each run, and the run.
        self._runs: list[tuple[int, SourceSpan]] = []
        self._num_chars = 0

    def add(self, num_chars: int, raw_start: int, raw_end: int) -> None:
        run = SourceSpan(num_chars, raw_start, raw_end)
        start, last = self._runs[-1] if self._runs else (0, None)
        if last is not None and last.is_verbatim and run.is_verbatim and last.raw_end == raw_start:
            self._runs[-1] = (start, SourceSpan(last.num_chars + num_chars, last.raw_start, raw_end))
        else:
            self._runs.append((self._num_chars, run))
        self._num_chars += num_chars

    def to_raw(self, text: SpannedText) -> SpannedText:
        """Return the text with spans of the raw text. Later calls have later spans."""
        if not text.text:
            return EMPTY
        spans = tuple(raw for span in text.spans for raw in self._raw_spans(span))
        first = next((index for index, run in enumerate(self._runs) if _end(run) >= text.raw_end), len(self._runs))
        del self._runs[:first]
        return SpannedText(text.text, spans)

    def _raw_spans(self, span: SourceSpan) -> Iterator[SourceSpan]:
        if not span.is_verbatim:
            start = self._raw_start(span.raw_start)
            yield SourceSpan(span.num_chars, start, max(self._raw_end(span.raw_end), start))
            return
        for start, run in self._runs:
            first, last = max(span.raw_start - start, 0), min(span.raw_end - start, run.num_chars)
            if first < last:
                yield run.cut(first, last)

    def _raw_start(self, place: int) -> int:
        """Return where the plain character at ``place`` begins."""
        for start, run in self._runs:
            if place < start + run.num_chars:
                return run.cut(max(place - start, 0), run.num_chars).raw_start
        return self._runs[-1][1].raw_end

    def _raw_end(self, place: int) -> int:
        """Return where the plain character before ``place`` ends."""
        for start, run in reversed(self._runs):
            if place > start:
                return run.cut(0, min(place - start, run.num_chars)).raw_end
        return self._runs[0][1].raw_start


def _end(run: tuple[int, SourceSpan]) -> int:
    return run[0] + run[1].num_chars
