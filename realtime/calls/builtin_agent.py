"""The built-in agent on a call: it answers the caller's turns with replies."""

from __future__ import annotations

import itertools
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.api import ErrorInfo, SpeechError
from realtime.calls.call import Call
from realtime.protocol import agent_turns
from realtime.protocol.agent_turns import ChatTurn
from realtime.protocol.telephony import model
from sessions.clock import now_s
from sessions.errors import LimitExceeded, UnknownResponse
from sessions.vad.energy import SILENCE
from sessions.weak import weak_method

if TYPE_CHECKING:
    from realtime.agent.voice_agent import VoiceAgent

log = logging.getLogger("voicewire.calls")

# Turns of a call that are retained; the language model receives as many of them as it has room for.
MAX_TURNS = 200
# A line without audio for this long is silent: it is muted, or leaves silence out. Longer than what ends a turn.
SILENT_LINE_S = 1


@dataclass(slots=True)
class CallAnswer:
    """An answer that is being written or spoken."""

    context: str
    # Number of turns before it.
    position: int
    # Of the call's reply, once there is text.
    reply_id: str | None = None
    text: str = ""


class BuiltinAgent:
    """Holds the conversation of one call. ``run`` carries out what comes of it, until ``close``. Call ``aclose``.

    One answer at a time: a turn that ends during an answer is answered after it, or interrupts it.
    """

    def __init__(self, agent: VoiceAgent, can_interrupt: bool) -> None:
        """``can_interrupt``: the caller's voice interrupts answers."""
        self._conversation = agent.open_conversation(weak_method(self._playout_level_db))
        self._has_greeting = bool(agent.phrases.greeting.strip())
        self._can_interrupt = can_interrupt
        self._is_closed = False
        # Set by ``start``.
        self._call: Call
        self._turns: list[ChatTurn] = []
        self._answer: CallAnswer | None = None
        self._numbers = itertools.count(1)
        # Spoken turns without a transcript.
        self._pending_turns: set[int] = set()
        self._is_caller_speaking = False
        # Event loop time of the last sample.
        self._last_audio_s = 0.0
        # True while the button of a device is held.
        self._is_manual = False
        # True while a turn waits for its answer.
        self._needs_answer = False
        # Why the last turn has no transcript.
        self._failure: ErrorInfo | None = None

    def start(self, call: Call, trace_parent: object) -> None:
        """Begin to answer a call that is connected. Traces of its turns belong to ``trace_parent``."""
        self._call = call
        self._conversation.trace_parent = trace_parent
        self._configure(is_manual=False)
        if self._has_greeting:
            self._begin("greeting")

    async def run(self) -> None:
        while (event := await self._conversation.next_event()) is not None:
            await self._handle(event)

    def close(self) -> None:
        """Stop all work; idempotent."""
        self._is_closed = True
        self._conversation.close()

    async def aclose(self) -> None:
        self._is_closed = True
        await self._conversation.aclose()

    # What the line reports

    def push_audio(self, data: bytes) -> None:
        """Process the caller's audio."""
        self._append(data, now_s())

    def on_tick(self, now_s: float) -> None:
        """Continue the audio of a silent line, so that the caller's turn ends."""
        is_in_turn = self._is_caller_speaking and not self._is_manual
        if is_in_turn and now_s - self._last_audio_s >= SILENT_LINE_S:
            line = self._call.line.format
            # Dated as if it had arrived in time: the turn has ended before.
            silence = SILENCE[line.encoding] * (SILENT_LINE_S * line.sample_rate)
            self._append(silence, self._last_audio_s + SILENT_LINE_S)

    def _append(self, data: bytes, end_s: float) -> None:
        self._last_audio_s = end_s
        with suppress(LimitExceeded):  # a button held for longer than a turn may be: the rest is dropped
            self._conversation.handle(agent_turns.AppendAudio(data, end_s))

    def start_listening(self, is_manual: bool) -> None:
        """Begin a turn of a device. ``is_manual``: its user marks the end."""
        self._configure(is_manual)
        self._conversation.handle(agent_turns.ClearAudio())
        if is_manual:
            self.interrupt()
        self._answer_next()

    def stop_listening(self) -> None:
        """End a turn that the user of a device has marked."""
        if not self._is_manual:
            return
        self._is_manual = self._is_caller_speaking = False
        try:
            committed = self._conversation.handle(agent_turns.CommitAudio())
        except SpeechError:  # too short to hold a word
            self._answer_next()
        else:
            self._pending_turns |= {event.turn for event in committed if isinstance(event, agent_turns.AudioCommitted)}

    def interrupt(self) -> None:
        """Stop the answer. The conversation keeps what was heard of it."""
        answer = self._answer
        self._call.barge_in()
        # It had no text yet. Otherwise it has ended, and another one may have begun.
        if answer is not None and answer is self._answer:
            self._end_answer("")

    def on_first_audio(self, reply_id: str) -> agent_turns.AnswerLatency | None:
        """Return the latencies of the answer whose first audio is sent."""
        answer = self._answer
        if answer is None or answer.reply_id != reply_id:
            return None
        return self._conversation.on_audio(answer.context)

    def find_trace_parent(self, reply_id: str) -> object:
        """Return the parent of the trace of the answer's reply; ``None`` for any other one."""
        answer = self._answer
        if answer is None or answer.reply_id != reply_id:
            return None
        return self._conversation.find_trace_parent(answer.context)

    def on_call_event(self, event: model.CallEvent) -> None:
        """Follow the call: what was heard of replies, and what the user of a device wrote."""
        if self._is_closed:
            return
        answer = self._answer
        match event:
            case model.CallerText():
                self._needs_answer = False  # answered together with this text
                self.interrupt()
                self._add_turn(event.text)
            case model.CallReplyPlayed() if answer is not None and answer.reply_id == event.reply_id:
                self._end_answer(answer.text)
            case model.CallReplyInterrupted() | model.CallReplyFailed() if (
                answer is not None and answer.reply_id == event.reply_id
            ):
                self._end_answer(event.heard.text)

    # What the conversation reports

    async def _handle(self, event: agent_turns.AgentEvent) -> None:
        match event:
            case agent_turns.CallerSpeechStarted():
                self._is_caller_speaking = True
                if self._can_interrupt:
                    self.interrupt()
            case agent_turns.CallerSpeechStopped():
                self._is_caller_speaking = False
            case agent_turns.AudioCommitted():
                self._pending_turns.add(event.turn)
            case agent_turns.AudioTranscribed():
                self._pending_turns.discard(event.turn)
                self._failure = event.error
                self._add_turn(event.text)
            case agent_turns.AnswerText():
                await self._speak(event)
            case agent_turns.AnswerEnded():
                await self._end_text(event)

    def _add_turn(self, text: str) -> None:
        if text:
            self._turns.append(ChatTurn("user", text))
            self._drop_old_turns()
        self._needs_answer = True
        self._answer_next()

    def _answer_next(self) -> None:
        """Answer the last turns, unless more is on its way. If none of them was understood, speak a phrase."""
        is_waiting = self._answer is not None or self._pending_turns or self._is_caller_speaking
        if self._is_closed or is_waiting or not self._needs_answer:
            return
        self._needs_answer = False
        if self._turns and self._turns[-1].role == "user":
            self._begin()
        else:
            self._begin("unclear" if self._failure is None else "failed", self._failure)

    def _begin(
        self, phrase: agent_turns.Phrase | None = None, error: ErrorInfo | None = None, position: int | None = None
    ) -> None:
        """``position``: that of the answer whose place this one takes."""
        self._drop_old_turns()
        self._answer = CallAnswer(f"answer-{next(self._numbers)}", len(self._turns) if position is None else position)
        # Functions are for clients, and a caller is none.
        request = agent_turns.StartAnswer(
            self._answer.context, tuple(self._turns), tool_choice="none", phrase=phrase, error=error
        )
        self._conversation.handle(request)

    def _drop_old_turns(self) -> None:
        num_extra = max(len(self._turns) - MAX_TURNS, 0)
        del self._turns[:num_extra]
        if self._answer is not None:
            self._answer.position = max(self._answer.position - num_extra, 0)

    async def _speak(self, event: agent_turns.AnswerText) -> None:
        answer = self._answer
        if answer is None or answer.context != event.context:
            return
        text = event.text if answer.text else event.text.lstrip()
        if not text:
            return
        try:
            if answer.reply_id is None:
                accepted = await self._call.handle_command(model.SayCommand(text=text, end=False))
                assert isinstance(accepted, model.CallReplyAccepted)
                answer.reply_id = accepted.reply_id
            else:
                await self._call.handle_command(model.AppendCommand(reply_id=answer.reply_id, text=text))
            answer.text += text
        except SpeechError as error:  # the text is too long, or other agents fill the queue
            log.warning("answer cut", extra={"code": error.code})
            self._conversation.handle(agent_turns.StopAnswer(answer.context))
            await self._end_reply(answer)

    async def _end_text(self, event: agent_turns.AnswerEnded) -> None:
        answer = self._answer
        if answer is None or answer.context != event.context:
            return
        if event.error is not None:
            log.warning("answer failed", extra={"code": event.error.code})
        if answer.text:
            await self._end_reply(answer)
        else:  # it called a function, and said nothing
            log.warning("answer without text")
            self._conversation.handle(agent_turns.StopAnswer(answer.context))
            self._begin("failed", position=answer.position)

    async def _end_reply(self, answer: CallAnswer) -> None:
        if answer.reply_id is None:
            self._end_answer("")
            return
        with suppress(UnknownResponse):  # it has failed, and its event ended the answer
            await self._call.handle_command(model.EndReplyCommand(reply_id=answer.reply_id))

    def _end_answer(self, heard: str) -> None:
        assert self._answer is not None
        answer, self._answer = self._answer, None
        self._conversation.handle(agent_turns.StopAnswer(answer.context))
        if heard := heard.strip():
            self._turns.insert(answer.position, ChatTurn("assistant", heard))
        self._answer_next()

    def _configure(self, is_manual: bool) -> None:
        self._is_manual = self._is_caller_speaking = is_manual
        line, detection = self._call.line.format, None if is_manual else agent_turns.DetectedTurns()
        self._conversation.handle(agent_turns.ConfigureAudio(line.encoding, line.sample_rate, detection))

    def _playout_level_db(self) -> float:
        return self._call.line.playout_level_db()
