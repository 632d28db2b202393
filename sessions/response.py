"""A spoken reply: text goes in, packets come out in order, and it ends exactly once.

``Response`` holds all state of a reply. Its text, audio and packets are in ``TextTrack``, ``SpeakingQueue``,
``AudioProducer`` and ``ResponseOutput``, its waits in ``ResponseWatch``, its quotas in ``ResponseAccount``. None of
them calls back; engine events and time wake one task, which lives while it speaks.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto
from functools import partial

from engine.api import InvalidRequest, RequestTooLong, SpeechError
from sessions.audio_producer import AudioProducer
from sessions.audio_track import AudioTrack
from sessions.checkpoint import Replay
from sessions.clock import WakeEvent, is_due, now_s
from sessions.config import AudioFormat, ResponseParams
from sessions.errors import LimitExceeded, QuotaExceeded, TextInputClosed
from sessions.events import HeardText, ResponseAudio, ResponseEvent, ResponseFinished, ResponseStatus
from sessions.response_output import ResponseOutput
from sessions.response_totals import ResponseTotals
from sessions.session_services import SessionServices
from sessions.speaking_queue import SpeakingQueue
from sessions.stall_detector import ResponseWatch
from sessions.styles import StyleResolver, create_text_track
from sessions.text.ssml.items import BreakItem
from sessions.text_budget import TextQueue
from sessions.text_items import TextItem, TextSegment
from sessions.timeline import MAX_INLINE_ALIGN_BYTES
from sessions.tracing import ResponseTimes
from sessions.usage import ResponseAccount

logger = logging.getLogger(__name__)

# Due packets that are sent per loop iteration, so that a flush does not delay other responses.
YIELD_EVERY_EVENTS = 50
# A burst reply begins no further segment while its audio is not read for so long.
MAX_UNREAD_S = 1.0


class State(Enum):
    # Takes text. The engine was given none of it, at most a prepared request: no task, no timer.
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
        params: ResponseParams,
        services: SessionServices,
        account: ResponseAccount,
        text_queue: TextQueue,
        on_text: Callable[[Response], None],
        on_end: Callable[[Response], None],
    ) -> None:
        """``on_text`` is called with each text that can be spoken; it may raise ``LimitExceeded``.

        Markup may name the voices of the account's key."""
        settings, replay = params.settings, params.replay or Replay()
        styles = StyleResolver(settings, account.key, services) if settings.reads_markup else None
        self.response_id = params.response_id
        self.settings = settings
        self.state = State.OPEN
        # True once only the fact that it has ended is kept.
        self.forgotten = False
        self._request_prefix = params.request_prefix
        self._is_burst = params.is_burst
        self._services = services
        self._account = account
        self._text_queue = text_queue
        self._on_text, self._on_end = on_text, on_end
        self._timeline = services.create_timeline(settings)
        self._text = create_text_track(settings, styles, services.engine.info, self._timeline, replay.cuts)
        self._totals = ResponseTotals(ResponseTimes(now_s()))
        self._output = ResponseOutput(params, services, self._timeline, self._totals.times)
        self._ring = self._output.ring
        self._alarm = WakeEvent()  # of the task
        self._queue = SpeakingQueue(params, services, styles, self._alarm.set)
        self._task: asyncio.Task[None] | None = None
        # Of the task.
        self._producer: AudioProducer | None = None
        self._heard_task: asyncio.Task[None] | None = None
        # There was text that is spoken, and the server has capacity for it.
        self._has_words = False
        self._ended = asyncio.Event()
        self._terminal: ResponseFinished | None = None
        # Playout position at the end, at the engine's rate.
        self._ended_at_samples = 0
        self._next_check_s = math.inf
        self._watch = ResponseWatch(services.limits, self._text, self._queue, self._output, self._totals)
        self._num_popped = 0
        # When the audio was popped that is not counted yet.
        self._sent_s: float | None = None

    @property
    def format(self) -> AudioFormat:
        return self.settings.format

    @property
    def pre_skip_samples(self) -> int:
        """Decoded samples before the speech, at the format's rate; 0 unless the encoding is Opus."""
        return self._output.scale.pre_skip_samples

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
        assert self.settings.reads_markup, "a response that reads no markup"
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
                self._has_words |= any(map(str.isalnum, text))
            if text and not self.is_done:
                self._account.charge_text(len(text))
        except (LimitExceeded, QuotaExceeded) as error:
            self._fail(error)
        return not self.is_done

    # Start of segments

    def advance(self) -> None:
        """Begin what text, time and audio allow by now, and wake the task for it. Idempotent; never waits."""
        had_none, wake_s = self._queue.current is None, self._wake_s
        self._begin_due()
        if self._queue.current is not None and self._task is None and not self.is_done:
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
        if self._text.must_close_early(left_ms, now) and not self._is_replaying:
            self._text.close_early()
        if self._has_words and not (self._text.closed or self._text.waiting) and self._queue.can_prepare:
            self._queue.prepare()
        while self._text.waiting and self._may_begin(self._text.waiting[0], left_ms, now):
            item = self._text.pop()
            self._queue.begin(item)
            if isinstance(item, TextSegment):
                self._totals.on_submitted(now)
            self._read_text()
        self._next_check_s = self._text.next_check_s(left_ms, now, is_generating=bool(self._queue.segments))

    def _read_text(self) -> None:
        """Read on as far as needed; what this event loop iteration has no budget for is read in later ones."""
        while self._text.wants_text and (max_chars := self._text_queue.allow(self)):
            self._text_queue.spend(self._text.read(max_chars))
        if self._text.warnings:
            self._output.put_warnings(self._text.warnings)
            self._text.warnings.clear()

    @property
    def is_generating(self) -> bool:
        """True while a request of the engine is held."""
        return self._queue.holds_request

    def _may_begin(self, item: TextItem, left_ms: float, now: float) -> bool:
        if isinstance(item, BreakItem) and not self._can_queue_audio:
            return False
        if not isinstance(item, TextSegment):
            return not self._queue.is_full
        if known := self._queue.next_to_replay:
            has_text = item.speakable and (item.closed or not known.is_text_closed)
            return self._has_capacity(now) and has_text
        return self._has_capacity(now) and self._text.is_ready(item, left_ms, now)

    def _has_capacity(self, now: float) -> bool:
        """Return whether another segment may start: one at a time, or several in burst while the client reads."""
        num_segments, limits = len(self._queue.segments), self._services.limits
        if not self._is_burst or not self._queue.has_sounded:
            return not num_segments
        # An unread reply ends its segments and then holds no slot of the engine.
        is_read = self._ring.unread_s(now) < MAX_UNREAD_S
        return num_segments < limits.max_burst_segments and self._can_queue_audio and is_read

    @property
    def _can_queue_audio(self) -> bool:
        return self._ring.waiting_samples * 1000 < self._services.limits.max_ready_ms * self.format.sample_rate

    # The task

    async def _run(self) -> None:
        try:
            parts = (self._text, self._queue, self._output, self._totals)
            self._producer = AudioProducer(self._create_audio_track(), self.settings, self._services, *parts)
            await self._speak(self._producer)
        except Exception as error:
            self._fail(error)
        finally:
            self._producer = None
            if self.state is State.SPEAKING:  # the event loop is being torn down
                self._stop(ResponseStatus.CANCELLED)
            await self._queue.release()

    def _create_audio_track(self) -> AudioTrack:
        settings, services = self.settings, self._services
        options = (settings.speed, settings.reads_markup, services.watermark, self._ring.num_samples_to_drop)
        return AudioTrack(settings.format, services.engine.info.sample_rate, services.encoders, *options)

    async def _speak(self, producer: AudioProducer) -> None:
        """Speak what has begun, in order, until all is spoken or the state changes."""
        while self.state is State.SPEAKING:
            if self._queue.current is None and self._text.exhausted:
                await producer.finish()
                self._begin_draining()
            elif not await producer.step():
                self._output.text_was_short |= self._queue.current is None and self._text.is_starving(())
                await self._alarm.wait(until_s=self._wake_s)
                if not is_due(self._next_check_s, now_s()):
                    continue
            self._begin_due()

    @property
    def _wake_s(self) -> float:
        """Return the time of the next change that no event announces; infinite if there is none."""
        return self._next_check_s if self._producer is None else min(self._next_check_s, self._producer.drain_at_s)

    def _begin_draining(self) -> None:
        if self._ring.lacks_received:
            found = "received_samples is more than the audio of the response"
            self._fail(InvalidRequest(f"{found}, which has {self._totals.num_samples} samples", "received_samples"))
        if not self.is_done:
            self.state = State.DRAINING
            self._output.wake_reader()

    # Audio out

    def __aiter__(self) -> Response:
        return self

    async def __anext__(self) -> ResponseEvent:
        """The next event, once it is due.

        Await it directly: in a task of its own, what it returned may already be fenced by a ``cancel`` when the
        awaiting side sees it (then check ``is_done``).
        """
        if self._output.has_popped_end:
            raise StopAsyncIteration
        self._num_popped += 1
        if self._num_popped % YIELD_EVERY_EVENTS == 0:
            await asyncio.sleep(0)
        while (event := self.pop_due(now_s())) is None:
            await self._output.wait()
        return event

    def attach(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called when ``pop_due`` may return something before ``due_s``."""
        self._output.attach(wake)

    def due_s(self, now: float) -> float | None:
        """Return when ``pop_due`` returns the next event; ``None`` while nothing waits."""
        return self._ring.due_s(now)

    def pop_due(self, now: float) -> ResponseEvent | None:
        """Return the next event if it is due by ``now``. After the end it first looks for what was heard."""
        if self._sent_s is not None:
            self._on_sent()
            if self._is_burst or self._text.is_break_next:
                self.advance()
        if self.state is State.DRAINING and self._ring.is_empty:
            self._stop(ResponseStatus.COMPLETED)
        if self.state is State.STOPPING and self._heard_task is None:
            self._close()
        event = self._ring.pop_due(now)
        if isinstance(event, ResponseAudio):
            self._sent_s = now
        return event

    def _on_sent(self) -> None:
        """Count the audio that was popped last. Called before the next event is popped, and at the end."""
        if self._sent_s is None:
            return
        now, self._sent_s = self._sent_s, None
        self._account.charge_audio(self._ring.num_sent_samples, self.format.sample_rate)
        metrics = self._services.metrics
        metrics.observe("lead_seconds", self._ring.lead_ms(now) / 1000)
        self._totals.on_audio_sent(now, metrics)

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
        self._output.suspend()
        self._queue.report_playback(self._output)

    def resume(self, received_samples: int, played_ms: float | None) -> None:
        """Go back to what a reader with ``received_samples`` lacks; Opus begins earlier, by a preroll.

        Where that was never sent, or is retained no more, the response is cancelled; of one that has ended, only the
        terminal event is repeated."""
        try:
            self._output.rewind(received_samples, played_ms)
        except ValueError:
            self.cancel(played_ms)
            self._output.rewind(self._ring.num_sent_samples, played_ms)
            self._ring.skip_to_end()
        self._watch.reset()
        self._queue.report_playback(self._output)
        self.advance()
        self._output.wake_reader()

    @property
    def _is_replaying(self) -> bool:
        """Return whether what is known is still being made again."""
        return self._queue.is_replaying or self._text.has_cuts_to_make

    # Playback and heard text

    def report_playback(self, played_ms: float) -> None:
        """Set the listener's position to the client's count; the playback clock runs on from there."""
        self._output.report_playback(played_ms)
        self._queue.report_playback(self._output)
        self.advance()
        self._output.wake_reader()

    def heard(self, played_ms: float | None = None) -> HeardText:
        """Return what the listener has heard; works after the end too. Speech that was not aligned yet is aligned
        here, 3 ms a second of it."""
        self._output.report_playback(played_ms)
        return self._timeline.heard_text(self._output.played_engine_samples())

    async def query_heard(self, played_ms: float | None = None) -> HeardText:
        """The same as of now, aligned in a thread; estimated if that takes longer than ``heard_text_timeout_ms``."""
        self._output.report_playback(played_ms)
        return await self._find_heard_text(self._output.played_engine_samples())

    def discard_timeline(self) -> None:
        """Drop what heard text needs; no query comes after the terminal event."""
        self.forgotten = self._output.has_popped_end
        if self.forgotten:
            self._timeline.discard()

    # The end

    def cancel(self, played_ms: float | None = None) -> None:
        """Stop. When this returns no audio of the response is emitted any more; engine work is being freed.

        ``played_ms`` is what the listener has heard by the client's count; the default is the playback clock's.
        After the end it only drops audio that is sent again.
        """
        if not self.is_done:
            self._output.report_playback(played_ms)
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
            await self._queue.release()

    def check_timeouts(self, now: float) -> None:
        """End the response if it has waited too long for anything. To be called now and then."""
        if self.is_done:
            return
        if self._output.is_suspended:
            # The engine's own clock would run on.
            self._queue.report_playback(self._output)
        if error := self._watch.check(self.state is State.DRAINING, now):
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, SpeechError):
            logger.error("internal error in response", exc_info=error, extra={"request_id": self._request_prefix})
        self._stop(ResponseStatus.FAILED, error)

    def _stop(self, status: ResponseStatus, error: Exception | None = None) -> None:
        if self.is_done:
            return
        self._on_sent()
        num_sent = max(self._ring.num_sent_samples - self.pre_skip_samples, 0)
        self._terminal = self._totals.summarize(
            self.response_id, status, error, num_sent, self.format.sample_rate, self._timeline
        )
        self._ended_at_samples = self._output.played_engine_samples()
        self.state = State.STOPPING
        # Of a completed response all was sent, and a lost connection may lack the last of it.
        self._output.stop(drops_unsent=status is not ResponseStatus.COMPLETED)
        self._timeline.stop()
        self._text.stop()
        self._text_queue.leave(self)
        self._queue.cancel()
        if self._task is None and self._queue.holds_streams:
            self._task = asyncio.get_running_loop().create_task(self._queue.release(), name="release a request")
        self._alarm.set()
        self._output.wake_reader()
        self._ended.set()
        self._services.metrics.inc("responses_total", status=status)
        self._totals.times.ended_s = now_s()
        self._account.record(self._terminal, self._text.num_text_chars, self._totals.times)
        self._on_end(self)

    def _close(self) -> None:
        """Put the terminal event in the ring, in a later iteration if that has to wait."""
        assert self._terminal is not None
        if self._account.is_recording:
            self._heard_task = asyncio.get_running_loop().create_task(self._close_later(self._terminal))
        elif self._terminal.status is ResponseStatus.COMPLETED:
            self._put_terminal(self._terminal)
        elif self._timeline.num_pending_bytes(self._ended_at_samples) <= MAX_INLINE_ALIGN_BYTES:
            self._put_terminal(replace(self._terminal, heard=self._timeline.heard_text(self._ended_at_samples)))
        else:
            self._heard_task = asyncio.get_running_loop().create_task(self._close_later(self._terminal))

    async def _close_later(self, terminal: ResponseFinished) -> None:
        await self._account.recorded()
        if terminal.status is not ResponseStatus.COMPLETED:
            terminal = replace(terminal, heard=await self._find_heard_text(self._ended_at_samples))
        self._put_terminal(terminal)

    async def _find_heard_text(self, played_samples: int) -> HeardText:
        max_wait_s = self._services.limits.heard_text_timeout_ms / 1000
        return await self._timeline.find_heard_text(played_samples, self._services.aligners, max_wait_s)

    def _put_terminal(self, terminal: ResponseFinished) -> None:
        self.state = State.ENDED
        self._output.close(terminal)


def _stop_cancelled(response: Response, _: asyncio.Task[None]) -> None:
    """End a response whose task was cancelled before it ran."""
    response._stop(ResponseStatus.CANCELLED) if response.state is State.SPEAKING else None
