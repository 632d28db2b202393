"""The contexts of one connection on a vendor's wire: commands of a dialect in, events of its contexts out."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from engine.api import SpeechError
from realtime.config import ServerConfig
from realtime.errors import RequestRefused
from realtime.option_resolver import OptionResolver
from realtime.protocol import model
from sessions.alignment.word_times import WordTime
from sessions.clock import now_s
from sessions.config import SpeechSettings
from sessions.errors import LimitExceeded, SessionClosed, SessionError
from sessions.events import FlushCompleted, HeardText, ResponseAudio, ResponseEvent, ResponseFinished, ResponseWordTimes
from sessions.response import Response
from sessions.session import Session

ContextIntent = (
    model.OpenContext
    | model.AppendText
    | model.FlushContext
    | model.EndContext
    | model.CancelContext
    | model.FinishContexts
)
TextIntent = model.AppendText | model.FlushContext | model.EndContext


@dataclass(slots=True, eq=False)
class ContextState:
    """A text that is spoken as one signal: a response, from its first text on."""

    context_id: str
    settings: SpeechSettings
    last_activity_s: float
    # Contexts of one line speak one after the other.
    track: str | None = None
    # What is to be done once it is this context's turn; ``None`` when it is.
    pending: list[TextIntent] | None = None
    # It was, when it began to wait.
    admitted: bool = False
    response: Response | None = None
    # Has all its text.
    ended: bool = False


class EventSink(Protocol):
    def __call__(self, event: model.DialectEvent, wanted: Callable[[], bool] | None = None) -> Awaitable[None]:
        """Tell the dialect, and carry out what it asks for; messages only while they are ``wanted``."""
        ...


@dataclass(slots=True, eq=False)
class ContextRegistry:
    """``act`` never waits: it gives what is to be told at once. What comes later is told by a task of ``tasks`` for
    each context that speaks."""

    session: Session
    grantor: OptionResolver
    tasks: asyncio.TaskGroup
    send_event: EventSink
    # Raises ``RequestRefused`` when nothing may begin now.
    check_can_start: Callable[[], None]
    config: ServerConfig
    # All are of one line.
    serial: bool = False
    # The client receives heard text. In a track it is aligned immediately: the next context starts once it is known.
    reports_heard_text: bool = True
    # In the order they were opened.
    _open: dict[str, ContextState] = field(default_factory=dict)
    _past: OrderedDict[str, Response] = field(default_factory=OrderedDict)
    _speaking: set[asyncio.Task[None]] = field(default_factory=set)
    _num_waiting_chars: int = 0
    _finishing: bool = False

    @property
    def num_speaking(self) -> int:
        """Open ones that hold a place."""
        return sum(context.response is not None for context in self._open.values())

    def handle(self, intent: ContextIntent) -> list[model.DialectEvent]:
        """What is to be told at once. An intent on a context that is not open changes nothing."""
        self.session.touch()
        return [*self._apply(intent), *self._finish_if_done()]

    async def query_heard(self, intent: model.QueryHeard) -> list[model.DialectEvent]:
        """Events to send once the words are found."""
        self.session.touch()
        response = self._past.get(intent.context)
        if response is None:
            return []
        heard = await response.query_heard(intent.played_ms)
        return (
            []
            if response.forgotten
            else [model.HeardReported(intent.context, heard.text, heard.remaining, heard.audio_ms)]
        )

    async def wait_idle(self, timeout_s: float) -> None:
        """Wait until every context has been told its end, or so long; but not for the task that asks."""
        if others := self._speaking - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=timeout_s)

    def idle(self, timeout_s: float, now: float) -> list[model.ContextIdle]:
        """The contexts that nothing was said to, nor by, for so long."""
        quiet = (context for context in self._open.values() if context.pending is None)
        return [
            model.ContextIdle(context.context_id) for context in quiet if now - context.last_activity_s >= timeout_s
        ]

    def _apply(self, intent: ContextIntent) -> list[model.DialectEvent]:
        match intent:
            case model.OpenContext():
                return self._begin(intent)
            case model.FinishContexts():
                self._finishing = True
                return []
        context = self._open.get(intent.context)
        if context is None:
            return []
        context.last_activity_s = now_s()
        if isinstance(intent, model.CancelContext):
            return self._cancel(context, intent.played_ms)
        return self._wait(context, intent) if context.pending is not None else self._write(context, intent)

    def _begin(self, intent: model.OpenContext) -> list[model.DialectEvent]:
        if intent.context in self._open:
            return []
        line = "" if self.serial else intent.track
        waits: list[TextIntent] | None = [] if self._is_busy(line) else None
        try:
            self._check_capacity()
            settings, warnings = self.grantor.resolve(intent.options)
            if waits is not None:
                self.check_can_start()
        except (RequestRefused, SessionError) as error:
            return [_failed(intent.context, error)]
        self._open[intent.context] = ContextState(
            intent.context, settings, now_s(), line, waits, admitted=waits is not None
        )
        return [model.ContextOpened(intent.context, warnings)]

    def _is_busy(self, line: str | None) -> bool:
        return line is not None and any(context.track == line for context in self._open.values())

    def _check_capacity(self) -> None:
        if self._finishing:
            raise SessionClosed("the connection is closing")
        if len(self._open) >= (limit := self.config.dialects.max_contexts_per_connection):
            raise LimitExceeded(f"max_contexts of a connection is {limit}")

    def _wait(self, context: ContextState, intent: TextIntent) -> list[model.DialectEvent]:
        """Keep it until the contexts before have ended."""
        assert context.pending is not None
        context.pending.append(intent)
        self._num_waiting_chars += _weight(intent)
        if self._num_waiting_chars > (limit := self.config.limits.max_response_chars):
            return self._fail(context, LimitExceeded(f"the text that waits for its turn may have {limit} characters"))
        return []

    def _write(self, context: ContextState, intent: TextIntent) -> list[model.DialectEvent]:
        if context.ended or (context.response is not None and context.response.is_done):
            return []
        match intent:
            case model.AppendText():
                return self._append(context, intent.text, intent.last)
            case model.FlushContext() if context.response is None:
                return [model.ContextFlushed(context.context_id, 0.0)]
            case model.FlushContext():
                assert context.response is not None
                context.response.flush()
                return []
            case model.EndContext():
                return self._end_text(context)

    def _append(self, context: ContextState, text: str, last: bool) -> list[model.DialectEvent]:
        if context.response is None and text.strip():
            return self._stream_context(context, text.lstrip(), last)
        if context.response is not None:
            context.response.push_text(text)
        return self._end_text(context) if last else []

    def _end_text(self, context: ContextState) -> list[model.DialectEvent]:
        context.ended = True
        if context.response is None:
            return self._leave(context, model.ContextEnded(context.context_id))
        context.response.end_input()
        return []

    def _stream_context(self, context: ContextState, text: str, last: bool) -> list[model.DialectEvent]:
        """The first text: take a place, and speak."""
        try:
            if not context.admitted:
                self.check_can_start()
            settings = replace(context.settings, reports_heard_text=self.reports_heard_text, align_eagerly=self.serial)
            response = self.session.create_response(settings=settings, text=text, text_closed=last)
        except SpeechError as error:
            return self._fail(context, error)
        context.response = response
        context.ended = last
        task = self.tasks.create_task(
            self._consume_response(context, response), name=f"voicewire context {response.response_id}"
        )
        self._speaking.add(task)
        task.add_done_callback(self._speaking.discard)
        return []

    def _cancel(self, context: ContextState, played_ms: float | None) -> list[model.DialectEvent]:
        if context.response is None:
            return self._leave(context, model.ContextEnded(context.context_id, "cancelled"))
        context.response.cancel(played_ms)
        return []

    async def _consume_response(self, context: ContextState, response: Response) -> None:
        async for event in response:
            context.last_activity_s = now_s()
            if isinstance(event, ResponseFinished):
                self._remember(context.context_id, response)
                for told in (*self._leave(context, _ended(context.context_id, event)), *self._finish_if_done()):
                    await self.send_event(told)
            else:
                for told in _to_dialect_event(context.context_id, response, event):
                    await self.send_event(told, lambda: not response.is_done)

    def _fail(self, context: ContextState, error: SpeechError) -> list[model.DialectEvent]:
        return self._leave(context, _failed(context.context_id, error))

    def _leave(self, context: ContextState, ended: model.ContextEnded) -> list[model.DialectEvent]:
        del self._open[context.context_id]
        self._apply_pending(context)
        return [ended]

    def _apply_pending(self, context: ContextState) -> list[TextIntent]:
        waits, context.pending = context.pending or [], None
        self._num_waiting_chars -= sum(map(_weight, waits))
        return waits

    def _finish_if_done(self) -> list[model.DialectEvent]:
        """Whose turn is it, and has everything ended?"""
        told = [event for context in self._is_current() for event in self._drain_pending(context)]
        if self._finishing and not self._open:
            self._finishing = False
            told.append(model.AllContextsEnded())
        return told

    def _is_current(self) -> Iterator[ContextState]:
        while (first := self._next_pending()) is not None:
            yield first

    def _next_pending(self) -> ContextState | None:
        """First in its track."""
        busy: set[str | None] = {None}
        for context in self._open.values():
            if context.track not in busy and context.pending is not None:
                return context
            busy.add(context.track)
        return None

    def _drain_pending(self, context: ContextState) -> list[model.DialectEvent]:
        context.last_activity_s = now_s()
        return [event for intent in self._apply_pending(context) for event in self._apply(intent)]

    def _remember(self, context_id: str, response: Response) -> None:
        self._past[context_id] = response
        self._past.move_to_end(context_id)
        if len(self._past) > self.config.limits.max_retained_responses:
            self._past.popitem(last=False)


def _weight(intent: TextIntent) -> int:
    return 1 + len(intent.text) if isinstance(intent, model.AppendText) else 1


def _to_dialect_event(context_id: str, response: Response, event: ResponseEvent) -> Iterator[model.DialectEvent]:
    def ms(sample: int) -> float:
        return max(1000 * (sample - response.pre_skip_samples) / response.format.sample_rate, 0.0)

    match event:
        case ResponseAudio():
            end_sample = event.start_sample + event.num_samples
            yield model.ContextAudio(
                context_id, b"".join(event.packets), ms(event.start_sample), ms(end_sample), event.packets
            )
        case ResponseWordTimes():
            yield model.ContextWords(context_id, tuple(_timed(word) for word in event.words))
        case FlushCompleted():
            yield model.ContextFlushed(context_id, ms(event.end_sample))


def _timed(word: WordTime) -> model.TimedWord:
    return model.TimedWord(
        text=word.text,
        start_ms=word.start_ms,
        end_ms=word.end_ms,
        char_ends_ms=word.char_ends_ms,
        spoken=word.spoken,
        spoken_ends_ms=word.spoken_ends_ms,
        raw_start=word.raw_start,
    )


def _ended(context_id: str, done: ResponseFinished) -> model.ContextEnded:
    heard: HeardText = done.heard
    return model.ContextEnded(
        context_id, done.status.value, done.audio_ms, heard.text, heard.remaining, heard.audio_ms, error=done.error
    )


def _failed(context_id: str, error: SpeechError) -> model.ContextEnded:
    return model.ContextEnded(context_id, "failed", error=error.info)
