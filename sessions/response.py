"""One spoken reply: text goes in, packets come out in order, and it ends exactly once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace

from engine.api import RequestTooLong
from sessions.alignment.lazy_aligner import AlignmentBacklog
from sessions.alignment.uniform_aligner import UniformAligner
from sessions.audio.formats.registry import opus_settings
from sessions.audio.pacer import Pacer, PacerSettings, PlayoutUnderrun
from sessions.audio_producer import AudioProducer
from sessions.clock import WakeEvent, is_due, now_s
from sessions.config import AudioFormat, Encoding, SpeechSettings
from sessions.errors import LimitExceeded, TextInputClosed, error_info
from sessions.events import HeardText, ResponseAudio, ResponseEvent, ResponseFinished, ResponseStatus
from sessions.send_queue import SendQueue
from sessions.session_services import SessionServices
from sessions.stall_detector import StallDetector, StallSource
from sessions.text.segmenter import SegmenterSettings
from sessions.text_budget import TextQueue
from sessions.text_pipeline import TextPipeline
from sessions.timeline import ResponseTimeline
from sessions.weak import weak_method

# So much kept speech, a second at 24 kHz, is looked through on the event loop: 3 ms.
MAX_INLINE_ALIGN_BYTES = 96_000
# Due packets that are sent per loop iteration, so that a flush does not delay other responses.
YIELD_EVERY_EVENTS = 50
# A client's count is cut to this: thirty years, and small enough to be turned into samples.
MAX_PLAYED_MS = 1e12


def select_backlog(settings: SpeechSettings, services: SessionServices) -> AlignmentBacklog | None:
    """Where the speech waits in which words are to be found; ``None``: it does not wait."""
    if settings.word_times or not settings.reports_heard_text:
        return None
    return services.idle_backlog if settings.align_eagerly else services.backlog


class Response:
    """Made by ``Session.create_response``. All methods belong to the session's event loop.

    The text methods, ``cancel`` and ``report_playback`` never wait. Iterate, by one reader, to get the audio as the
    pace allows; the last event is ``ResponseDone``, and then the iteration stops.
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
    ) -> None:
        """``on_text`` is called with each text that can be spoken; it may raise ``LimitExceeded``."""
        info = services.engine.info
        normalize = info.normalize_text if settings.normalize_text is None else settings.normalize_text
        pacer = Pacer(settings.format.sample_rate, PacerSettings(lead_ms=settings.lead_ms))
        self.response_id = response_id
        self.settings = settings
        self._services = services
        self._on_text = on_text
        self._on_end = on_end
        is_asked = settings.reports_heard_text or settings.word_times
        make_aligner = services.make_aligner if is_asked else UniformAligner
        self._told = ResponseTimeline(
            info.sample_rate, make_aligner, settings.speed, select_backlog(settings, services)
        )
        self._script = TextPipeline(self._told, normalize, SegmenterSettings(max_segment_tokens=info.max_text_tokens))
        self._outbox = SendQueue(response_id, pacer, weak_method(self._count_underrun), services.limits.max_message_ms)
        self._reader = WakeEvent()
        self._speaker = AudioProducer(
            request_prefix,
            group,
            settings,
            services,
            self._script,
            self._outbox,
            text_queue,
            self._reader.set,
            weak_method(self._end_by),
        )
        self._terminal: ResponseFinished | None = None
        # Where the listener was then, at the engine's rate.
        self._ended_at_samples = 0
        self._num_given = 0
        self._terminal_emitted = False
        self.forgotten = False
        self._ended = asyncio.Event()
        self._first_audio_ms: float | None = None
        self._patience = StallDetector(services.limits)

    @property
    def format(self) -> AudioFormat:
        return self.settings.format

    @property
    def pre_skip_samples(self) -> int:
        """Decoded samples before the speech, at the format's rate; 0 unless the encoding is Opus."""
        return opus_settings(self.format).pre_skip_samples if self.format.encoding is Encoding.OPUS else 0

    @property
    def is_done(self) -> bool:
        """Whether it has ended; from then on its only event is ``ResponseDone``."""
        return self._terminal is not None

    def start(self, text: str, text_closed: bool) -> None:
        """Start with what is known of the text, before anything is spoken of it."""
        if self._check_text_limit(text) and self._is_admitted(text):
            self._script.push_text(text)
            if text_closed:
                self._script.end()
            self._speaker.receive_text(text)

    def push_text(self, text: str) -> None:
        """Append text. Raises ``TextInputClosed`` after ``end_input`` or the end. Text beyond ``max_response_chars``
        fails the response (``RequestTooLong``)."""
        self._require_open("text")
        if self._check_text_limit(text) and self._is_admitted(text):
            self._script.push_text(text)
            self._speaker.receive_text(text)

    def flush(self) -> int:
        """Speak all text so far to its end without waiting for more; returns the number ``FlushCompleted`` will carry.
        It counts as one character.
        Raises ``TextInputClosed``."""
        self._require_open("flush")
        flush = self._script.flush()
        if self._check_text_limit(""):
            self._speaker.advance()
        return flush

    def end_input(self) -> None:
        """No more text will come. A second call changes nothing."""
        if not self._script.closed:
            self._script.end()
            self._speaker.advance()

    def cancel(self, played_ms: float | None = None) -> None:
        """Stop. When this returns no audio of the response is emitted any more; engine work is being freed.

        ``played_ms`` is what the listener has heard by the client's count; without it the playback clock tells.
        After the end it changes nothing.
        """
        if not self.is_done:
            self._apply_playback_report(played_ms)
            self._end(ResponseStatus.CANCELLED)

    def report_playback(self, played_ms: float) -> None:
        """What the listener has heard by now, by the client's count; the playback clock runs on from there."""
        self._apply_playback_report(played_ms)
        self._speaker.report_playback()
        self._speaker.advance()
        self._reader.set()

    def heard(self, played_ms: float | None = None) -> HeardText:
        """What the listener has heard of this response; works after its end too. Speech that was not queried yet is
        looked through here, 3 ms a second of it."""
        self._apply_playback_report(played_ms)
        return self._told.heard_text(self._played_engine_samples())

    async def query_heard(self, played_ms: float | None = None) -> HeardText:
        """The same as of now, its words found in a thread; after ``heard_text_timeout_ms`` it is told roughly."""
        self._apply_playback_report(played_ms)
        return await self._compute_heard(self._played_engine_samples())

    def discard_timeline(self) -> None:
        """Drop what heard text needs; no query comes after the terminal event."""
        self.forgotten = self._terminal_emitted
        if self.forgotten:
            self._told.discard()

    def __aiter__(self) -> Response:
        return self

    async def __anext__(self) -> ResponseEvent:
        """The next event, once it is due.

        Await it directly: in a task of its own, what it returned may already be fenced by a ``cancel`` when the
        awaiting side sees it (then check ``done``).
        """
        if self._terminal_emitted:
            raise StopAsyncIteration
        self._num_given += 1
        if self._num_given % YIELD_EVERY_EVENTS == 0:
            await asyncio.sleep(0)
        while (event := self._get_due_event(now_s())) is None and self._terminal is None:
            await self._reader.wait(until_s=self._outbox.due_s(now_s()))
        return await self._pop_terminal_event() if event is None else event

    @property
    def is_released(self) -> bool:
        """Whether it has ended and nothing of the engine is held for it."""
        return self.is_done and self._speaker.is_released

    async def released(self) -> None:
        """Wait until the response has ended and every engine resource of it is free."""
        await self._ended.wait()
        await self._speaker.released()

    def check_timeouts(self, now: float) -> None:
        """End the response if it has waited too long for anyone. To be called now and then."""
        if self.is_done:
            return
        progress = {
            StallSource.READER: self._outbox.num_messages_sent,
            StallSource.LISTENER: self._outbox.num_messages_sent,
            StallSource.WRITER: self._script.num_chars,
            StallSource.ENGINE: self._speaker.num_events,
        }
        whom = self._waits_for(now)
        if error := self._patience.check(whom, progress[whom], now):
            self._end_by(error)

    def _waits_for(self, now: float) -> StallSource:
        due_s = self._outbox.due_s(now)
        if due_s is not None:
            return StallSource.READER if is_due(due_s, now) else StallSource.LISTENER
        if self._speaker.finished:
            return StallSource.READER
        if self._speaker.is_waiting_for_text:
            return StallSource.WRITER
        return StallSource.LISTENER if self._outbox.left_ms(now) > 0 else StallSource.ENGINE

    def _require_open(self, param: str) -> None:
        if self.is_done:
            raise TextInputClosed(f"response {self.response_id!r} has ended", param)
        if self._script.closed:
            raise TextInputClosed(f"the text of response {self.response_id!r} has ended", param)

    def _check_text_limit(self, text: str) -> bool:
        limit, num_chars = self._services.limits.max_response_chars, self._script.num_chars + len(text)
        if num_chars > limit:
            self._end_by(RequestTooLong(f"text has {num_chars} characters, max_response_chars is {limit}", "text"))
        return num_chars <= limit

    def _is_admitted(self, text: str) -> bool:
        """False, and the response has failed, if the server has no capacity for one more that speaks."""
        try:
            if text.strip():
                self._on_text(self)
        except LimitExceeded as error:
            self._end_by(error)
        return not self.is_done

    def _apply_playback_report(self, played_ms: float | None) -> None:
        if played_ms is not None and math.isfinite(played_ms):
            played_ms = min(max(played_ms, 0.0), MAX_PLAYED_MS)
            played_samples = int(played_ms * self.format.sample_rate / 1000) + self.pre_skip_samples
            self._outbox.report(played_samples, now_s())

    def _get_due_event(self, now: float) -> ResponseEvent | None:
        if self._terminal is None and self._speaker.finished and self._outbox.is_empty:
            self._end(ResponseStatus.COMPLETED)
        if self._terminal is not None:
            return None
        due_s = self._outbox.due_s(now)
        if due_s is None or not is_due(due_s, now):
            return None
        event = self._outbox.get_due(now)
        if isinstance(event, ResponseAudio):
            self._on_sent(now)
        return event

    def _on_sent(self, now: float) -> None:
        if self.settings.lead_ms is None:
            self._speaker.advance()
        metrics = self._services.metrics
        metrics.observe("lead_seconds", self._outbox.lead_ms(now) / 1000)
        if self._first_audio_ms is None and self._speaker.first_text_at_s is not None:
            self._first_audio_ms = 1000 * (now - self._speaker.first_text_at_s)
            metrics.observe("time_to_first_audio_seconds", self._first_audio_ms / 1000)

    def _count_underrun(self, underrun: PlayoutUnderrun) -> None:
        self._services.metrics.inc("audio_underruns_total", cause=underrun.cause)

    def _end_by(self, error: Exception | None) -> None:
        self._end(ResponseStatus.FAILED if error else ResponseStatus.CANCELLED, error)

    def _end(self, status: ResponseStatus, error: Exception | None = None) -> None:
        if self.is_done:
            return
        self._terminal = self._result(status, error)
        self._ended_at_samples = self._played_engine_samples()
        self._outbox.clear()
        self._told.stop()
        self._speaker.stop()
        self._reader.set()
        self._ended.set()
        self._services.metrics.inc("responses_total", status=status)
        self._on_end(self)

    def _result(self, status: ResponseStatus, error: Exception | None) -> ResponseFinished:
        """As if all was heard: what really was is found when the end is told."""
        handed_over = max(self._outbox.num_sent_samples - self.pre_skip_samples, 0)
        audio_samples = min(handed_over, self._speaker.num_samples)
        audio_ms = 1000 * audio_samples / self.format.sample_rate
        return ResponseFinished(
            self.response_id,
            status,
            audio_samples=audio_samples,
            audio_ms=audio_ms,
            heard=self._told.full_heard_text(audio_ms),
            nothing_spoken=status is ResponseStatus.COMPLETED and audio_samples == 0,
            first_audio_ms=self._first_audio_ms,
            num_text_tokens=self._speaker.num_text_tokens,
            num_frames=self._speaker.num_frames,
            error=None if error is None else error_info(error),
            has_runaway=self._speaker.has_runaway,
        )

    async def _pop_terminal_event(self) -> ResponseFinished:
        assert self._terminal is not None
        terminal = self._terminal
        if terminal.status is not ResponseStatus.COMPLETED:
            terminal = replace(terminal, heard=await self._compute_heard(self._ended_at_samples))
        self._terminal_emitted = True
        return terminal

    async def _compute_heard(self, played_samples: int) -> HeardText:
        """Where many end at once, with the engine, the last of them would wait a minute for the others."""
        try:
            async with asyncio.timeout(self._services.limits.max_heard_wait_ms / 1000):
                await self._align_until(played_samples)
        except TimeoutError:
            return self._told.heard_text(played_samples, roughly=True)
        return self._told.heard_text(played_samples)

    async def _align_until(self, played_samples: int) -> None:
        if self._told.num_pending_bytes(played_samples) > MAX_INLINE_ALIGN_BYTES:
            await self._services.aligners.run(lambda: self._told.align_until(played_samples))

    def _played_engine_samples(self) -> int:
        """Where the listener is, at the engine's rate."""
        played_samples = max(self._outbox.played_samples(now_s()) - self.pre_skip_samples, 0)
        engine_rate = self._services.engine.info.sample_rate
        return int(played_samples * self.settings.speed * engine_rate / self.format.sample_rate)
