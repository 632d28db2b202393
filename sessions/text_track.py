"""The text of a response on its way to the engine: normalized, in whole words, cut into segments, flushes in place.

It decides which segment may begin and when one is closed early. Pure: time is passed in.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from sessions.checkpoint import EarlyCut
from sessions.clock import is_due
from sessions.text.dead_air import DeadAirRule, TextPace
from sessions.text.normalizer import IncrementalNormalizer
from sessions.text.segmenter import SegmentEnd, Segmenter, SegmenterSettings, SegmentEvent
from sessions.text.spans import SpannedText
from sessions.text.ssml.items import BreakItem, MarkItem, MarkupItem, MarkupParser, StyleItem
from sessions.text.ssml.raw_map import RawMap
from sessions.text.ssml.style import PLAIN_STYLE
from sessions.text.ssml.tokens import HiddenToken, MarkupWarning, TextToken
from sessions.text.word_joiner import WordBuffer
from sessions.text_items import FlushItem, TextItem, TextSegment
from sessions.timeline import ResponseTimeline

# A long text is read only so far ahead of what is spoken, so that taking it in never holds up others.
READ_AHEAD_SEGMENTS = 2


@dataclass(frozen=True, slots=True)
class SpeakerItem:
    """Another voice speaks the text that follows."""

    speaker: str
    voice: str | None


@dataclass(frozen=True, slots=True)
class EndItem:
    """The end of the text."""


@dataclass(frozen=True, slots=True)
class CutItem:
    """An early close that is already part of what the client has heard."""


ReadMark = FlushItem | SpeakerItem | EndItem | CutItem


class TextTrack:
    """Text is read in small slices, as far as it is needed; how it is sliced never shows in the segments."""

    def __init__(
        self,
        timeline: ResponseTimeline,
        normalize: bool,
        segmenter: SegmenterSettings | None = None,
        dead_air: DeadAirRule | None = None,
        parser: MarkupParser | None = None,
        cuts: Iterable[EarlyCut] = (),
    ) -> None:
        """``parser`` reads markup and looks up words; without one, tags are text. ``cuts`` are made again."""
        # Items that have not begun, in order.
        self.waiting: deque[TextItem] = deque()
        # The segment that text is being added to.
        self.open: TextSegment | None = None
        self.num_text_chars = 0
        self.num_flushes = 0
        self.closed = False
        self._timeline = timeline
        self._dead_air = dead_air or DeadAirRule()
        self._pace = TextPace()
        self._unread: deque[str | ReadMark] = deque()
        # Characters already read of the first waiting text.
        self._num_chars_read = 0
        # Early closes so far, and those to be made again.
        self.cuts: list[EarlyCut] = []
        self._cuts_to_make = deque(cuts)
        # Characters and flushes that were read in all.
        self._total_chars_read = self._total_flushes_read = 0
        self._gather_next = False
        self._segmenter = Segmenter(segmenter)
        self._words: WordBuffer | IncrementalNormalizer = IncrementalNormalizer() if normalize else WordBuffer()
        # Warnings about markup that were not taken yet.
        self.warnings: list[MarkupWarning] = []
        self._markup = None if parser is None else _MarkupReader(parser)
        # Items of the last characters that were read, where some wait.
        self._items: Iterator[MarkupItem | FlushItem | EndItem] | None = None

    @property
    def num_chars(self) -> int:
        """Characters received; a flush counts as one, so that what limits text limits flushes, too."""
        return self.num_text_chars + self.num_flushes

    @property
    def exhausted(self) -> bool:
        """True if the text has ended and all of it has begun."""
        return self.closed and not self._unread and self._items is None and not self.waiting

    @property
    def has_cuts_to_make(self) -> bool:
        return bool(self._cuts_to_make)

    @property
    def wants_text(self) -> bool:
        """There is unread text, and not enough of what was read waits to be spoken."""
        has_unread = bool(self._unread) or self._items is not None
        return has_unread and len(self.waiting) <= READ_AHEAD_SEGMENTS

    @property
    def is_break_next(self) -> bool:
        return bool(self.waiting) and isinstance(self.waiting[0], BreakItem)

    def push(self, text: str, now_s: float) -> None:
        self._pace.record(text, now_s)
        self._timeline.append_text(text)
        self._append(text)

    def flush(self) -> int:
        item = FlushItem(self.num_flushes)
        self.num_flushes += 1
        self._unread.append(item)
        self._append("")
        return item.flush

    def change_speaker(self, speaker: str, voice: str | None) -> None:
        """Have ``voice`` speak the text that follows. The text has a parser."""
        self._unread.append(SpeakerItem(speaker, voice))

    def end(self) -> None:
        self._unread.append(EndItem())
        self.closed = True

    def stop(self) -> None:
        """Drop the unread text."""
        self._unread.clear()
        self._items = None

    def read(self, max_chars: int) -> int:
        """Read at most ``max_chars`` unread characters. Returns the characters processed, which may be more: what was
        held back before counts again when it is normalized. A mark counts as one."""
        if self._markup is not None:
            return self._read_markup(self._markup, max_chars)
        num_held = self._words.num_chars_held
        num_chars = 1
        if isinstance(self._unread[0], str):
            text = self._pop_text(max_chars)
            num_chars = len(text)
            is_last = bool(self._unread) and isinstance(self._unread[0], EndItem)
            self._apply(self._segmenter.push(self._words.push_last(text) if is_last else self._words.push(text)))
            if is_last:
                # A segment that ends in between would be recorded as cut, and a replay would read its last word later.
                self._apply_mark(self._unread.popleft())
        else:
            self._apply_mark(self._unread.popleft())
        return num_chars + max(num_held - self._words.num_chars_held, 0)

    def must_close_early(self, left_ms: float, now_s: float) -> bool:
        """Return whether the open segment waits for text that has stalled, with ``left_ms`` of audio left to play."""
        return is_due(self._close_early_s(left_ms, now_s), now_s)

    def close_early(self) -> None:
        """End the open segment with what it has; what comes next gathers into another."""
        self._gather_next = True
        self.cuts.append(EarlyCut(self._total_chars_read, self._total_flushes_read))
        self._apply(self._segmenter.flush())

    def is_ready(self, segment: TextSegment, left_ms: float, now_s: float) -> bool:
        """Return whether a waiting segment has enough text to begin."""
        return is_due(self._begin_s(segment, left_ms, now_s), now_s)

    def pop(self) -> TextItem:
        """Begin the first waiting item."""
        return self.waiting.popleft()

    def end_segment(self, segment: TextSegment) -> None:
        """The engine has ended it, maybe before its text was closed: what comes then opens another."""
        if segment is self.open:
            self.close_early()

    def is_starving(self, generating: Sequence[TextSegment]) -> bool:
        """Return whether only missing text prevents more audio."""
        if self.closed or self.wants_text:
            return False
        has_text = any(isinstance(item, TextSegment) and item.speakable for item in self.waiting)
        is_gathering = self.open is not None and self.open.is_gathering
        return (is_gathering or not has_text) and all(segment.can_starve for segment in generating)

    def next_check_s(self, left_ms: float, now_s: float, is_generating: bool) -> float:
        """The next moment at which time alone closes or begins a segment; infinite if there is none."""
        moments_s = [self._close_early_s(left_ms, now_s)]
        if self.waiting and isinstance(first := self.waiting[0], TextSegment) and not is_generating:
            moments_s.append(self._begin_s(first, left_ms, now_s))
        return min((moment_s for moment_s in moments_s if not is_due(moment_s, now_s)), default=math.inf)

    def _close_early_s(self, left_ms: float, now_s: float) -> float:
        segment = self.open
        if segment is None or not segment.is_parked or self.wants_text:
            return math.inf
        return self._dead_air.close_early_s(segment.stats, left_ms, self._pace.stalls_at_s(now_s), now_s)

    def _begin_s(self, segment: TextSegment, left_ms: float, now_s: float) -> float:
        if not segment.speakable or (self.wants_text and not segment.closed):  # its end may be there already
            return math.inf
        if segment.closed or not segment.is_gathering:
            return now_s
        return self._dead_air.begin_next_s(segment.stats, left_ms, now_s)

    def _append(self, text: str) -> None:
        """Append text, and the cuts up to its end."""
        cuts = self._cuts_to_make
        while cuts and cuts[0].num_flushes == self.num_flushes and cuts[0].num_chars <= self.num_text_chars + len(text):
            num_chars = max(cuts.popleft().num_chars - self.num_text_chars, 0)
            self._append_piece(text[:num_chars])
            self._unread.append(CutItem())
            text = text[num_chars:]
        self._append_piece(text)

    def _append_piece(self, text: str) -> None:
        self.num_text_chars += len(text)
        if text:
            self._unread.append(text)

    def _pop_text(self, max_chars: int) -> str:
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
        self._total_chars_read += num_chars
        return "".join(texts)

    def _apply_mark(self, mark: str | ReadMark) -> None:
        if isinstance(mark, CutItem):
            self.close_early()
            return
        self._end_run()
        if isinstance(mark, FlushItem):
            self._total_flushes_read += 1
            self.waiting.append(mark)

    def _read_markup(self, markup: _MarkupReader, max_chars: int) -> int:
        """Read on in the items of the last characters, or read more characters. What they become may be longer than
        they are: items beyond ``max_chars`` of text wait for the next call."""
        num_held = self._words.num_chars_held + markup.parser.num_chars_held
        num_chars = num_spoken = 0
        if self._items is None:
            if isinstance(self._unread[0], str):
                text = self._pop_text(max_chars)
                num_chars, self._items = len(text), markup.parser.push(text)
            else:
                num_chars, self._items = 1, _items_of(self._unread.popleft(), markup.parser)
        for item in self._items:
            num_spoken += len(item.text) if isinstance(item, TextToken) else 0
            self._apply_item(markup, item)
            if num_spoken >= max_chars:
                break
        else:
            self._items = None
        num_released = num_held - self._words.num_chars_held - markup.parser.num_chars_held
        return max(num_chars, num_spoken) + max(num_released, 0)

    def _apply_item(self, markup: _MarkupReader, item: MarkupItem | FlushItem | EndItem) -> None:
        match item:
            case TextToken():
                markup.places.add(len(item.text), item.raw_start, item.raw_end)
                self._apply(self._segmenter.push(markup.places.to_raw(self._words.push(item.text))))
            case HiddenToken():
                self._timeline.hide_markup(item.raw_start, item.raw_end)
            case MarkItem():
                markup.marks.append(item)
            case MarkupWarning():
                self.warnings.append(item)
            case BreakItem():
                self._end_run()
                self.waiting.append(item)
            case StyleItem():
                self._end_run()
                markup.style = item.style
            case FlushItem() | EndItem():
                self._apply_mark(item)

    def _end_run(self) -> None:
        """End the open segment with all text read so far."""
        if (words := self._words.flush()).text:
            self._apply(self._segmenter.push(words if self._markup is None else self._markup.places.to_raw(words)))
        self._apply(self._segmenter.flush())
        if self._markup is not None:
            self.waiting.extend(self._markup.marks)
            self._markup.marks.clear()

    def _apply(self, events: Iterable[SegmentEvent]) -> None:
        for event in events:
            if isinstance(event, SegmentEnd):
                self._close_open()
            else:
                segment = self._open_segment(event.index, event.text)
                segment.add(event.text)
                if self._markup is not None:
                    for mark in self._markup.pop_marks(event.text.raw_end):
                        self._timeline.add_mark(mark, segment.spoken)

    def _open_segment(self, index: int, text: SpannedText) -> TextSegment:
        if self.open is None:
            style = PLAIN_STYLE if self._markup is None else self._markup.style
            timeline = self._timeline.begin_segment(text.raw_start, style.speed, style.speaker)
            self.open = TextSegment(index, timeline, style, is_gathering=self._gather_next)
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
            self.waiting.extend(self._timeline.withdraw_marks(segment.spoken))


def _items_of(mark: str | ReadMark, parser: MarkupParser) -> Iterator[MarkupItem | FlushItem | EndItem]:
    """Return what a parser holds at a mark, and then the mark."""
    if isinstance(mark, SpeakerItem):
        return parser.change_speaker(mark.speaker, mark.voice)
    # Responses with markup have no checkpoints, so no cut is made again.
    assert not isinstance(mark, str | CutItem)
    return chain(parser.flush() if isinstance(mark, FlushItem) else parser.finish(), [mark])


class _MarkupReader:
    """The state of a text with markup beside that of its parser."""

    def __init__(self, parser: MarkupParser) -> None:
        self.parser = parser
        self.places = RawMap()
        # The style of the next text.
        self.style = PLAIN_STYLE
        # Marks whose text has not come.
        self.marks: deque[MarkItem] = deque()

    def pop_marks(self, raw_end: int) -> Iterator[MarkItem]:
        """The marks before this place of the raw text."""
        while self.marks and self.marks[0].raw_start < raw_end:
            yield self.marks.popleft()
