"""Relate the client's text to its speech: when each word is spoken, and what a listener has heard by a moment."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sessions.alignment.aligner import AlignerFactory, ForcedAligner
from sessions.alignment.lazy_aligner import AlignmentBacklog, LazyAligner
from sessions.alignment.uniform_aligner import UniformAligner
from sessions.alignment.word_spans import WordSpanTracker, last_word_boundary
from sessions.alignment.word_times import WordTime, to_word_time
from sessions.audio.pcm import Pcm
from sessions.encoders import EncoderPool
from sessions.events import HeardText
from sessions.text.spans import SpannedText

if TYPE_CHECKING:
    from sessions.text.ssml.items import MarkItem

# Speech that is aligned on the event loop at most, a second at 24 kHz: 3 ms.
MAX_INLINE_ALIGN_BYTES = 96_000


class SegmentTimeline:
    """Characters of the client that one utterance speaks, and when. Samples are at the engine's rate."""

    def __init__(
        self,
        index: int,
        raw_start: int,
        raw: Callable[[], str],
        aligner: LazyAligner,
        sample_rate: int,
        speed: float = 1.0,
        speaker: str = "",
    ) -> None:
        """``raw`` gives all of the client's text so far; speech is played ``speed`` times as fast as it was made."""
        self.index = index
        self.words = WordSpanTracker(raw_start, raw)
        self.aligner = aligner
        # For queries that cannot wait for alignment.
        self.even = UniformAligner(sample_rate)
        self.speed = speed
        self.speaker = speaker
        # Samples of its speech that were left out at the start.
        self.num_trimmed = 0
        # Start in the audio of the response; ``None`` before it.
        self.start_sample: int | None = None
        # Its speech is all there, or none will come.
        self.complete = False

    def add_text(self, text: SpannedText) -> None:
        self.words.add(text)
        self.aligner.add_text(text.text)
        self.even.add_text(text.text)

    def end_text(self) -> None:
        self.aligner.end_text()

    def push(self, pcm: Pcm) -> None:
        """Append speech."""
        if pcm.size:
            self.aligner.push(pcm)
            self.even.push(pcm)

    def finish(self) -> None:
        """End the speech."""
        self.complete = True
        self.aligner.finish()
        self.even.finish()

    def stop(self) -> None:
        """Stop: no more speech follows, and the alignment so far is the result."""
        self.aligner.end_input()

    def new_words(self, sample_rate: float, floor_ms: float) -> list[WordTime]:
        """Return words whose times are final, once each, and none before ``floor_ms``."""
        if self.start_sample is None:
            return []
        bounds = self.aligner.bounds
        if self.speed != 1.0 or self.num_trimmed:
            bounds = [self._played_offset(bound) for bound in bounds]
        words = []
        while (word := self.words.next_word(self.complete)) and word.sound_end < len(bounds):
            time = to_word_time(word, bounds, self.index, self.start_sample, sample_rate, floor_ms, self.speaker)
            words.append(time)
            self.words.consume(word)
        return words

    def sample_of(self, raw_start: int) -> int | None:
        """Return where in the response's audio the first sound from this place of the client's text on begins;
        ``None`` while that is not final."""
        index = self.words.next_sound(raw_start)
        if self.start_sample is None or (index is None and not self.complete):
            return None
        bounds = self.aligner.bounds
        index = len(self.words.spoken) if index is None else index
        return self.start_sample + self._played_offset(bounds[index]) if index < len(bounds) else None

    def _played_offset(self, sample: int) -> int:
        """Return where in the response's audio, from the segment's start, a sample of its speech is."""
        return int(max(sample - self.num_trimmed, 0) / self.speed)

    def speech_offset(self, played_samples: int) -> int:
        """Return the sample of the segment's speech that is played ``played_samples`` after its start."""
        return int(played_samples * self.speed) + self.num_trimmed

    def raw_position(self, played_samples: int, roughly: bool) -> int:
        """Return the position in the client's text: the first spoken character that is not over."""
        bounds = self.even.estimate() if roughly else self.aligner.estimate()
        spoken, reached = self.words.spoken, bisect_right(bounds, self.speech_offset(played_samples)) - 1
        while 0 <= reached < len(spoken) and not spoken[reached].isalnum():
            reached += 1
        return self.words.source_index(max(reached, 0))


