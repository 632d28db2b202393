"""What a response hands to its reader, and how far the listener is in it.

Audio, words, marks, checkpoints and the terminal event go into the ring in order, and the reader is woken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from sessions.audio.pacer import Pacer, PacerSettings, UnderrunCause
from sessions.checkpoint import CheckpointLog, Replay
from sessions.clock import WakeEvent, now_s
from sessions.events import MarkReached, MarkupWarned
from sessions.ring import PacketRing
from sessions.sample_scale import SampleScale
from sessions.text_items import FlushItem

if TYPE_CHECKING:
    from sessions.audio_track import AudioOutput
    from sessions.checkpoint import EarlyCut
    from sessions.config import ResponseParams
    from sessions.events import ResponseFinished
    from sessions.metrics import Metrics
    from sessions.packetizer import AudioPacket
    from sessions.session_services import SessionServices
    from sessions.text.ssml.items import MarkItem
    from sessions.text.ssml.tokens import MarkupWarning
    from sessions.text_items import TextSegment
    from sessions.timeline import ResponseTimeline
    from sessions.tracing import ResponseTimes


class ResponseOutput:
    """Owns the ring: others read it, and put what they have made here."""

    def __init__(
        self, params: ResponseParams, services: SessionServices, timeline: ResponseTimeline, times: ResponseTimes
    ) -> None:
        """A replay drops what its reader has."""
        settings, replay = params.settings, params.replay or Replay()
        self.scale = SampleScale(settings, services.engine.info.sample_rate)
        self.ring = PacketRing(
            params.response_id,
            Pacer(settings.format.sample_rate, PacerSettings(lead_ms=settings.lead_ms)),
            UnderrunCounter(services.metrics).count,
            services.limits.max_audio_message_ms,
            params.is_resumable,
        )
        # Text was missing since the last packets.
        self.text_was_short = False
        self._response_id = params.response_id
        self._timeline = timeline
        self._times = times
        self._has_word_times = settings.word_times
        self._checkpoints = CheckpointLog(replay) if settings.checkpoints else None
        self._num_words_to_drop = replay.received_words
        self.is_stopped = False
        # The reader is gone, and may come back.
        self.is_suspended = False
        self._reader = WakeEvent()
        self._wake_reader: Callable[[], None] = self._reader.set
        if params.replay is not None:
            self._drop_received(params.replay)

    # Entries. What was made while the response stopped is dropped.

    def put_audio(self, outputs: Iterable[AudioOutput]) -> None:
        for output in outputs:
            if isinstance(output, FlushItem):
                if not self.is_stopped:
                    self.ring.put_flush(output.flush)
                    self.wake_reader()
            else:
                self._put_packets(output)

    def _put_packets(self, packets: Sequence[AudioPacket]) -> None:
        if packets and not self.is_stopped:
            cause = UnderrunCause.TEXT if self.text_was_short else UnderrunCause.ENGINE
            now = now_s()
            if self._times.first_packet_s is None:
                self._times.first_packet_s = now
            self.ring.put(packets, now, cause)
            self.text_was_short = False
            self.wake_reader()

    def put_words(self) -> None:
        """Put the words and marks whose times are known since the last call."""
        if self._has_word_times and not self.is_stopped:
            words = self._timeline.new_words()
            lacking = words[self._num_words_to_drop :]
            self._num_words_to_drop = max(self._num_words_to_drop - len(words), 0)
            if lacking:
                self.ring.put_words(lacking)
                self.wake_reader()
        for mark, sample in self._timeline.new_marks():
            self.put_mark(mark, sample)

    def put_mark(self, mark: MarkItem, engine_sample: int) -> None:
        """``engine_sample`` counts at the engine's rate."""
        if not self.is_stopped:
            sample, time_ms = self.scale.from_engine(engine_sample)
            self.ring.put_event(MarkReached(self._response_id, mark.name, sample, time_ms))
            self.wake_reader()

    def put_checkpoint(
        self, segment: TextSegment, codes: bytes, cuts: Sequence[EarlyCut], is_complete: bool = False
    ) -> None:
        """Put what the client does not know of the next ``codes`` of a segment, and of ``cuts``, all so far."""
        log = self._checkpoints
        if log is None or segment.known is None or self.is_stopped:
            return
        index = log.index
        found = log.add(segment.number, segment.known.is_text_closed, codes, cuts, is_complete)
        if found is not None:
            self.ring.put_checkpoint(index, found.encode())
            self.wake_reader()

    def put_warnings(self, warnings: Iterable[MarkupWarning]) -> None:
        for warning in warnings:
            self.ring.put_event(MarkupWarned(self._response_id, warning.code, warning.element, warning.raw_start))
        self.wake_reader()

    def stop(self, drops_unsent: bool) -> None:
        """Put nothing but the terminal event any more."""
        self.is_stopped = True
        if drops_unsent:
            self.ring.clear()

    def close(self, terminal: ResponseFinished) -> None:
        self.ring.close(terminal)
        self.wake_reader()

    # The reader

    def attach(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called when an entry may be due before ``ring.due_s``."""
        self._wake_reader = wake

    def wake_reader(self) -> None:
        self._wake_reader()

    async def wait(self) -> None:
        """Return when an entry is due, or may be."""
        await self._reader.wait(until_s=self.ring.due_s(now_s()))

    @property
    def has_popped_end(self) -> bool:
        return self.ring.is_closed and self.ring.is_empty

    # The listener

    def report_playback(self, played_ms: float | None) -> None:
        """Set the listener's position to the client's count, if it has one."""
        if played_ms is not None and math.isfinite(played_ms):
            self.ring.report(self.scale.from_ms(played_ms), now_s())

    def played_engine_samples(self) -> int:
        """Return the listener's position at the engine's rate."""
        return self.scale.to_engine(self.ring.played_samples(now_s()))

    def suspend(self) -> None:
        """Stop the playback clock until ``rewind``."""
        self.is_suspended = True
        self.ring.freeze(now_s())

    def rewind(self, received_samples: int, played_ms: float | None) -> None:
        """Go back to what a reader with ``received_samples`` lacks. Raises ``ValueError`` where that is gone."""
        played_samples = self.scale.received_or_played(received_samples, played_ms)
        self.ring.rewind(received_samples, played_samples, self.scale.preroll_samples, now_s())
        self.is_suspended = False

    def _drop_received(self, replay: Replay) -> None:
        """Begin where the reader of another gateway was cut off."""
        played_samples = self.scale.received_or_played(replay.received_samples, replay.played_ms)
        self.ring.drop_received(
            replay.received_samples, played_samples, self.scale.preroll_samples, replay.received_flushes, now_s()
        )


class UnderrunCounter:
    """Counts the underruns of a response by cause, and the response once for each cause."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._causes: set[UnderrunCause] = set()

    def count(self, cause: UnderrunCause) -> None:
        self._metrics.inc("audio_underruns_total", cause=cause)
        if cause not in self._causes:
            self._causes.add(cause)
            self._metrics.inc("underrun_responses_total", cause=cause)
