"""The text of a response on its way to the engine: normalised, in whole words, cut into segments, flushes in place."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from engine.api import SpeechStream
from sessions.text.dead_air import TextStats
from sessions.text.normalizer import IncrementalNormalizer
from sessions.text.segmenter import SegmentEnd, Segmenter, SegmenterSettings, SegmentEvent
from sessions.text.spans import SpannedText
from sessions.timeline import ResponseTimeline, SegmentTimeline
from sessions.word_buffer import WordBuffer

# A long text is read only so far ahead of what is spoken, so that taking it in never holds up others.
READ_AHEAD_SEGMENTS = 2


@dataclass(slots=True, eq=False)
class TextSegment:
    """A piece of text spoken as one utterance; one request of the engine once it has begun."""

    index: int
    spoken: SegmentTimeline
    # Opened after an early close: waits until it is worth beginning.
    is_gathering: bool = False
    text: str = ""
    closed: bool = False
    stream: SpeechStream | None = None
    # Its request has spoken, or is about to speak, all the text it was given.
    is_parked: bool = False
    has_audio: bool = False

    @property
    def speakable(self) -> bool:
        return any(character.isalnum() for character in self.text)

    @property
    def can_starve(self) -> bool:
        """What it waits for may be text: some models want several words before the first sound, and do not say so."""
        return self.is_parked or not (self.closed or self.has_audio)

    @property
    def stats(self) -> TextStats:
        return TextStats.from_text(self.text)

    def add(self, text: SpannedText) -> None:
        self.text += text.text
        self.spoken.add_text(text)
        self.is_parked = False
        if self.stream is not None:
            self.stream.push_text(text.text)

    def close(self) -> None:
        self.closed = True
        self.is_parked = False
        self.spoken.end_text()
        if self.stream is not None:
            self.stream.end_input()


@dataclass(frozen=True, slots=True)
class FlushItem:
    """All text up to here was to be spoken without waiting for more."""

    flush: int


@dataclass(frozen=True, slots=True)
class EndItem:
    """No more text comes."""


class TextPipeline:
    """Pure. Text is read on in small slices, as far as it is needed; how it is sliced never shows in the segments."""

    def __init__(self, timeline: ResponseTimeline, normalize: bool, segmenter: SegmenterSettings | None = None) -> None:
        # What the speaker has not taken yet, in order.
        self.waiting: deque[TextSegment | FlushItem] = deque()
        # The segment that text is being added to.
        self.open: TextSegment | None = None
        # Taken in; a flush counts as one, so that what limits text limits flushes too.
        self.num_chars = 0
        self.closed = False
        self.timeline = timeline
        self._unread: deque[str | FlushItem | EndItem] = deque()
        # Of the first unread text, if it is text.
        self._num_chars_read = 0
        self._num_flushes = 0
        self._gather_next = False
        self._segmenter = Segmenter(segmenter)
        self._words: WordBuffer | IncrementalNormalizer = IncrementalNormalizer() if normalize else WordBuffer()

    @property
    def exhausted(self) -> bool:
        """Everything there will ever be has been taken."""
        return self.closed and not self._unread and not self.waiting

    def push_text(self, text: str) -> None:
        self.num_chars += len(text)
        self.timeline.append_text(text)
        if text:
            self._unread.append(text)

    def flush(self) -> int:
        self.num_chars += 1
        mark = FlushItem(self._num_flushes)
        self._num_flushes += 1
        self._unread.append(mark)
        return mark.flush

    def end(self) -> None:
        self._unread.append(EndItem())
        self.closed = True

    @property
    def wants_text(self) -> bool:
        """There is unread text, and not enough of what was read waits to be spoken."""
        return bool(self._unread) and len(self.waiting) <= READ_AHEAD_SEGMENTS

    def read(self, max_chars: int) -> int:
        """Read at most ``max_chars`` unread characters. Returns the characters processed, which may be more: what was
        held back before counts again when it is normalized. A mark counts as one."""
        num_held = self._words.num_chars_held
        num_chars = self._read_text(max_chars) if isinstance(self._unread[0], str) else self._read_mark()
        return num_chars + max(num_held - self._words.num_chars_held, 0)

    def stop(self) -> None:
        """Drop the unread text."""
        self._unread.clear()

    def pop(self) -> TextSegment | FlushItem:
        return self.waiting.popleft()

    def close_early(self) -> None:
        """End the open segment with what it has; what comes next gathers into another."""
        self._gather_next = True
        self._apply(self._segmenter.flush())

    def _read_text(self, max_chars: int) -> int:
        """Short texts in a row are read as one."""
        texts: list[str] = []
        num_chars = 0
        while num_chars < max_chars and self._unread and isinstance(text := self._unread[0], str):
            texts.append(text[self._num_chars_read : self._num_chars_read + max_chars - num_chars])
            num_chars += len(texts[-1])
            self._num_chars_read += len(texts[-1])
            if self._num_chars_read == len(text):
                self._unread.popleft()
                self._num_chars_read = 0
        self._apply(self._segmenter.push(self._words.push("".join(texts))))
        return num_chars

    def _read_mark(self) -> int:
        mark = self._unread.popleft()
        assert not isinstance(mark, str)
        self._finish_words(mark)
        return 1

    def _finish_words(self, mark: FlushItem | EndItem) -> None:
        self._apply(self._segmenter.push(self._words.flush()))
        self._apply(self._segmenter.flush())
        if isinstance(mark, FlushItem):
            self.waiting.append(mark)

    def _apply(self, events: Iterable[SegmentEvent]) -> None:
        for event in events:
            if isinstance(event, SegmentEnd):
                self._close_open()
            else:
                self._open_segment(event.index, event.text).add(event.text)

    def _open_segment(self, index: int, text: SpannedText) -> TextSegment:
        if self.open is None:
            self.open = TextSegment(index, self.timeline.begin_segment(text.raw_start), is_gathering=self._gather_next)
            self._gather_next = False
            self.waiting.append(self.open)
        return self.open

    def _close_open(self) -> None:
        segment, self.open = self.open, None
        if segment is None:
            return
        segment.close()
        if not segment.speakable:
            self.waiting.remove(segment)
            segment.spoken.finish()
