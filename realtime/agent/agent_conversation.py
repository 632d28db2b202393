"""The built-in agent in one conversation: its answers and transcripts, and the events that come of them."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Coroutine
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context

from engine.api import INTERNAL_ERROR, ErrorInfo, SpeechError
from realtime.agent.backend import BackendFailed
from realtime.agent.turn_trace import TurnTrace
from realtime.protocol import agent_turns
from realtime.protocol.agent_turns import AgentEvent
from sessions.clock import WakeEvent, now_s
from sessions.errors import LimitExceeded
from sessions.vad.turns import PlayoutLevelDb, SpokenTurn, TurnDetection, TurnFormat, TurnInput, no_playout
from sessions.weak import weak_method

if TYPE_CHECKING:
    from realtime.agent.voice_agent import VoiceAgent

log = logging.getLogger("voicewire.agent")


@dataclass(slots=True)
class TurnTiming:
    """Times of a turn, from its end to the first audio of its answer. Moments are event loop times."""

    begun_s: float
    trace: TurnTrace
    endpointing_ms: float | None = None
    stt_ms: float | None = None
    llm_first_token_ms: float | None = None


class AgentConversation:
    """``handle`` never waits; what comes of it is given by ``next_event``. Call ``close`` and ``aclose``."""

    def __init__(self, agent: VoiceAgent, playout_level_db: PlayoutLevelDb = no_playout) -> None:
        self._agent = agent
        self._settings = agent.settings
        # The context that the traces of turns belong to.
        self.trace_parent: object = agent.tracer.find_parent()
        self._events: deque[AgentEvent] = deque()
        self._wake = WakeEvent()
        self._is_closed = False
        # By context.
        self._answers: dict[str, asyncio.Task[None]] = {}
        # Of answers whose first audio was not sent yet, by context.
        self._timings: dict[str, TurnTiming] = {}
        # Of the last spoken turn that was not answered yet.
        self._turn_timing: TurnTiming | None = None
        self._turns = itertools.count(1)
        self._transcripts: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Task[None] | None = None
        self._input = TurnInput(
            agent.vad_scheduler,
            agent.vad_settings,
            self._settings.max_turn_s,
            weak_method(self._on_speech),
            weak_method(self._on_turn),
            playout_level_db,
        )

    @property
    def is_busy(self) -> bool:
        """True while an answer or a transcript is under way, or its events are."""
        return bool(self._answers or self._transcripts or self._events)

    def handle(self, command: agent_turns.AgentCommand) -> list[AgentEvent]:
        """Carry out a command and return its immediate events. Raises ``SpeechError`` for audio that is refused."""
        match command:
            case agent_turns.StartAnswer():
                self._start_answer(command)
            case agent_turns.StopAnswer():
                if (timing := self._timings.pop(command.context, None)) is not None:
                    timing.trace.end()
                if (task := self._answers.pop(command.context, None)) is not None:
                    task.cancel()
            case agent_turns.ConfigureAudio():
                given = command.detection
                detection = None if given is None else TurnDetection(**asdict(given))
                self._input.configure(TurnFormat(command.encoding, command.sample_rate), detection)
            case agent_turns.AppendAudio():
                self._listen()
                self._input.append(command.data, command.end_s)
            case agent_turns.CommitAudio():
                return [self._begin_transcript(self._input.commit())]
            case agent_turns.ClearAudio():
                self._input.clear()
        return []

    async def next_event(self) -> AgentEvent | None:
        """Return the next event; ``None`` once the session is closed."""
        while not self._events and not self._is_closed:
            await self._wake.wait()
        return None if self._is_closed else self._events.popleft()

    def on_audio(self, context: str) -> agent_turns.AnswerLatency | None:
        """Record that audio of a context is sent. Return the latencies if it is the first of an answer."""
        timing = self._timings.pop(context, None)
        if timing is None:
            return None
        timing.trace.end()
        first_audio_ms = _elapsed_ms(timing.begun_s)
        parts = agent_turns.AnswerLatency(
            context, timing.endpointing_ms, timing.stt_ms, timing.llm_first_token_ms, first_audio_ms
        )
        for name, value_ms in parts.fields.items():
            if value_ms is not None:
                self._agent.metrics.observe(f"agent_{name.removesuffix('_ms')}_seconds", value_ms / 1000)
        return parts

    def find_trace_parent(self, context: str) -> object:
        """Return the parent of the reply that speaks an answer; ``None`` of another one, or once it sounds."""
        timing = self._timings.get(context)
        return None if timing is None else timing.trace.context

    def close(self) -> None:
        """Stop all work; idempotent."""
        self._is_closed = True
        self._wake.set()
        for timing in (*self._timings.values(), *filter(None, [self._turn_timing])):
            timing.trace.end()
        for task in self._tasks():
            task.cancel()

    async def aclose(self) -> None:
        self.close()
        if tasks := self._tasks():
            await asyncio.wait(tasks)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [*self._answers.values(), *self._transcripts, *filter(None, [self._listener])]

    def _emit(self, event: AgentEvent) -> None:
        self._events.append(event)
        self._wake.set()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, name=f"voicewire agent {name}")

    # Answers

    def _start_answer(self, request: agent_turns.StartAnswer) -> None:
        limit = self._settings.max_answers_per_session
        if len(self._answers) >= limit:
            error = LimitExceeded(f"max_answers_per_session is {limit}").info
            self._emit(agent_turns.AnswerEnded(request.context, error))
            return
        self._timings[request.context] = self._turn_timing or self._begin_timing(now_s())
        self._turn_timing = None
        self._answers[request.context] = self._spawn(self._answer(request), "answer")

    async def _answer(self, request: agent_turns.StartAnswer) -> None:
        context, error = request.context, request.error
        if request.phrase is not None:
            self._emit(agent_turns.AnswerText(context, getattr(self._agent.phrases, request.phrase)))
        else:
            error = await self._generate(request)
        self._answers.pop(context, None)
        self._emit(agent_turns.AnswerEnded(context, error))

    async def _generate(self, request: agent_turns.StartAnswer) -> ErrorInfo | None:
        """Emit what the language model answers. If it fails, emit a phrase and return the error."""
        model, begun_s, has_begun = self._agent.model, now_s(), False
        timing = self._timings[request.context]
        error: ErrorInfo | None = None
        reminder = self._schedule_phrase(request.context, self._settings.wait_phrase_after_s)
        try:
            async with aclosing(model.answer(request)) as pieces:
                async for piece in pieces:
                    if not has_begun:
                        has_begun = True
                        reminder.cancel()
                        timing.llm_first_token_ms = _elapsed_ms(begun_s)
                    self._emit_piece(request.context, piece)
            return None
        except BackendFailed as failure:
            error = failure.info
        except Exception:
            log.exception("internal error in agent")
            error = INTERNAL_ERROR
        finally:
            reminder.cancel()
            timing.trace.record("llm", begun_s, error, first_token_ms=timing.llm_first_token_ms)
        self._agent.metrics.inc("agent_failures_total", code=error.code)
        self._emit(agent_turns.AnswerText(request.context, f" {self._agent.phrases.failed}"))
        return error

    def _emit_piece(self, context: str, piece: str | agent_turns.ToolCall) -> None:
        if isinstance(piece, str):
            self._emit(agent_turns.AnswerText(context, piece))
        else:
            self._emit(agent_turns.AnswerToolCall(context, piece))

    def _schedule_phrase(self, context: str, delay_s: float) -> WaitPhrase:
        return WaitPhrase(weak_method(self._speak_wait_phrase), context, delay_s, self._settings.wait_phrase_every_s)

    def _speak_wait_phrase(self, context: str) -> None:
        self._emit(agent_turns.AnswerText(context, f"{self._agent.phrases.wait} "))

    def _begin_timing(self, begun_s: float) -> TurnTiming:
        assert isinstance(self.trace_parent, Context)
        return TurnTiming(begun_s, TurnTrace(self._agent.tracer.tracer, self.trace_parent, begun_s))

    # Spoken turns

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = self._spawn(self._input.run(), "listener")
            self._listener.add_done_callback(_log_failure)

    def _on_speech(self, has_begun: bool, position_ms: int) -> None:
        kind = agent_turns.CallerSpeechStarted if has_begun else agent_turns.CallerSpeechStopped
        self._emit(kind(position_ms))

    def _on_turn(self, spoken: SpokenTurn) -> None:
        self._emit(self._begin_transcript(spoken))

    def _begin_transcript(self, spoken: SpokenTurn) -> agent_turns.AudioCommitted:
        turn, end_s = next(self._turns), spoken.speech_end_s
        if self._turn_timing is not None:
            self._turn_timing.trace.end()
        self._turn_timing = self._begin_timing(end_s)
        self._turn_timing.endpointing_ms = _elapsed_ms(end_s)
        self._turn_timing.trace.record("endpointing", end_s)
        task = self._spawn(self._transcribe(turn, spoken, self._turn_timing), "transcript")
        self._transcripts.add(task)
        task.add_done_callback(self._transcripts.discard)
        return agent_turns.AudioCommitted(turn, spoken.is_detected)

    async def _transcribe(self, turn: int, spoken: SpokenTurn, timing: TurnTiming) -> None:
        begun_s, text, error = now_s(), "", None
        limit = self._settings.max_pending_transcripts
        assert self._agent.recognizer is not None
        try:
            if len(self._transcripts) > limit:
                raise LimitExceeded(f"max_pending_transcripts is {limit}")
            text = await self._agent.recognizer.transcribe(spoken)
        except SpeechError as failure:
            error = failure.info
        except Exception:
            log.exception("internal error in agent")
            error = INTERNAL_ERROR
        if error is not None:
            self._agent.metrics.inc("agent_failures_total", code=error.code)
        timing.stt_ms = _elapsed_ms(begun_s)
        timing.trace.record("stt", begun_s, error)
        self._emit(agent_turns.AudioTranscribed(turn, spoken.duration_s, text, error))


class WaitPhrase:
    """Calls ``speak`` after a delay and then every so often, until ``cancel``."""

    def __init__(self, speak: Any, context: str, delay_s: float, every_s: float) -> None:
        self._speak, self._context, self._every_s = speak, context, every_s
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def _fire(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self._fire)
        self._speak(self._context)

    def cancel(self) -> None:
        self._timer.cancel()


def _elapsed_ms(since_s: float) -> float:
    return round(1000 * (now_s() - since_s), 1)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("internal error in agent", exc_info=task.exception())
