"""A spoken reply: text goes in, packets come out in order, and it ends exactly once.

``Response`` holds all state of a reply. Its text, audio and packets are in ``TextTrack``, ``AudioTrack`` and
``PacketRing``, none of which calls back; engine events and time wake one task, which lives while it speaks.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from itertools import chain, islice

from engine.api import (
    EngineError,
    EngineOverloaded,
    ErrorInfo,
    FinishReason,
    InvalidRequest,
    RequestFinished,
    RequestParked,
    RequestTooLong,
    SpeechChunk,
    SpeechError,
    SpeechEvent,
    SpeechStream,
)
from sessions.alignment.lazy_aligner import AlignmentBacklog
from sessions.alignment.uniform_aligner import UniformAligner
from sessions.audio.pacer import Pacer, PacerSettings, UnderrunCause
from sessions.audio_track import AudioOutput, AudioTrack
from sessions.checkpoint import CheckpointLog, Replay, SpokenSegment
from sessions.clock import WakeEvent, is_due, now_s
from sessions.config import AudioFormat, Markup, SpeechSettings
from sessions.errors import EngineFailed, LimitExceeded, QuotaExceeded, TextInputClosed
from sessions.events import (
    HeardText,
    MarkReached,
    MarkupWarned,
    ResponseAudio,
    ResponseEvent,
    ResponseFinished,
    ResponseStatus,
)
from sessions.metrics import Metrics
from sessions.packetizer import AudioPacket
from sessions.quotas import KeyMeter
from sessions.response_totals import ResponseTotals
from sessions.ring import PacketRing
from sessions.sample_scale import SampleScale
from sessions.session_services import SessionServices
from sessions.stall_detector import StallDetector, StallSource
from sessions.styles import StyleResolver
from sessions.text.dead_air import DeadAirRule
from sessions.text.lexicons.reader import LexiconReader, MarkupParser
from sessions.text.segmenter import SegmenterSettings
from sessions.text.ssml.inline import InlineForms
from sessions.text.ssml.parser import BreakItem, MarkItem, SsmlParser
from sessions.text.ssml.speaker_lines import SpeakerLines
from sessions.text.ssml.tokens import MarkupTokenizer, PlainTokenizer, TagTokenizer
from sessions.text_budget import TextQueue
from sessions.text_track import FlushItem, TextItem, TextSegment, TextTrack
from sessions.timeline import MAX_INLINE_ALIGN_BYTES, ResponseTimeline
from sessions.usage import UsageRecord

logger = logging.getLogger(__name__)

# Due packets that are sent per loop iteration, so that a flush does not delay other responses.
YIELD_EVERY_EVENTS = 50
# A burst reply begins no further segment while its audio is not read for so long.
MAX_UNREAD_S = 1.0
# Flushes are taken from the text when they are passed on; very many at once would hold up others.
MAX_BEGUN_ITEMS = 50
# Audio that the listener still has when the encoder is drained at the latest.
DRAIN_MARGIN_S = 0.2
MAX_DRAIN_WAIT_S = 1.0
# Time for which a terminal event waits for the record of what the response used.
MAX_USAGE_WAIT_S = 1.0


class State(Enum):
    # Takes text. The engine was given nothing: no task, no timer.
    OPEN = auto()
    # The task generates and encodes segments; text may still come.
    SPEAKING = auto()
    # All audio is in the ring; the reader takes the rest of it.
    DRAINING = auto()
    # No audio is handed over any more. The terminal event waits for the heard text.
    STOPPING = auto()
    # The terminal event is in the ring.
    ENDED = auto()


class Response:
    """Made by ``Session.create_response``. All methods belong to the session's event loop.

    The text methods, ``cancel`` and ``report_playback`` never wait. One reader gets the audio as the pace allows, by
    iteration, or by ``pop_due`` after ``attach``; the last event is ``ResponseFinished``.
    """

    def __init__(
        self,
        response_id: str,
        request_prefix: str,
        group: str,
        settings: SpeechSettings,
        services: SessionServices,
        text_queue: TextQueue,
        on_text: Callable[[Response], None],
        on_end: Callable[[Response], None],
        is_resumable: bool = False,
        key: str = "",
        replay: Replay | None = None,
        meter: KeyMeter | None = None,
        is_bulk: bool = False,
    ) -> None:
        """``on_text`` is called with each text that can be spoken; it may raise ``LimitExceeded``.

        Markup may name the voices of ``key``. A resumable response retains what it has sent, for ``resume``. One with
        a ``replay`` makes again what its client knows, and emits what follows. The engine has no
        deadline for one in bulk."""
        info, limits = services.engine.info, services.limits
        normalize = info.normalize_text if settings.normalize_text is None else settings.normalize_text
        styles = StyleResolver(settings, key, services) if settings.reads_markup else None
        needs_alignment = settings.reports_heard_text or settings.word_times or styles is not None
        make_aligner = services.make_aligner if needs_alignment else UniformAligner
        self.response_id = response_id
        self.settings = settings
        self.state = State.OPEN
        # True once only the fact that it has ended is kept.
        self.forgotten = False
        self._scale = SampleScale(settings, info.sample_rate)
        self._request_prefix = request_prefix
        self._group = group
        self._services = services
        self._text_queue = text_queue
        self._on_text = on_text
        self._on_end = on_end
        self._key = key
        self._is_resynced = replay is not None
        # Done once what the response used is recorded.
        self._recording: asyncio.Future[None] | None = None
        self._meter = meter
        self._num_charged_samples = 0
        # No deadline in the engine: the client has no lead, or its key is for bulk work.
        self._is_burst = is_bulk or settings.lead_ms is None
        self._timeline = ResponseTimeline(
            info.sample_rate, make_aligner, settings.speed, select_backlog(settings, services)
        )
        self._text = TextTrack(
            self._timeline,
            normalize,
            SegmenterSettings(max_segment_tokens=info.max_text_tokens),
            DeadAirRule(enabled=settings.avoid_dead_air),
            create_parser(settings, styles),
            replay.cuts if replay else (),
        )
        self._styles = styles
        self._ring = PacketRing(
            response_id,
            Pacer(settings.format.sample_rate, PacerSettings(lead_ms=settings.lead_ms)),
            partial(count_underrun, services.metrics),
            limits.max_audio_message_ms,
            is_resumable,
        )
        # Of another gateway, and not yet submitted.
        self._to_replay = deque(replay.segments if replay else ())
        self._num_words_to_drop = replay.received_words if replay else 0
        self._checkpoints = CheckpointLog(replay or Replay()) if settings.checkpoints else None
        if replay is not None:
            self._drop_received(replay)
        self._is_suspended = False
        self._alarm = WakeEvent()  # of the task
        self._reader = WakeEvent()
        self._wake_reader: Callable[[], None] = self._reader.set
        self._task: asyncio.Task[None] | None = None
        self._heard_task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._terminal: ResponseFinished | None = None
        # Playout position at the end, at the engine's rate.
        self._ended_at_samples = 0
        # Begun and not yet spoken to their end; the first one is being spoken.
        self._begun: deque[TextItem] = deque()
        self._streams: list[SpeechStream] = []
        self._next_check_s = math.inf
        # When silence takes the place of the next segment's sound that a flush waits for.
        self._drain_at_s = math.inf
        self._text_was_short = False
        self._stalls = StallDetector(limits)
        self._totals = ResponseTotals()
        self._num_popped = 0

    @property
    def format(self) -> AudioFormat:
        return self.settings.format

    @property
    def pre_skip_samples(self) -> int:
        """Decoded samples before the speech, at the format's rate; 0 unless the encoding is Opus."""
        return self._scale.pre_skip_samples

    @property
    def is_done(self) -> bool:
        """True once the response has ended; its only later event is ``ResponseFinished``."""
        return self.state in (State.STOPPING, State.ENDED)

    # Text in

    def start(self, text: str, text_closed: bool) -> None:
        """Start with what is known of the text, before anything is spoken of it."""
        if self._check_text_limit(text) and self._is_admitted(text):
            self._text.push(text, now_s())
            if text_closed:
                self._text.end()
            self.advance()

    def push_text(self, text: str) -> None:
        """Append text. Raises ``TextInputClosed`` after ``end_input`` or the end. Text beyond ``max_response_chars``
        fails the response (``RequestTooLong``)."""
        self._require_open("text")
        if self._check_text_limit(text) and self._is_admitted(text):
            self._text.push(text, now_s())
            self.advance()

    def flush(self) -> int:
        """Speak all text so far to its end without waiting for more; returns the number ``FlushCompleted`` will carry.
        It counts as one character. Raises ``TextInputClosed``."""
        self._require_open("flush")
        flush = self._text.flush()
        if self._check_text_limit(""):
            self.advance()
        return flush

    def change_speaker(self, speaker: str, voice: str | None) -> None:
        """Have ``voice`` speak the text that follows, or that of the response; word times name the ``speaker``.

        For responses that read markup. Raises ``TextInputClosed``."""
        assert self._styles is not None, "a response that reads no markup"
        self._require_open("voice")
        self._text.change_speaker(speaker, voice)
        self.advance()

    def end_input(self) -> None:
        """Mark the end of the text. A second call changes nothing."""
        if not self._text.closed:
            self._text.end()
            self.advance()

    def _require_open(self, param: str) -> None:
        if self.is_done:
            raise TextInputClosed(f"response {self.response_id!r} has ended", param)
        if self._text.closed:
            raise TextInputClosed(f"the text of response {self.response_id!r} has ended", param)

    def _check_text_limit(self, text: str) -> bool:
        limit, num_chars = self._services.limits.max_response_chars, self._text.num_chars + len(text)
        if num_chars > limit:
            self._fail(RequestTooLong(f"text has {num_chars} characters, max_response_chars is {limit}", "text"))
        return num_chars <= limit

    def _is_admitted(self, text: str) -> bool:
        """False, and the response has failed, if the server has no capacity for one more that speaks."""
        try:
            if text.strip():
                self._on_text(self)
            if text and self._meter is not None and not self.is_done:
                self._meter.charge_text(len(text))
        except (LimitExceeded, QuotaExceeded) as error:
            self._fail(error)
        return not self.is_done

    # Start of segments

    def advance(self) -> None:
        """Begin what text, time and audio allow by now, and wake the task for it. Idempotent; never waits."""
        had_none, wake_s = not self._begun, self._wake_s
        self._begin_due()
        if self._begun and self._task is None and not self.is_done:
            self.state = State.SPEAKING
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"speak {self._request_prefix}")
            self._task.add_done_callback(partial(_stop_cancelled, self))
        elif self.state is State.OPEN and self._text.exhausted:
            self._begin_draining()
        if had_none or self._wake_s < wake_s:
            self._alarm.set()

    def _begin_due(self) -> None:
        if self.state in (State.OPEN, State.SPEAKING):
            try:
                self._begin_items(now_s())
            except Exception as error:
                self._fail(error)

    def _begin_items(self, now: float) -> None:
        left_ms = self._ring.left_ms(now)
        self._read_text()
        if not self._is_replaying and self._text.must_close_early(left_ms, now):
            self._text.close_early()
        while self._text.waiting and self._may_begin(self._text.waiting[0], left_ms, now):
            item = self._text.pop()
            if isinstance(item, TextSegment):
                self._submit(item, now)
            self._begun.append(item)
            self._read_text()
        self._next_check_s = self._text.next_check_s(left_ms, now, is_generating=bool(self._generating))

    def _read_text(self) -> None:
        """Read on as far as needed; what this event loop iteration has no budget for is read in later ones."""
        while self._text.wants_text and (max_chars := self._text_queue.allow(self)):
            self._text_queue.spend(self._text.read(max_chars))
        if self._text.warnings:
            self._put_warnings()

    @property
    def _generating(self) -> list[TextSegment]:
        return [item for item in self._begun if isinstance(item, TextSegment)]

    @property
    def is_generating(self) -> bool:
        """True while a request of the engine is held."""
        return bool(self._generating)

    def _may_begin(self, item: TextItem, left_ms: float, now: float) -> bool:
        if isinstance(item, BreakItem) and not self._can_queue_audio:
            return False
        if not isinstance(item, TextSegment):
            return len(self._begun) < MAX_BEGUN_ITEMS
        if self._to_replay:
            has_text = item.speakable and (item.closed or not self._to_replay[0].is_text_closed)
            return self._has_capacity(now) and has_text
        return self._has_capacity(now) and self._text.is_ready(item, left_ms, now)

    def _has_capacity(self, now: float) -> bool:
        """Return whether another segment may start: one at a time, or several in burst while the client reads."""
        generating, limits = self._generating, self._services.limits
        has_sound = len(generating) < self._totals.num_segments or any(segment.has_audio for segment in generating)
        if not self._is_burst or not has_sound:
            return not generating
        # An unread reply ends its segments and then holds no slot of the engine.
        is_read = self._ring.unread_s(now) < MAX_UNREAD_S
        return len(generating) < limits.max_burst_segments and self._can_queue_audio and is_read

    @property
    def _can_queue_audio(self) -> bool:
        return self._ring.waiting_samples * 1000 < self._services.limits.max_ready_ms * self.format.sample_rate

    def _submit(self, segment: TextSegment, now: float) -> None:
        known = segment.known or (self._to_replay.popleft() if self._to_replay else SpokenSegment(segment.closed))
        segment.number, segment.known = self._totals.num_segments, known
        segment.num_bytes_to_replay = len(known.codes)
        settings = self.settings if self._styles is None else self._styles.settings_for(segment.style)
        request = settings.create_request(
            f"{self._request_prefix}/{len(self._streams)}",
            segment.text,
            known.is_text_closed,
            segment.number,
            self._group,
            self._services.limits.min_engine_lead_ms,
            known.point,
            self._is_burst,
        )
        segment.stream = self._services.engine.submit(request, self._alarm.set)
        if segment.closed and not known.is_text_closed:
            segment.stream.end_input()
        self._streams.append(segment.stream)
        self._totals.num_segments += 1
        if self._totals.first_text_s is None:
            self._totals.first_text_s = now

    # The task

    async def _run(self) -> None:
        settings, services = self.settings, self._services
        try:
            rate = services.engine.info.sample_rate
            await self._speak(
                AudioTrack(
                    settings.format,
                    rate,
                    services.encoders,
                    settings.speed,
                    self._styles is not None,
                    services.watermark,
                )
            )
        except Exception as error:
            self._fail(error)
        finally:
            if self.state is State.SPEAKING:  # the event loop is being torn down
                self._stop(ResponseStatus.CANCELLED)
            await self._release_streams()

    async def _speak(self, audio: AudioTrack) -> None:
        """Speak what has begun, in order, until all is spoken or the state changes."""
        while self.state is State.SPEAKING:
            item = self._begun[0] if self._begun else None
            if item is None and self._text.exhausted:
                self._put(await audio.finish(), audio)
                self._begin_draining()
            elif isinstance(item, FlushItem):
                await self._apply_flush(item, audio)
            elif isinstance(item, BreakItem):
                self._put(await audio.insert_break(item.duration_ms, self.settings.speed), audio)
                self._begun.popleft()
            elif isinstance(item, MarkItem):
                self._put_mark(item, audio.num_engine_samples)
                self._begun.popleft()
            elif item is not None and item.spoken.start_sample is None:
                await self._begin_segment(item, audio)
            elif item is not None and (event := _next_event(item)) is not None:
                await self._apply_event(item, event, audio)
            elif self._is_due(self._drain_at_s):
                await self._drain_flush(item, audio)
            else:
                self._text_was_short |= item is None and self._text.is_starving(())
                await self._alarm.wait(until_s=self._wake_s)
                if not self._is_due(self._next_check_s):
                    continue
            self._begin_due()

    @property
    def _wake_s(self) -> float:
        """Return the time of the next change that no event announces; infinite if there is none."""
        return min(self._next_check_s, self._drain_at_s)

    @staticmethod
    def _is_due(moment_s: float) -> bool:
        return moment_s != math.inf and is_due(moment_s, now_s())

    async def _apply_flush(self, item: FlushItem, audio: AudioTrack) -> None:
        is_segment_next = len(self._begun) > 1 and isinstance(self._begun[1], TextSegment)
        self._put_all(await audio.flush(item, is_segment_next), audio)
        self._begun.popleft()
        await asyncio.sleep(0)

    async def _begin_segment(self, segment: TextSegment, audio: AudioTrack) -> None:
        self._put(await audio.begin_segment(segment.spoken.push, segment.style), audio)
        segment.spoken.start_sample = audio.num_engine_samples
        if audio.has_pending_flush:
            left_s = self._ring.left_ms(now_s()) / 1000
            self._drain_at_s = now_s() + min(max(left_s - DRAIN_MARGIN_S, 0.0), MAX_DRAIN_WAIT_S)
        self._report_playback_to_engine()

    async def _drain_flush(self, segment: TextSegment | None, audio: AudioTrack) -> None:
        """Complete a flush with silence: the next segment's first sound is late."""
        self._drain_at_s = math.inf
        self._put_all(await audio.complete_flush(), audio)
        if segment is not None:
            segment.spoken.start_sample = audio.num_engine_samples

    async def _apply_event(self, segment: TextSegment, event: SpeechEvent, audio: AudioTrack) -> None:
        self._totals.num_engine_events += 1
        match event:
            case SpeechChunk():
                self._drain_at_s = math.inf
                await self._apply_chunk(segment, event, audio)
            case RequestParked():
                segment.is_parked = not segment.closed
                self._text_was_short = True
            case RequestFinished():
                self._drain_at_s = math.inf
                await self._apply_segment_end(segment, event, audio)

    async def _apply_chunk(self, segment: TextSegment, chunk: SpeechChunk, audio: AudioTrack) -> None:
        segment.has_audio = True
        segment.num_bytes_to_replay = max(segment.num_bytes_to_replay - len(chunk.codes), 0)
        self._put_checkpoint(segment, chunk.codes)
        if not self._totals.num_samples and self._services.limits.flush_first_packet:
            first, chunk = audio.split_first_packet(chunk)
            self._put_all(await audio.push(first), audio)
            await asyncio.sleep(0)  # now it leaves
        elif self._services.limits.one_chunk_per_loop_iteration:
            await self._services.encoders.wait_turn()
        self._put_all(await audio.push(chunk), audio)
        segment.spoken.num_trimmed = audio.num_trimmed
        self._put_words()
        self._report_playback_to_engine()

    async def _apply_segment_end(self, segment: TextSegment, end: RequestFinished, audio: AudioTrack) -> None:
        is_refused = end.error is not None and end.error.code == EngineOverloaded.code
        if is_refused and not self._is_suspended and self._services.evict(lambda session: session.is_generating):
            self._totals.num_segments -= 1
            self._submit(segment, now_s())
            return
        self._totals.on_segment_end(end, self.settings, self._services.metrics)
        if end.reason in (FinishReason.ERROR, FinishReason.CANCELLED):
            error = end.error or EngineError(f"the engine ended with {end.reason}").info
            raise EngineFailed(error.code, error.message, error.param, error.retry_after_ms)
        self._put_checkpoint(segment, b"", is_complete=True)
        self._put_all(await audio.end_segment(self._styles is not None and self._is_break_next), audio)
        segment.spoken.finish()
        self._put_words()
        self._begun.popleft()
        self._text.end_segment(segment)

    @property
    def _is_break_next(self) -> bool:
        """True if silence follows the segment that is being spoken."""
        following = islice(chain(self._begun, self._text.waiting), 1, None)
        return isinstance(next((item for item in following if not isinstance(item, MarkItem)), None), BreakItem)

    def _put_all(self, outputs: Iterable[AudioOutput], audio: AudioTrack) -> None:
        for output in outputs:
            if not isinstance(output, FlushItem):
                self._put(output, audio)
            elif self.state is State.SPEAKING:
                self._ring.put_flush(output.flush)
                self._wake_reader()

    def _put(self, packets: Sequence[AudioPacket], audio: AudioTrack) -> None:
        """Hand packets to the reader; those that were encoded while the response stopped are dropped."""
        self._totals.num_samples = audio.num_samples
        if not packets or self.state is not State.SPEAKING:
            return
        cause = UnderrunCause.TEXT if self._text_was_short else UnderrunCause.ENGINE
        self._ring.put(packets, now_s(), cause)
        self._text_was_short = False
        self._wake_reader()

    def _put_words(self) -> None:
        """Put the words and marks whose times are known since the last call."""
        if self.state is State.SPEAKING and self.settings.word_times:
            words = self._timeline.new_words()
            lacking = words[self._num_words_to_drop :]
            self._num_words_to_drop = max(self._num_words_to_drop - len(words), 0)
            if lacking:
                self._ring.put_words(lacking)
                self._wake_reader()
        for mark, sample in self._timeline.new_marks():
            self._put_mark(mark, sample)

    def _put_checkpoint(self, segment: TextSegment, codes: bytes, is_complete: bool = False) -> None:
        log = self._checkpoints
        if log is None or segment.known is None or self.state is not State.SPEAKING:
            return
        index = log.index
        found = log.add(segment.number, segment.known.is_text_closed, codes, self._text.cuts, is_complete)
        if found is not None:
            self._ring.put_checkpoint(index, found.encode())
            self._wake_reader()

    def _put_mark(self, mark: MarkItem, engine_sample: int) -> None:
        """``engine_sample`` counts at the engine's rate."""
        if self.state is State.SPEAKING:
            sample, time_ms = self._scale.from_engine(engine_sample)
            self._ring.put_event(MarkReached(self.response_id, mark.name, sample, time_ms))
            self._wake_reader()

    def _put_warnings(self) -> None:
        for warning in self._text.warnings:
            self._ring.put_event(MarkupWarned(self.response_id, warning.code, warning.element, warning.raw_start))
        self._text.warnings.clear()
        self._wake_reader()

    def _begin_draining(self) -> None:
        if self._ring.lacks_received:
            found = "received_samples is more than the audio of the response"
            self._fail(InvalidRequest(f"{found}, which has {self._totals.num_samples} samples", "received_samples"))
        if not self.is_done:
            self.state = State.DRAINING
            self._wake_reader()

    async def _release_streams(self) -> None:
        """Cancel what still runs, and wait until nothing of the engine is held."""
        for stream in self._streams:
            stream.cancel()
        for stream in self._streams:
            await stream.released()
        for segment in self._generating:
            segment.stream = None
        self._streams.clear()
        self._begun.clear()

    # Audio out

    def __aiter__(self) -> Response:
        return self

    async def __anext__(self) -> ResponseEvent:
        """The next event, once it is due.

        Await it directly: in a task of its own, what it returned may already be fenced by a ``cancel`` when the
        awaiting side sees it (then check ``is_done``).
        """
        if self._has_popped_end:
            raise StopAsyncIteration
        self._num_popped += 1
        if self._num_popped % YIELD_EVERY_EVENTS == 0:
            await asyncio.sleep(0)
        while (event := self.pop_due(now_s())) is None:
            await self._reader.wait(until_s=self._ring.due_s(now_s()))
        return event

    def attach(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called when ``pop_due`` may return something before ``due_s``."""
        self._wake_reader = wake

    def due_s(self, now: float) -> float | None:
        """Return when ``pop_due`` returns the next event; ``None`` while nothing waits."""
        return self._ring.due_s(now)

    def pop_due(self, now: float) -> ResponseEvent | None:
        """Return the next event if it is due by ``now``. After the end it first looks for what was heard."""
        if self.state is State.DRAINING and self._ring.is_empty:
            self._stop(ResponseStatus.COMPLETED)
        if self.state is State.STOPPING and self._heard_task is None:
            self._close()
        event = self._ring.pop_due(now)
        if isinstance(event, ResponseAudio):
            self._on_sent(now)
        return event

    @property
    def _has_popped_end(self) -> bool:
        return self._ring.is_closed and self._ring.is_empty

    def _on_sent(self, now: float) -> None:
        if self._is_burst or self._text.is_break_next:
            self.advance()
        self._charge_audio()
        metrics = self._services.metrics
        metrics.observe("lead_seconds", self._ring.lead_ms(now) / 1000)
        self._totals.on_audio_sent(now, metrics)

    def _charge_audio(self) -> None:
        """Count what was sent for the first time."""
        if self._meter is not None and self._meter.counts_audio:
            num_samples = max(self._ring.num_sent_samples - self._num_charged_samples, 0)
            num_ms = 1000 * num_samples // self.format.sample_rate
            self._num_charged_samples += num_ms * self.format.sample_rate // 1000
            self._meter.charge_audio(num_ms)

    # A lost connection

    @property
    def num_text_chars(self) -> int:
        """Characters of text received."""
        return self._text.num_text_chars

    @property
    def num_flushes(self) -> int:
        return self._text.num_flushes

    @property
    def next_sample(self) -> int:
        """Position of the next audio message, as ``ResponseAudio.start_sample`` counts."""
        return self._ring.next_sample

    def suspend(self) -> None:
        """Stop the playback clock until ``resume``. Nothing is cancelled; the engine works until its lead is full."""
        self._is_suspended = True
        self._ring.freeze(now_s())
        self._report_playback_to_engine()

    def resume(self, received_samples: int, played_ms: float | None) -> None:
        """Go back to what a reader with ``received_samples`` lacks; Opus begins earlier, by a preroll.

        Where that was never sent, or is retained no more, the response is cancelled; of one that has ended, only the
        terminal event is repeated."""
        try:
            self._rewind(received_samples, played_ms)
        except ValueError:
            self.cancel(played_ms)
            self._rewind(self._ring.num_sent_samples, played_ms)
            self._ring.skip_to_end()
        self._is_suspended = False
        self._stalls = StallDetector(self._services.limits)
        self._report_playback_to_engine()
        self.advance()
        self._wake_reader()

    def _rewind(self, received_samples: int, played_ms: float | None) -> None:
        played_samples = self._scale.received_or_played(received_samples, played_ms)
        self._ring.rewind(received_samples, played_samples, self._scale.preroll_samples, now_s())

    def _drop_received(self, replay: Replay) -> None:
        """Begin where the reader of another gateway was cut off."""
        played_samples = self._scale.received_or_played(replay.received_samples, replay.played_ms)
        self._ring.drop_received(
            replay.received_samples, played_samples, self._scale.preroll_samples, replay.received_flushes, now_s()
        )

    @property
    def _is_replaying(self) -> bool:
        """Return whether what is known is still being made again."""
        is_speaking_again = any(segment.num_bytes_to_replay for segment in self._generating)
        return bool(self._to_replay) or is_speaking_again or self._text.has_cuts_to_make

    # Playback and heard text

    def report_playback(self, played_ms: float) -> None:
        """Set the listener's position to the client's count; the playback clock runs on from there."""
        self._apply_playback_report(played_ms)
        self._report_playback_to_engine()
        self.advance()
        self._wake_reader()

    def heard(self, played_ms: float | None = None) -> HeardText:
        """Return what the listener has heard; works after the end too. Speech that was not aligned yet is aligned
        here, 3 ms a second of it."""
        self._apply_playback_report(played_ms)
        return self._timeline.heard_text(self._played_engine_samples())

    async def query_heard(self, played_ms: float | None = None) -> HeardText:
        """The same as of now, aligned in a thread; estimated if that takes longer than ``heard_text_timeout_ms``."""
        self._apply_playback_report(played_ms)
        return await self._find_heard_text(self._played_engine_samples())

    def discard_timeline(self) -> None:
        """Drop what heard text needs; no query comes after the terminal event."""
        self.forgotten = self._has_popped_end
        if self.forgotten:
            self._timeline.discard()

    def _apply_playback_report(self, played_ms: float | None) -> None:
        if played_ms is not None and math.isfinite(played_ms):
            self._ring.report(self._scale.from_ms(played_ms), now_s())

    def _report_playback_to_engine(self) -> None:
        segment = self._begun[0] if self._begun else None
        if isinstance(segment, TextSegment) and not self._is_burst and self.state is State.SPEAKING:
            rate = self._services.engine.info.sample_rate
            tolerance_samples = rate * self._services.limits.playback_tolerance_ms / 1000
            segment.report_playback(self._played_engine_samples(), now_s(), rate, tolerance_samples)

    def _played_engine_samples(self) -> int:
        """Return the listener's position at the engine's rate."""
        return self._scale.to_engine(self._ring.played_samples(now_s()))

    # The end

    def cancel(self, played_ms: float | None = None) -> None:
        """Stop. When this returns no audio of the response is emitted any more; engine work is being freed.

        ``played_ms`` is what the listener has heard by the client's count; the default is the playback clock's.
        After the end it only drops audio that is sent again.
        """
        if not self.is_done:
            self._apply_playback_report(played_ms)
            self._stop(ResponseStatus.CANCELLED)
        self._ring.skip_to_end()

    @property
    def is_released(self) -> bool:
        """True once the response has ended and holds nothing in the engine."""
        return self.is_done and (self._task is None or self._task.done())

    async def released(self) -> None:
        """Wait until the response has ended and every engine resource of it is free."""
        await self._ended.wait()
        if self._task is not None:
            await asyncio.wait([self._task])
            await self._release_streams()

    def check_timeouts(self, now: float) -> None:
        """End the response if it has waited too long for anything. To be called now and then."""
        if self.is_done:
            return
        source = self._waits_for(now)
        if self._is_suspended:
            # The engine's own clock would run on.
            self._report_playback_to_engine()
            if source is not StallSource.ENGINE:
                return
        match source:
            case StallSource.READER | StallSource.LISTENER:
                progress = self._ring.num_messages_sent
            case StallSource.WRITER:
                progress = self._text.num_chars
            case StallSource.ENGINE:
                progress = self._totals.num_segments + self._totals.num_engine_events
        if error := self._stalls.check(source, progress, now):
            self._fail(error)

    def _waits_for(self, now: float) -> StallSource:
        due_s = self._ring.due_s(now)
        if due_s is not None:
            return StallSource.READER if is_due(due_s, now) else StallSource.LISTENER
        if self.state is State.DRAINING:
            return StallSource.READER
        if self._text.is_starving(self._generating):
            return StallSource.WRITER
        return StallSource.LISTENER if self._ring.left_ms(now) > 0 else StallSource.ENGINE

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, SpeechError):
            logger.error("internal error in response", exc_info=error, extra={"request_id": self._request_prefix})
        self._stop(ResponseStatus.FAILED, error)

    def _stop(self, status: ResponseStatus, error: Exception | None = None) -> None:
        if self.is_done:
            return
        self._terminal = self._summarize(status, error)
        self._ended_at_samples = self._played_engine_samples()
        self.state = State.STOPPING
        if status is not ResponseStatus.COMPLETED:  # else all was sent, and a lost connection may lack the last of it
            self._ring.clear()
        self._timeline.stop()
        self._text.stop()
        self._text_queue.leave(self)
        for stream in self._streams:
            stream.cancel()
        self._alarm.set()
        self._wake_reader()
        self._ended.set()
        self._services.metrics.inc("responses_total", status=status)
        self._record_usage(self._terminal)
        self._on_end(self)

    def _record_usage(self, end: ResponseFinished) -> None:
        if self._services.usage is not None:
            record = UsageRecord(
                id=self._request_prefix,
                key=self._key,
                status=end.status,
                code=end.error.code if end.error else None,
                chars=self._text.num_text_chars,
                audio_ms=round(end.audio_ms),
                frames=end.num_frames,
                resynced=self._is_resynced,
            )
            self._recording = self._services.usage.record(record)

    def _summarize(self, status: ResponseStatus, error: Exception | None) -> ResponseFinished:
        """Return the terminal event as if all was heard; heard text is found when it is read."""
        handed_over = max(self._ring.num_sent_samples - self.pre_skip_samples, 0)
        audio_samples = min(handed_over, self._totals.num_samples)
        audio_ms = 1000 * audio_samples / self.format.sample_rate
        return ResponseFinished(
            self.response_id,
            status,
            audio_samples=audio_samples,
            audio_ms=audio_ms,
            heard=self._timeline.full_heard_text(audio_ms),
            nothing_spoken=status is ResponseStatus.COMPLETED and audio_samples == 0,
            first_audio_ms=self._totals.first_audio_ms,
            num_text_tokens=self._totals.num_text_tokens,
            num_frames=self._totals.num_frames,
            error=None if error is None else ErrorInfo.from_error(error),
            has_runaway=self._totals.has_runaway,
        )

    def _close(self) -> None:
        """Put the terminal event in the ring, in a later iteration if its heard text takes long to find."""
        assert self._terminal is not None
        if self._recording is not None:
            self._heard_task = asyncio.get_running_loop().create_task(self._close_when_recorded(self._recording))
        elif self._terminal.status is ResponseStatus.COMPLETED:
            self._put_terminal(self._terminal.heard)
        elif self._timeline.num_pending_bytes(self._ended_at_samples) <= MAX_INLINE_ALIGN_BYTES:
            self._put_terminal(self._timeline.heard_text(self._ended_at_samples))
        else:
            self._heard_task = asyncio.get_running_loop().create_task(self._close_when_aligned())

    async def _close_when_recorded(self, recording: asyncio.Future[None]) -> None:
        assert self._terminal is not None
        await asyncio.wait([recording], timeout=MAX_USAGE_WAIT_S)
        is_all_heard = self._terminal.status is ResponseStatus.COMPLETED
        self._put_terminal(
            self._terminal.heard if is_all_heard else await self._find_heard_text(self._ended_at_samples)
        )

    async def _close_when_aligned(self) -> None:
        self._put_terminal(await self._find_heard_text(self._ended_at_samples))

    async def _find_heard_text(self, played_samples: int) -> HeardText:
        max_wait_s = self._services.limits.heard_text_timeout_ms / 1000
        return await self._timeline.find_heard_text(played_samples, self._services.aligners, max_wait_s)

    def _put_terminal(self, heard: HeardText) -> None:
        assert self._terminal is not None
        self._ring.close(replace(self._terminal, heard=heard))
        self.state = State.ENDED
        self._wake_reader()


def create_parser(settings: SpeechSettings, styles: StyleResolver | None) -> MarkupParser | None:
    """Return what reads the text before it is normalized; ``None`` if nothing is to be read."""
    if styles is None and not settings.lexicons:
        return None
    parser = SsmlParser(None if styles is None else styles.context, create_tokenizer(settings))
    return LexiconReader(parser, settings.lexicons, settings.language) if settings.lexicons else parser


def create_tokenizer(settings: SpeechSettings) -> TagTokenizer:
    tokenizer: TagTokenizer = MarkupTokenizer() if settings.markup is Markup.SSML else PlainTokenizer()
    if settings.inline_forms:
        tokenizer = InlineForms(settings.inline_forms, tokenizer)
    return SpeakerLines(tokenizer, settings.speakers) if settings.speakers else tokenizer


def select_backlog(settings: SpeechSettings, services: SessionServices) -> AlignmentBacklog | None:
    """Return the backlog where speech waits for alignment; ``None`` aligns it at once."""
    if settings.word_times or not settings.reports_heard_text:
        return None
    return services.idle_backlog if settings.align_eagerly else services.backlog


def count_underrun(metrics: Metrics, cause: UnderrunCause) -> None:
    metrics.inc("audio_underruns_total", cause=cause)


def _next_event(segment: TextSegment) -> SpeechEvent | None:
    assert segment.stream is not None, "a segment that has not begun"
    return segment.stream.next_event()


def _stop_cancelled(response: Response, _: asyncio.Task[None]) -> None:
    """End a response whose task was cancelled before it ran."""
    response._stop(ResponseStatus.CANCELLED) if response.state is State.SPEAKING else None
