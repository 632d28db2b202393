"""The contexts of one connection: carries out commands of its dialect and gives the events of its responses."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from engine.api import InvalidRequest, SpeechError
from realtime.config import ServerConfig
from realtime.dialect_events import audio_format, context_ended, context_failed, to_dialect_event
from realtime.errors import RequestRefused
from realtime.option_resolver import OptionResolver
from realtime.protocol import events as ev
from realtime.protocol import model
from realtime.setting_mapping import can_replay, speech_settings, wire_settings, with_seed
from sessions.checkpoint import Replay
from sessions.clock import now_s
from sessions.config import SpeechSettings
from sessions.errors import LimitExceeded, SessionClosed, SessionError
from sessions.events import ResponseEvent, ResponseFinished

if TYPE_CHECKING:
    from sessions.response import Response
    from sessions.session import Session

# Of a speaker that is reported with words.
MAX_SPEAKER_CHARS = 64

ConversationCommand = (
    model.OpenContext
    | model.CreateResponse
    | model.AppendText
    | model.ChangeVoice
    | model.FlushContext
    | model.EndContext
    | model.CancelContext
    | model.ReportPlayback
    | model.FinishContexts
)
TextIntent = model.AppendText | model.ChangeVoice | model.FlushContext | model.EndContext


@dataclass(slots=True, eq=False)
class ContextState:
    """A context: text spoken as one audio stream, as a response from its first text on."""

    context_id: str
    settings: SpeechSettings
    last_activity_s: float
    # Commands that wait for the contexts before it; ``None`` once it is its turn.
    pending: list[TextIntent] | None = None
    # True if it passed ``check_can_start`` when it began to wait.
    admitted: bool = False
    response: Response | None = None
    # True once its text is complete.
    ended: bool = False
    # Where its response goes on when the contexts before it have been sent again.
    held_at: ev.ResumePosition | None = None
    # True if its end was sent on a connection that was lost.
    had_ended: bool = False


@dataclass(slots=True, eq=False)
class Conversation:
    """Maps contexts to responses of a session. Only ``query_heard`` waits.

    ``handle`` returns the immediate events. ``pop_due`` returns later ones; ``wake`` is called when one may be due
    earlier than ``due_s`` returned.
    """

    session: Session
    resolver: OptionResolver
    # Raises ``RequestRefused`` while no response may begin.
    check_can_start: Callable[[], None]
    config: ServerConfig
    wake: Callable[[], None]
    # True if contexts are spoken one after the other, in the order they were opened.
    serial: bool = False
    # The parent of a context's trace, where that is not the session's.
    find_trace_parent: Callable[[str], object] = lambda _: None
    # Open contexts in the order they were opened.
    _open: dict[str, ContextState] = field(default_factory=dict)
    _past: OrderedDict[str, Response] = field(default_factory=OrderedDict)
    # Contexts with a response, rotated so that each is asked for events in turn.
    _speaking: deque[ContextState] = field(default_factory=deque)
    # Events that are popped before those of responses.
    _events: deque[model.DialectEvent] = field(default_factory=deque)
    _num_waiting_chars: int = 0
    _finishing: bool = False

    @property
    def num_speaking(self) -> int:
        """The number of open contexts that have a response."""
        return len(self._speaking)

    @property
    def is_idle(self) -> bool:
        """True if no event follows without another command."""
        return not self._speaking and not self._events

    def handle(self, command: ConversationCommand) -> list[model.DialectEvent]:
        """Carry out a command and return its immediate events. Commands for unknown contexts are ignored."""
        return [*self._apply(command), *self._finish_if_done()]

    def update(self, given: ev.NativeSpeechSettings) -> ev.SessionUpdated:
        """Change the settings of later responses. Raises ``SpeechError``; then nothing has changed."""
        self.session.update(self._settings_over_session(given))
        return ev.SessionUpdated(settings=wire_settings(self.session.settings))

    async def query_heard(self, query: model.QueryHeard) -> model.DialectEvent:
        """Return the event to send, once the heard words are found."""
        if (response := self._past.get(query.context)) is not None:
            heard = await response.query_heard(query.played_ms)
            if not response.forgotten:
                return model.HeardReported(query.context, heard.text, heard.remaining, heard.audio_ms)
        return model.HeardUnknown(query.context)

    def due_s(self, now: float) -> float | None:
        """Return when ``pop_due`` may return the next event; ``None`` while none waits."""
        dues = (context.response.due_s(now) for context in self._speaking if context.response and not context.held_at)
        return min((due_s for due_s in dues if due_s is not None), default=None)

    def pop_due(self, now: float) -> model.DialectEvent | None:
        """Return the next event that is due by ``now``, of each context in turn."""
        if self._events:
            return self._events.popleft()
        for _ in range(len(self._speaking)):
            context = self._speaking[0]
            self._speaking.rotate(-1)
            assert context.response is not None
            if context.held_at is None and (event := context.response.pop_due(now)) is not None:
                context.last_activity_s = now
                return self._on_event(context, context.response, event)
        return None

    def report_idle(self, timeout_s: float, now: float) -> None:
        """Queue ``ContextIdle`` for contexts without text or audio for ``timeout_s``."""
        quiet = (context for context in self._open.values() if context.pending is None)
        idle = [context for context in quiet if now - context.last_activity_s >= timeout_s]
        if idle:
            self._events.extend(model.ContextIdle(context.context_id) for context in idle)
            self.wake()

    def _apply(self, intent: ConversationCommand) -> list[model.DialectEvent]:
        match intent:
            case model.OpenContext():
                return self._begin(intent)
            case model.CreateResponse():
                return self._create(intent)
            case model.FinishContexts():
                self._finishing = True
                return []
            case model.ReportPlayback():
                return self._report_playback(intent)
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
        waits: list[TextIntent] | None = [] if self.serial and self._open else None
        try:
            self._check_capacity()
            settings, warnings = self.resolver.resolve(intent.options)
            if waits is not None:
                self.check_can_start()
        except (RequestRefused, SessionError) as error:
            return [context_failed(intent.context, error)]
        self._open[intent.context] = ContextState(intent.context, settings, now_s(), waits, admitted=waits is not None)
        return [model.ContextOpened(intent.context, warnings)]

    def _create(self, intent: model.CreateResponse) -> list[model.DialectEvent]:
        try:
            self.check_can_start()
            settings = with_seed(self._settings_over_session(intent.settings))
            replay = self._replay(intent.resync, settings)
            response = self.session.create_response(
                intent.context, settings=settings, text=intent.text, text_closed=intent.last, replay=replay
            )
        except SpeechError as error:
            return [context_failed(intent.context, error)]
        context = ContextState(intent.context, settings, now_s(), ended=intent.last)
        self._open[intent.context] = context
        self._speak(context, response)
        num_lacking = 0 if replay is None else max(replay.received_samples - response.next_sample, 0)
        audio, wire = audio_format(response), wire_settings(settings)
        return [model.ResponseOpened(intent.context, audio, wire, response.next_sample, num_lacking)]

    def _replay(self, given: ev.Resync | None, settings: SpeechSettings) -> Replay | None:
        """Raises ``InvalidRequest``."""
        if given is None:
            return None
        # Nothing was received of one that begins anew.
        if (given.checkpoints or given.received_samples) and not can_replay(settings):
            raise InvalidRequest("a response with markup or lexicons cannot be resynced", "resync")
        position = {name: getattr(given, name) for name in ev.Resync.__struct_fields__ if name != "checkpoints"}
        return Replay.from_checkpoints(given.checkpoints, self.config.limits.max_response_chars, **position)

    def suspend(self) -> None:
        """Stop the playback clock of every response: the connection is lost."""
        for context in self._speaking:
            assert context.response is not None
            context.response.suspend()

    def resume(
        self, positions: Iterable[ev.ResumePosition], wake: Callable[[], None]
    ) -> tuple[model.ResumedContext, ...]:
        """Go on with these responses of a client, and cancel the others. ``wake`` replaces the former one.

        A response that cannot go back so far is cancelled, too: its end says what was heard. Of serial contexts, each
        goes on when those before it have ended."""
        self.wake = wake
        self.session.touch()
        wanted = {position.response_id: position for position in positions}
        ended = self._reopen_ended(wanted)
        resumed = tuple(self._resume_context(position, name in ended) for name, position in wanted.items())
        for context in self._speaking:
            assert context.response is not None
            context.response.attach(wake)
            if context.context_id not in wanted:
                context.response.cancel()
        return resumed

    def _reopen_ended(self, wanted: Iterable[str]) -> dict[str, ContextState]:
        """Put the wanted contexts that have ended before the others; returns them."""
        found = [(name, self._past[name]) for name in wanted if name not in self._open and name in self._past]
        ended = {
            name: ContextState(name, response.settings, now_s(), response=response, ended=True, had_ended=True)
            for name, response in found
            if not response.forgotten
        }
        for name in ended:
            del self._past[name]
        for context in self._open.values() if self.serial and ended else ():
            if context.response is None and context.pending is None:
                context.pending = []
        self._open = ended | self._open
        self._speaking = deque(context for context in self._open.values() if context.response is not None)
        return ended

    def _resume_context(self, position: ev.ResumePosition, had_ended: bool) -> model.ResumedContext:
        context = self._open.get(position.response_id)
        if context is None or (response := context.response) is None:
            return model.ResumedContext(position.response_id)
        context.held_at = position if self.serial and context is not self._speaking[0] else None
        if context.held_at is None:
            response.resume(position.received_samples, position.played_ms)
        return model.ResumedContext(
            position.response_id,
            audio_format(response),
            wire_settings(context.settings),
            response.num_text_chars,
            response.num_flushes,
            response.next_sample,
            max(position.received_samples - response.next_sample, 0),
            had_ended,
        )

    def _release_held(self) -> None:
        """Go on with the next context that was held."""
        context = next((context for context in self._open.values() if context.held_at is not None), None)
        if context is not None and context.held_at is not None and context.response is not None:
            position, context.held_at = context.held_at, None
            context.response.resume(position.received_samples, position.played_ms)

    def _settings_over_session(self, given: ev.NativeSpeechSettings) -> SpeechSettings:
        return speech_settings(given, self.session.settings, self.config.speech.lead_ms)

    def _report_playback(self, report: model.ReportPlayback) -> list[model.DialectEvent]:
        context = self._open.get(report.context)
        response = self._past.get(report.context) if context is None else context.response
        if response is not None:
            response.report_playback(report.played_ms)
        return []

    def _check_capacity(self) -> None:
        if self._finishing:
            raise SessionClosed("the connection is closing")
        if len(self._open) >= (limit := self.config.dialects.max_contexts_per_connection):
            raise LimitExceeded(f"max_contexts of a connection is {limit}")

    def _wait(self, context: ContextState, intent: TextIntent) -> list[model.DialectEvent]:
        """Queue the command until the contexts before it have ended."""
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
                return self._append(context, _new_text(context, intent), intent.last)
            case model.ChangeVoice():
                return self._change_voice(context, intent.voice)
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

    def _change_voice(self, context: ContextState, named: str) -> list[model.DialectEvent]:
        voice, warning = self.resolver.resolve_voice(named)
        if context.response is None:
            context.settings = replace(context.settings, voice=voice)
        else:
            context.response.change_speaker(named[:MAX_SPEAKER_CHARS], voice)
        return [model.ContextWarning(context.context_id, "unknown_voice", "voice", 0)] if warning else []

    def _end_text(self, context: ContextState) -> list[model.DialectEvent]:
        context.ended = True
        if context.response is None:
            return self._leave(context, model.ContextEnded(context.context_id))
        context.response.end_input()
        return []

    def _stream_context(self, context: ContextState, text: str, last: bool) -> list[model.DialectEvent]:
        """Create the response of a context with its first text."""
        try:
            if not context.admitted:
                self.check_can_start()
            parent = self.find_trace_parent(context.context_id)
            response = self.session.create_response(
                settings=context.settings, text=text, text_closed=last, trace_parent=parent
            )
        except SpeechError as error:
            return self._fail(context, error)
        context.ended = last
        self._speak(context, response)
        return []

    def _speak(self, context: ContextState, response: Response) -> None:
        context.response = response
        response.attach(self.wake)
        self._speaking.append(context)
        self.wake()  # the response may have failed already

    def _cancel(self, context: ContextState, played_ms: float | None) -> list[model.DialectEvent]:
        if context.response is None:
            return self._leave(context, model.ContextEnded(context.context_id, "cancelled"))
        context.response.cancel(played_ms)
        return []

    def _on_event(self, context: ContextState, response: Response, event: ResponseEvent) -> model.DialectEvent:
        if not isinstance(event, ResponseFinished):
            return to_dialect_event(context.context_id, response, event)
        self._speaking.remove(context)
        self._release_held()
        self._remember(context.context_id, response)
        [ended] = self._leave(context, context_ended(context.context_id, event, context.had_ended))
        self._events.extend(self._finish_if_done())
        return ended

    def _fail(self, context: ContextState, error: SpeechError) -> list[model.DialectEvent]:
        return self._leave(context, context_failed(context.context_id, error))

    def _leave(self, context: ContextState, ended: model.ContextEnded) -> list[model.DialectEvent]:
        del self._open[context.context_id]
        self._apply_pending(context)
        return [ended]

    def _apply_pending(self, context: ContextState) -> list[TextIntent]:
        waits, context.pending = context.pending or [], None
        self._num_waiting_chars -= sum(map(_weight, waits))
        return waits

    def _finish_if_done(self) -> list[model.DialectEvent]:
        """Begin the next waiting contexts, and report when all have ended."""
        events = [event for context in self._ready_contexts() for event in self._drain_pending(context)]
        if self._finishing and not self._open:
            self._finishing = False
            events.append(model.AllContextsEnded())
        return events

    def _ready_contexts(self) -> Iterator[ContextState]:
        """Return the first context while it waits: none before it speaks."""
        while (first := next(iter(self._open.values()), None)) is not None and first.pending is not None:
            yield first

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


def _new_text(context: ContextState, intent: model.AppendText) -> str:
    """Return the part of the text that was not received before. Raises ``RequestRefused`` where some is missing."""
    if not isinstance(intent, model.AppendTextAt) or context.response is None:
        return intent.text
    num_received = context.response.num_text_chars
    if intent.at > num_received:
        raise RequestRefused("text_gap", f"at is {intent.at}; {num_received} characters were received", "at")
    return intent.text[num_received - intent.at :]
