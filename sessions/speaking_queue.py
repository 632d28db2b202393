"""What a response has begun of its text and not yet spoken, in order, with the engine's requests of its segments."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain, islice
from typing import TYPE_CHECKING

from engine.api import SpeechError
from sessions.checkpoint import SpokenSegment
from sessions.clock import now_s
from sessions.text.ssml.items import BreakItem, MarkItem
from sessions.text_items import TextItem, TextSegment

if TYPE_CHECKING:
    from engine.api import SpeechStream
    from sessions.config import ResponseParams, SpeechSettings
    from sessions.response_output import ResponseOutput
    from sessions.session_services import SessionServices
    from sessions.styles import StyleResolver

# Flushes are taken from the text when they are passed on; very many at once would hold up others.
MAX_BEGUN_ITEMS = 50


class SpeakingQueue:
    """Owns the streams of all segments until ``release``."""

    def __init__(
        self,
        params: ResponseParams,
        services: SessionServices,
        styles: StyleResolver | None,
        on_event: Callable[[], None],
    ) -> None:
        """The first segments of a replay are spoken as another gateway spoke them. ``on_event`` is called when a stream
        may have another event."""
        # Segments submitted. One that is submitted again counts once.
        self.num_segments = 0
        self._request_prefix = params.request_prefix
        self._group = params.group
        self._settings = params.settings
        self._is_burst = params.is_burst
        self._services = services
        self._styles = styles
        # Not yet submitted.
        self._to_replay = deque(params.replay.segments if params.replay else ())
        self._on_event = on_event
        self._items: deque[TextItem] = deque()
        self._streams: list[SpeechStream] = []
        # Request of the first segment, submitted before its text.
        self._prepared: SpeechStream | None = None

    @property
    def current(self) -> TextItem | None:
        """The item that is being spoken."""
        return self._items[0] if self._items else None

    @property
    def segments(self) -> list[TextSegment]:
        return [item for item in self._items if isinstance(item, TextSegment)]

    @property
    def holds_request(self) -> bool:
        """True while a segment is being spoken, or the request of the first one is prepared."""
        return self._prepared is not None or bool(self.segments)

    @property
    def holds_streams(self) -> bool:
        """True from the first request until ``release`` has ended."""
        return bool(self._streams)

    @property
    def is_full(self) -> bool:
        return len(self._items) >= MAX_BEGUN_ITEMS

    @property
    def is_segment_next(self) -> bool:
        return len(self._items) > 1 and isinstance(self._items[1], TextSegment)

    @property
    def has_sounded(self) -> bool:
        """True once a segment has audio."""
        segments = self.segments
        return len(segments) < self.num_segments or any(segment.has_audio for segment in segments)

    @property
    def next_to_replay(self) -> SpokenSegment | None:
        """What is known of the next segment's speech; ``None`` if it is new."""
        return self._to_replay[0] if self._to_replay else None

    @property
    def can_prepare(self) -> bool:
        """True if nothing was submitted, and text alone is missing from the first request."""
        is_new = not self._streams and not self._to_replay
        return is_new and not self._is_burst and self._styles is None and self._services.limits.prepare_requests

    @property
    def is_replaying(self) -> bool:
        """True while what is known is made again."""
        return bool(self._to_replay) or any(segment.num_bytes_to_replay for segment in self.segments)

    def is_break_next(self, waiting: Iterable[TextItem]) -> bool:
        """Return whether silence follows what is being spoken; ``waiting`` are the items that have not begun."""
        following = islice(chain(self._items, waiting), 1, None)
        return isinstance(next((item for item in following if not isinstance(item, MarkItem)), None), BreakItem)

    def prepare(self) -> None:
        """Submit the request of the first segment without text, so that the engine has it ready when its text comes.

        The caller checks ``can_prepare``, which stays true if the engine takes no request now."""
        with suppress(SpeechError):
            self._prepared = self._submit_request(self._settings, "", SpokenSegment(False), 0)

    def begin(self, item: TextItem) -> None:
        if isinstance(item, TextSegment):
            self._submit(item)
        self._items.append(item)

    def pop(self) -> None:
        """Remove the item that was being spoken."""
        self._items.popleft()

    def submit_again(self, segment: TextSegment) -> None:
        """Submit the last segment once more: the engine refused it."""
        self.num_segments -= 1
        self._submit(segment)

    def _submit(self, segment: TextSegment) -> None:
        known = segment.known or (self._to_replay.popleft() if self._to_replay else SpokenSegment(segment.closed))
        segment.number, segment.known = self.num_segments, known
        segment.num_bytes_to_replay = len(known.codes)
        if not self._use_prepared(segment):
            settings = self._settings if self._styles is None else self._styles.settings_for(segment.style)
            segment.stream = self._submit_request(settings, segment.text, known, segment.number)
            if segment.closed and not known.is_text_closed:
                segment.stream.end_input()
        self.num_segments += 1

    def _use_prepared(self, segment: TextSegment) -> bool:
        """Give the text to the prepared request. Not if the engine has refused it, nor if the text is complete: its
        layout differs."""
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            return False
        if segment.closed or prepared.next_event() is not None:
            prepared.cancel()
            return False
        segment.stream = prepared
        prepared.push_text(segment.text)
        return True

    def _submit_request(self, settings: SpeechSettings, text: str, known: SpokenSegment, number: int) -> SpeechStream:
        request = settings.create_request(
            f"{self._request_prefix}/{len(self._streams)}",
            text,
            known.is_text_closed,
            number,
            self._group,
            self._services.limits.min_engine_lead_ms,
            known.point,
            self._is_burst,
        )
        self._streams.append(self._services.engine.submit(request, self._on_event))
        return self._streams[-1]

    def report_playback(self, output: ResponseOutput) -> None:
        """Give the engine the listener's position in the segment that is being spoken."""
        segment = self.current
        if isinstance(segment, TextSegment) and not self._is_burst and not output.is_stopped:
            rate = self._services.engine.info.sample_rate
            tolerance_samples = rate * self._services.limits.playback_tolerance_ms / 1000
            segment.report_playback(output.played_engine_samples(), now_s(), rate, tolerance_samples)

    def cancel(self) -> None:
        for stream in self._streams:
            stream.cancel()

    async def release(self) -> None:
        """Cancel what still runs, and wait until nothing of the engine is held."""
        self.cancel()
        for stream in self._streams:
            await stream.released()
        for segment in self.segments:
            segment.stream = None
        self._prepared = None
        self._streams.clear()
        self._items.clear()
