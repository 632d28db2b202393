"""A session on a broker as a dialect: its replies are contexts, spoken one after the other."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal

from engine.api import ErrorInfo
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect
from realtime.protocol.events import ResumePosition
from realtime.protocol.mqtt import messages
from realtime.protocol.mqtt.messages import AudioHeader, MqttAudioMessage, pack

# As many as a conversation remembers.
MAX_REMEMBERED_REPLIES = 4
# More than the audio that is retained has.
MAX_SENT_RUNS = 2_000
NEVER_SENT = 2**62


class MqttSessionDialect(Dialect):
    """Text messages go to the topic of events, binary ones (``audio.pack``) to that of audio."""

    reports_heard_text = True

    forgiving = True

    def __init__(self, sid: str, options: model.SpeechOptions, can_resume: bool = False) -> None:
        super().__init__(model.ClientHandshake(path={}, query={}, headers={}, request_id=sid))
        self.options: model.SpeechOptions = options
        self.can_resume = can_resume
        self._num_replies = 0
        # The reply that text goes to.
        self._writing: str | None = None
        # Replies that have not ended.
        self._contexts: dict[str, ReplyCounters] = {}
        # Of the last ended replies, which a resume may open again.
        self._past: dict[str, ReplyCounters] = {}
        self._next_seq = 0
        # Messages were lost: what follows, up to the end of that text, makes no sense.
        self._torn = False
        # The reply that ended last.
        self._last: str | None = None

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        event = messages.parse_client_message(message)
        if event.seq is not None and event.seq < self._next_seq:
            return
        if event.seq is not None and event.seq > self._next_seq:
            yield from self._abort(event.seq)
        if event.seq is not None:
            self._next_seq = event.seq + 1
        yield from self._act(event)

    def _act(self, event: messages.ClientMessage) -> Iterator[model.DialectCommand]:
        match event:
            case messages.MqttText() | messages.MqttFlush() if self._torn:
                pass
            case messages.MqttText():
                yield from self._write(event.d)
            case messages.MqttFlush() if self._writing is not None:
                yield model.FlushContext(self._writing)
            case messages.MqttEnd():
                yield from self._end()
            case messages.MqttCancel():
                yield from self._cancel(event.played_ms)
            case messages.MqttClose():
                if self._writing is not None:
                    yield from self._end()
                yield model.FinishContexts()
            case messages.MqttLost() if self.can_resume:
                yield model.SuspendContexts()
            case messages.MqttLeave() | messages.MqttLost():
                yield model.CloseConnection(1000, "leave")
            case messages.MqttResume():
                yield model.ResumeContexts(tuple(self._positions(event.replies)))
            case messages.MqttPing():
                yield _send(messages.MqttPong(d=event.d))

    def _positions(self, given: Iterable[messages.MqttReplyPosition]) -> Iterator[ResumePosition]:
        """Return the position of each open reply, and of those that the client lacks the end of, in their order."""
        known = {str(position.reply): position for position in given}
        lacking = self._contexts | {name: counters for name, counters in self._past.items() if name in known}
        for context in sorted(lacking, key=int):
            position = known.get(context) or messages.MqttReplyPosition(reply=int(context))
            samples = lacking[context].rewind(position.received)
            yield ResumePosition(response_id=context, received_samples=samples, played_ms=position.played_ms)

    def _write(self, text: str) -> Iterator[model.DialectCommand]:
        if self._writing is None:
            yield from self._begin()
        assert self._writing is not None
        yield model.AppendText(self._writing, text)

    def _begin(self) -> Iterator[model.DialectCommand]:
        self._writing = str(self._num_replies)
        self._contexts[self._writing] = ReplyCounters(self._num_replies)
        self._num_replies += 1
        yield model.OpenContext(self._writing, self.options)

    def _end(self) -> Iterator[model.DialectCommand]:
        """End the reply; a reply without text ends as any other."""
        if self._torn:
            self._torn = False
            return
        if self._writing is None:
            yield from self._begin()
        assert self._writing is not None
        context, self._writing = self._writing, None
        yield model.EndContext(context)

    def _cancel(self, played_ms: float | None) -> Iterator[model.DialectCommand]:
        self._writing, self._torn = None, False
        if not self._contexts and self._last is not None:
            yield model.QueryHeard(self._last, played_ms)
        speaking = next(iter(self._contexts), None)
        for context in reversed(list(self._contexts)):  # those that wait first: none begins because another was stopped
            yield model.CancelContext(context, played_ms if context == speaking else None)

    def _abort(self, seq: int) -> Iterator[model.DialectCommand]:
        lost = f"seq is {seq}, expected {self._next_seq}: messages were lost"
        yield _send(messages.MqttFailed(error=ErrorInfo(code="invalid_event", message=lost, param="seq")))
        if self._writing is not None:
            yield model.CancelContext(self._writing)
            self._writing, self._torn = None, True

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextOpened():
                yield _send(messages.MqttStarted(reply=int(event.context), warnings=event.warnings))
            case model.ContextAudio():
                yield from map(model.SendMessage, self._contexts[event.context].audio(event))
            case model.ContextWords():
                yield _send(messages.MqttWordMarks(reply=int(event.context), words=tuple(map(_mark, event.words))))
            case model.ContextFlushed():
                yield _send(self._contexts[event.context].seg_done(event))
            case model.ContextEnded():
                yield from self._ended(event)
            case model.HeardReported():
                heard, left, played_ms = event.heard, event.remaining, event.played_ms
                yield _send(
                    messages.MqttHeard(reply=int(event.context), heard=heard, remaining=left, played_ms=played_ms)
                )
            case model.AllContextsEnded():
                yield model.CloseConnection(1000, "close")

    def _ended(self, event: model.ContextEnded) -> Iterator[model.DialectCommand]:
        line = self._past[event.context] = self._contexts.pop(event.context)
        if len(self._past) > MAX_REMEMBERED_REPLIES:
            del self._past[next(iter(self._past))]
        self._last = event.context
        if self._writing == event.context:  # it failed: the rest of its text is dropped
            self._writing, self._torn = None, event.status == "failed"
        yield model.SendMessage(line.last(event.audio_ms))
        yield _send(done(event))

    def send_resumed(self, contexts: Iterable[model.ResumedContext]) -> Iterator[model.DialectCommand]:
        ended = {one.context: self._past.pop(one.context) for one in contexts if one.had_ended}
        self._contexts = ended | self._contexts
        yield _send(messages.MqttResumed(seq=self._next_seq, replies=tuple(map(int, self._contexts))))

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[model.DialectCommand]:
        yield _send(messages.MqttFailed(error=error))


class ReplyCounters:
    """Numbers of what is sent of one reply. What is sent again after a resume has the same numbers."""

    def __init__(self, reply: int) -> None:
        self._reply = reply
        self._num_messages = 0
        # First sample and first number of the last runs of messages.
        self._sent: deque[tuple[int, int]] = deque(maxlen=MAX_SENT_RUNS)
        # Ends of the flushes, in samples.
        self._flush_ends: list[int] = []

    def audio(self, event: model.ContextAudio) -> Iterator[bytes]:
        """A message for each packet of Opus, one for a run of anything else."""
        while self._sent and self._sent[-1][0] >= event.start_sample:
            self._num_messages = self._sent.pop()[1]
        self._sent.append((event.start_sample, self._num_messages))
        packets = event.packets or (event.data,)
        each_ms = (event.end_ms - event.start_ms) / len(packets)
        for number, sound in enumerate(packets):
            yield self._message(sound, event.start_ms + number * each_ms, False)
            self._num_messages += 1

    def last(self, end_ms: float) -> bytes:
        return self._message(b"", end_ms, True)

    def seg_done(self, event: model.ContextFlushed) -> messages.MqttSegmentDone:
        self._flush_ends.append(event.end_sample)
        return messages.MqttSegmentDone(reply=self._reply, seg=len(self._flush_ends) - 1, end_ms=event.end_ms)

    def rewind(self, num_received: int) -> int:
        """Return the sample up to which a client with this number of messages certainly has the audio."""
        if num_received > self._num_messages:
            return NEVER_SENT
        sample = next((first for first, number in reversed(self._sent) if number <= num_received), 0)
        del self._flush_ends[bisect_left(self._flush_ends, sample) :]
        return sample

    def _message(self, sound: bytes, ts_ms: float, last: bool) -> bytes:
        return pack(MqttAudioMessage(AudioHeader(self._reply, self._num_messages, ts_ms, last), sound))


class MqttOneShotDialect(Dialect):
    """A text that came whole. Binary messages are audio, the one text message is the last of all."""

    reports_heard_text = True

    def __init__(self, sid: str, options: model.SpeechOptions, text: str) -> None:
        super().__init__(model.ClientHandshake(path={}, query={}, headers={}, request_id=sid))
        self.options: model.SpeechOptions = options
        self._text = text
        self._line = ReplyCounters(0)
        # The last message was sent.
        self._over = False

    def start(self) -> Iterator[model.DialectCommand]:
        yield model.OpenContext("0", self.options)
        yield model.AppendText("0", self._text, last=True)

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        """Ignore messages: a single text has no inbox."""
        return iter(())

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextAudio() if not self._over:
                yield from map(model.SendMessage, self._line.audio(event))
            case model.ContextEnded():
                yield from self._finish(done(event))
                yield model.CloseConnection(1000, "done")

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[model.DialectCommand]:
        """Cancel the text; its later end is not a second answer."""
        yield from self._finish(failed(error))

    def _finish(self, last: messages.MqttDone) -> Iterator[model.DialectCommand]:
        if not self._over:
            self._over = True
            yield _send(last)


def done(event: model.ContextEnded) -> messages.MqttDone:
    return messages.MqttDone(
        reply=int(event.context),
        status=event.status,
        audio_ms=event.audio_ms,
        heard=event.heard,
        remaining=event.remaining,
        played_ms=event.played_ms,
        error=event.error,
    )


def failed(error: ErrorInfo) -> messages.MqttDone:
    """Return the terminal message of a text that was refused or broken off."""
    status: Literal["failed"] = "failed"
    return messages.MqttDone(reply=0, status=status, audio_ms=0, heard="", remaining="", played_ms=0, error=error)


def _mark(word: model.TimedWord) -> messages.MqttWordMark:
    return messages.MqttWordMark(text=word.text, start_ms=word.start_ms, end_ms=word.end_ms, at=word.raw_start)


def _send(message: messages.ServerMessage) -> model.SendMessage:
    return model.SendMessage(messages.serialize(message))
