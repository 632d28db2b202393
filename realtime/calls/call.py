"""A phone call: speaks replies one after the other until the caller interrupts them or hangs up."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.api import ErrorInfo, SpeechError
from realtime.calls.playout import CallPlayout
from realtime.config import ServerConfig
from realtime.protocol.events import HeardBody
from realtime.protocol.model import Message
from realtime.protocol.telephony import model
from sessions.clock import is_due
from sessions.config import SpeechSettings
from sessions.errors import (
    DuplicateResponse,
    LimitExceeded,
    TextInputClosed,
    TextTimeout,
    UnknownResponse,
)
from sessions.events import FlushCompleted, HeardText, ResponseAudio, ResponseEvent, ResponseFinished, ResponseStatus

if TYPE_CHECKING:
    from sessions.response import Response
    from sessions.session import Session


@dataclass(slots=True, eq=False)
class CallReply:
    reply_id: str
    max_waiting_chars: int
    response: Response | None = None
    ended: bool = False
    # Position of its first sample, as ``CallPlayout`` counts.
    start: int = 0
    # Samples that were given to the playout.
    num_samples: int = 0
    # When it became the reply that is spoken.
    turn_s: float = 0.0
    # Names of the agent's marks; the index is the number of the flush.
    marks: list[str] = field(default_factory=list)
    # Text that arrived before the response; ``None`` is a mark.
    _waiting: list[str | None] = field(default_factory=list)
    _num_waiting_chars: int = 0

    @property
    def may_begin(self) -> bool:
        """True if its response can be created: it has text to speak, or has ended."""
        return self.ended or bool(self.waiting_text.strip())

    @property
    def waiting_text(self) -> str:
        return "".join(piece for piece in self._waiting if piece is not None)

    def append(self, text: str) -> None:
        """Append text. Raises ``TextInputClosed``, or ``LimitExceeded`` for too much queued text."""
        self._require_open()
        if self.response is not None:
            self.response.push_text(text)
            return
        if self._num_waiting_chars + len(text) > self.max_waiting_chars:
            raise LimitExceeded(f"the text of a reply may have {self.max_waiting_chars} characters")
        if text:
            self._waiting.append(text)
            self._num_waiting_chars += len(text)

    def mark(self, name: str, max_marks: int) -> None:
        """Append a mark. Raises ``TextInputClosed`` or ``LimitExceeded``."""
        self._require_open()
        if len(self.marks) >= max_marks:
            raise LimitExceeded(f"a reply may have {max_marks} marks")
        self.marks.append(name)
        if self.response is None:
            self._waiting.append(None)
        else:
            self.response.flush()

    def end(self) -> None:
        self.ended = True
        if self.response is not None:
            self.response.end_input()

    def pop_text(self) -> str | None:
        """Remove and return its whole text, or ``None`` if more may come or it has marks."""
        if not self.ended or self.marks:
            return None
        text, self._waiting = self.waiting_text, []
        return text

    def begin(self, response: Response, start: int) -> None:
        """Pass the queued text and marks to its response."""
        self.response, self.start = response, start
        waiting, self._waiting = self._waiting, []
        for piece in waiting:
            if response.is_done:
                return
            if piece is None:
                response.flush()
            else:
                response.push_text(piece)
        if self.ended:
            response.end_input()

    def heard_text(self, played: int, rate: int) -> HeardText:
        """Return what the caller has heard at this playout position."""
        if self.response is None:
            return HeardText("", self.waiting_text, 0.0)
        return self.response.heard(self.played_ms(played, rate))

    def played_ms(self, played: int, rate: int) -> float:
        return 1000 * min(max(played - self.start, 0), self.num_samples) / rate

    def _require_open(self) -> None:
        if self.ended or (self.response is not None and self.response.is_done):
            raise TextInputClosed(f"the text of reply {self.reply_id!r} has ended", "reply_id")


class Call:
    """Carries out commands of agents and gives the messages for the line. No method waits for speech.

    ``on_event`` passes events to the agents. ``on_first_audio`` receives the id of a reply that begins to sound.
    ``find_trace_parent`` gives the parent of a reply's trace, ``None`` for that of the session.
    ``send_nowait`` sends a message before all others. ``wake`` asks for a call of ``pop_due``.
    """

    def __init__(
        self,
        call_id: str,
        session: Session,
        settings: SpeechSettings,
        line: CallPlayout,
        config: ServerConfig,
        *,
        check_can_start: Callable[[], None],
        on_event: Callable[[model.CallEvent], None],
        on_first_audio: Callable[[str], None],
        find_trace_parent: Callable[[str], object],
        send_nowait: Callable[[Message], None],
        hang_up: Callable[[str], None],
        wake: Callable[[], None],
    ) -> None:
        self.call_id = call_id
        self.line = line
        self._session, self._settings, self._config = session, settings, config
        # Raises ``RequestRefused`` while no reply may begin.
        self._check_can_start = check_can_start
        self._on_event, self._send_nowait, self._hang_up = on_event, send_nowait, hang_up
        self._on_first_audio, self._find_trace_parent = on_first_audio, find_trace_parent
        self._numbers = itertools.count(1)
        # Replies that wait for their turn.
        self._queue: deque[CallReply] = deque()
        self._speaking: CallReply | None = None
        # Replies that were sent completely and are not played to their end.
        self._unplayed: list[CallReply] = []
        self._wake = wake
        # True to hang up when all audio was played.
        self._leaving = False

    @property
    def is_busy(self) -> bool:
        return bool(self._speaking or self._queue or self._unplayed)

    async def handle_command(self, command: model.Command) -> model.CallEvent | None:
        """Carry out a command and return the answer, if there is one. Raises ``SpeechError``."""
        self._session.touch()
        self._wake()
        match command:
            case model.SayCommand():
                return self._append_text(command)
            case model.AppendCommand():
                self._reply(command.reply_id).append(command.text)
            case model.MarkCommand():
                self._reply(command.reply_id).mark(command.name, self._config.calls.max_marks_per_reply)
            case model.EndReplyCommand():
                self._reply(command.reply_id).end()
            case model.InterruptCommand():
                self.interrupt("agent")
                await asyncio.sleep(0)  # the clear is sent before the answer
            case model.HangUpCommand(after_speech=True) if self.is_busy:
                self._leaving = True
            case model.HangUpCommand():
                self._hang_up("agent")
        return None

    def barge_in(self) -> None:
        """Interrupt all replies because the caller speaks."""
        if self.is_busy:
            self._session.touch()
            self._on_event(model.CallerBargeIn(call_id=self.call_id))
            self.interrupt("caller")

    def interrupt(self, cause: model.Cause) -> None:
        """Stop all replies. After it returns no audio of them is sent."""
        played = self.line.played()
        cut = [*self._unplayed, *filter(None, [self._speaking]), *self._queue]
        self._unplayed, self._speaking = [], None
        self._queue.clear()
        for reply in cut:
            self._interrupt_reply(reply, played, cause)
        sounding, clear = self.line.is_playing, self.line.on_cleared()
        if cause == "hang_up":
            return
        if clear is not None and (cut or sounding):
            self._send_nowait(clear)
        self._hang_up_if_requested()

    def on_dtmf(self, digit: str) -> None:
        self._session.touch()
        self._on_event(model.CallDtmf(call_id=self.call_id, digit=digit))

    def on_text(self, text: str) -> None:
        self._session.touch()
        self._on_event(model.CallerText(call_id=self.call_id, text=text))

    def due_s(self, now: float) -> float | None:
        """Return when ``pop_due`` may return a message because of time alone."""
        dues = [self.line.due_s(now), self._speech_due_s(now) if self._has_room else None]
        return min((due_s for due_s in dues if due_s is not None), default=None)

    def pop_due(self, now: float) -> list[Message]:
        """Return the next messages for the line that are due by ``now``."""
        while not (messages := self.line.pop_due(now)):
            if not (self._has_room and self._advance(now)):
                return []
        return messages

    @property
    def _has_room(self) -> bool:
        """True if the next event of the response may be popped: the playout has room, or the response failed."""
        response = None if self._speaking is None else self._speaking.response
        return self.line.has_room or (response is not None and response.is_done)

    def _speech_due_s(self, now: float) -> float | None:
        if (reply := self._speaking) is None:
            return None
        return self._text_deadline_s(reply) if reply.response is None else reply.response.due_s(now)

    def _text_deadline_s(self, reply: CallReply) -> float:
        return reply.turn_s + self._config.limits.text_timeout_s

    def _advance(self, now: float) -> bool:
        """Give the next event to the playout, or begin the next reply; false if neither is due."""
        reply = self._speaking
        if reply is None:
            return self._begin_turn(now)
        if reply.response is None:
            return self._begin(reply, now)
        event = reply.response.pop_due(now)
        if event is not None:
            self._apply(reply, event)
        return event is not None

    def _begin_turn(self, now: float) -> bool:
        if not self._queue:
            return False
        self._speaking = self._queue.popleft()
        self._speaking.turn_s = now
        return True

    def _begin(self, reply: CallReply, now: float) -> bool:
        try:
            if not reply.may_begin:
                if not is_due(self._text_deadline_s(reply), now):
                    return False
                raise TextTimeout(f"text_timeout_s is {self._config.limits.text_timeout_s:g}")
            self._check_can_start()
            whole = reply.pop_text()
            response = self._session.create_response(
                settings=self._settings,
                text=whole or "",
                text_closed=whole is not None,
                trace_parent=self._find_trace_parent(reply.reply_id),
            )
        except SpeechError as error:
            self._emit_failed(reply, error.info, HeardText("", reply.waiting_text, 0.0))
            self._end_turn()
        else:
            response.attach(self._wake)
            reply.begin(response, self.line.position)
        return True

    def _apply(self, reply: CallReply, event: ResponseEvent) -> None:
        match event:
            case ResponseAudio():
                if not reply.num_samples:
                    self._on_first_audio(reply.reply_id)
                reply.num_samples += event.num_samples
                self.line.put(b"".join(event.packets))
            case FlushCompleted() if event.flush < len(reply.marks):
                self._put_mark(reply, reply.marks[event.flush])
            case ResponseFinished():
                self._finish(reply, event)

    def _put_mark(self, reply: CallReply, name: str) -> None:
        def reached(confirmed: bool) -> None:
            self._on_event(
                model.CallMarkReached(call_id=self.call_id, reply_id=reply.reply_id, name=name, confirmed=confirmed)
            )

        self.line.put_mark(reached)

    def _finish(self, reply: CallReply, done: ResponseFinished) -> None:
        self.line.fill_frame()
        if done.status is ResponseStatus.COMPLETED:
            self._speaking = None
            self._unplayed.append(reply)
            self.line.put_mark(lambda confirmed: self._played(reply, confirmed))
        else:
            self._emit_failed(reply, done.error or TextInputClosed("the reply was ended").info, done.heard)
            self._end_turn()

    def _end_turn(self) -> None:
        self._speaking = None
        self._hang_up_if_requested()

    def _played(self, reply: CallReply, confirmed: bool) -> None:
        if reply not in self._unplayed:
            return
        self._unplayed.remove(reply)
        played_ms = 1000 * reply.num_samples / self.line.format.sample_rate
        self._on_event(
            model.CallReplyPlayed(
                call_id=self.call_id, reply_id=reply.reply_id, played_ms=played_ms, confirmed=confirmed
            )
        )
        self._hang_up_if_requested()

    def _hang_up_if_requested(self) -> None:
        if self._leaving and not self.is_busy:
            self._hang_up("agent")

    def _append_text(self, say: model.SayCommand) -> model.CallReplyAccepted:
        known = {reply.reply_id for reply in self._replies()}
        if len(known) >= (limit := self._config.calls.max_pending_replies):
            raise LimitExceeded(f"max_replies of a call is {limit}")
        made = (f"reply-{number}" for number in self._numbers)
        reply_id = say.reply_id or next(one for one in made if one not in known)
        if reply_id in known:
            raise DuplicateResponse(f"reply {reply_id!r} exists already", "reply_id")
        reply = CallReply(reply_id, self._config.limits.max_response_chars)
        reply.append(say.text)
        if say.end:
            reply.end()
        self._queue.append(reply)
        return model.CallReplyAccepted(call_id=self.call_id, reply_id=reply_id)

    def _replies(self) -> Iterator[CallReply]:
        yield from self._unplayed
        yield from filter(None, [self._speaking])
        yield from self._queue

    def _reply(self, reply_id: str) -> CallReply:
        for reply in self._replies():
            if reply.reply_id == reply_id:
                return reply
        raise UnknownResponse(f"reply {reply_id!r} is unknown, or was heard or interrupted", "reply_id")

    def _interrupt_reply(self, reply: CallReply, played: int, cause: model.Cause) -> None:
        heard = reply.heard_text(played, self.line.format.sample_rate)
        if reply.response is not None:
            reply.response.cancel(reply.played_ms(played, self.line.format.sample_rate))
        self._on_event(
            model.CallReplyInterrupted(
                call_id=self.call_id, reply_id=reply.reply_id, cause=cause, heard=_to_heard_body(heard)
            )
        )

    def _emit_failed(self, reply: CallReply, error: ErrorInfo, heard: HeardText) -> None:
        self._on_event(
            model.CallReplyFailed(
                call_id=self.call_id, reply_id=reply.reply_id, error=error, heard=_to_heard_body(heard)
            )
        )


def _to_heard_body(heard: HeardText) -> HeardBody:
    return HeardBody(text=heard.text, remaining=heard.remaining, played_ms=heard.audio_ms)