class RawText:
    """The text that the client has sent for a response."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        # The text up to the last markup, with spaces in place of markup.
        self._unmarked = ""

    def write(self, text: str) -> None:
        self._pieces.append(text)

    def read(self) -> str:
        text = "".join(self._pieces)
        self._pieces = [text]
        return text

    def hide(self, start: int, end: int) -> None:
        """Mark characters as markup; ``start`` is not before the last ``end``."""
        self._unmarked += self.read()[len(self._unmarked) : start] + " " * (end - start)

    def read_unmarked(self) -> str:
        """Return the text with a space for each character of markup."""
        return self._unmarked + self.read()[len(self._unmarked) :] if self._unmarked else self.read()


class ResponseTimeline:
    """Keeps the client's text beside the audio made of it. Samples are at ``sample_rate``, which is the engine's;
    played at another ``speed`` they take another time."""

    def __init__(
        self,
        sample_rate: int,
        make_aligner: AlignerFactory = ForcedAligner,
        speed: float = 1.0,
        backlog: AlignmentBacklog | None = None,
    ) -> None:
        """Without a ``backlog`` speech is aligned on arrival."""
        self._sample_rate = sample_rate
        self._played_rate = sample_rate * speed
        self._make_aligner = make_aligner
        self._backlog = backlog or AlignmentBacklog()
        self._raw = RawText()
        self.segments: list[SegmentTimeline] = []
        # Segments all of whose words were returned.
        self._num_returned = 0
        # End of the last word returned; segments overlap where they are joined.
        self._last_end_ms = 0.0
        # Marks whose sample is not found yet, in order, each with its segment.
        self._marks: deque[tuple[MarkItem, SegmentTimeline]] = deque()

    def raw(self) -> str:
        """Return all text that the client has sent."""
        return self._raw.read()

    def append_text(self, raw: str) -> None:
        """Append text of the client."""
        self._raw.write(raw)

    def hide_markup(self, start: int, end: int) -> None:
        """Mark raw characters as markup: no words are found there, and heard text does not end within."""
        self._raw.hide(start, end)

    def begin_segment(self, raw_start: int, speed: float = 1.0, speaker: str = "") -> SegmentTimeline:
        aligner = LazyAligner(partial(self._make_aligner, self._sample_rate), self._backlog)
        raw = self._raw.read_unmarked
        segment = SegmentTimeline(len(self.segments), raw_start, raw, aligner, self._sample_rate, speed, speaker)
        self.segments.append(segment)
        return segment

    def stop(self) -> None:
        for segment in self.segments:
            segment.stop()

    def num_pending_bytes(self, played_samples: int) -> int:
        """Return the bytes of speech that ``heard_text`` would have to align."""
        segment = self._segment_at(played_samples)
        return 0 if segment is None else segment.aligner.num_pending_bytes

    def align_until(self, played_samples: int) -> None:
        """Align up to a position, in any thread, so that ``heard_text`` does not have to."""
        if segment := self._segment_at(played_samples):
            segment.aligner.process_all()

    def discard(self) -> None:
        """Free what queries need."""
        for segment in self.segments:
            segment.aligner.discard()

    def heard_text(self, played_samples: int, roughly: bool = False) -> HeardText:
        """Return what was heard up to a position. ``roughly`` aligns nothing and gives every character equal time."""
        raw = self.raw()
        cut = last_word_boundary(self._raw.read_unmarked(), self._position(played_samples, roughly))
        return HeardText(raw[:cut], raw[cut:], 1000 * played_samples / self._played_rate)

    async def find_heard_text(self, played_samples: int, aligners: EncoderPool, max_wait_s: float) -> HeardText:
        """The same, aligned in a thread; estimated if that takes longer than ``max_wait_s``: where many responses end
        at once, the last one would wait a minute."""
        try:
            async with asyncio.timeout(max_wait_s):
                if self.num_pending_bytes(played_samples) > MAX_INLINE_ALIGN_BYTES:
                    await aligners.run(lambda: self.align_until(played_samples))
        except TimeoutError:
            return self.heard_text(played_samples, roughly=True)
        return self.heard_text(played_samples)

    def full_heard_text(self, audio_ms: float) -> HeardText:
        """Return the heard text of a response that was played to its end."""
        return HeardText(self.raw(), "", audio_ms)

    def new_words(self) -> list[WordTime]:
        """Return words whose times are final and were not returned before, in order."""
        words: list[WordTime] = []
        while self._num_returned < len(self.segments):
            segment = self.segments[self._num_returned]
            words += segment.new_words(self._played_rate, self._last_end_ms)
            self._last_end_ms = words[-1].end_ms if words else self._last_end_ms
            if not segment.complete:
                break
            self._num_returned += 1
        return words

    def add_mark(self, mark: MarkItem, segment: SegmentTimeline) -> None:
        self._marks.append((mark, segment))

    def withdraw_marks(self, segment: SegmentTimeline) -> list[MarkItem]:
        """Remove and return the marks of the last segment, which is not spoken."""
        marks: list[MarkItem] = []
        while self._marks and self._marks[-1][1] is segment:
            marks.insert(0, self._marks.pop()[0])
        return marks

    def new_marks(self) -> list[tuple[MarkItem, int]]:
        """Return marks inside of segments with their samples, once each and in order, as soon as these are final."""
        marks: list[tuple[MarkItem, int]] = []
        while self._marks:
            mark, segment = self._marks[0]
            if (sample := segment.sample_of(mark.raw_start)) is None:
                break
            marks.append((mark, sample))
            self._marks.popleft()
        return marks

    def _position(self, played_samples: int, roughly: bool) -> int:
        segment = self._segment_at(played_samples)
        if segment is None or segment.start_sample is None:
            return 0
        return segment.raw_position(played_samples - segment.start_sample, roughly)

    def _segment_at(self, played_samples: int) -> SegmentTimeline | None:
        """The last segment that has begun by then."""
        begun = (one for one in reversed(self.segments) if one.start_sample is not None)
        return next((one for one in begun if played_samples > (one.start_sample or 0)), None)
