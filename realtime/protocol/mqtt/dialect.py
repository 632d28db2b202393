"""A session on a broker as a dialect: its replies are contexts, spoken one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from engine.api import ErrorInfo
from realtime.protocol.dialects import base as on
from realtime.protocol.mqtt import messages as say
from realtime.protocol.mqtt.audio import AudioHeader, MqttAudioMessage, pack


class MqttSessionDialect(on.Dialect):
    """Text messages go to the topic of events, binary ones (``audio.pack``) to that of audio."""

    reports_heard_text = True

    forgiving = True

    def __init__(self, sid: str, options: on.SpeechOptions) -> None:
        super().__init__(on.ClientHandshake(path={}, query={}, headers={}, request_id=sid))
        self.options = options
        self._num_replies = 0
        # The reply that text goes to.
        self._writing: str | None = None
        # Those that have not ended.
        self._lines: dict[str, ReplyCounters] = {}
        self._next_seq = 0
        # Messages were lost: what follows, up to the end of that text, makes no sense.
        self._torn = False
        # The reply that ended last.
        self._last: str | None = None

    def receive_message(self, message: on.Message) -> Iterator[on.DialectCommand]:
        event = say.parse_client_message(message)
        if event.seq is not None and event.seq < self._next_seq:
            return
        if event.seq is not None and event.seq > self._next_seq:
            yield from self._abort(event.seq)
        if event.seq is not None:
            self._next_seq = event.seq + 1
        yield from self._act(event)

    def _act(self, event: say.ClientMessage) -> Iterator[on.DialectCommand]:
        match event:
            case say.MqttText() | say.MqttFlush() if self._torn:
                pass
            case say.MqttText():
                yield from self._write(event.d)
            case say.MqttFlush() if self._writing is not None:
                yield on.FlushContext(self._writing)
            case say.MqttEnd():
                yield from self._end()
            case say.MqttCancel():
                yield from self._cancel(event.played_ms)
            case say.MqttClose():
                if self._writing is not None:
                    yield from self._end()
                yield on.FinishContexts()
            case say.MqttLeave():
                yield on.CloseConnection(1000, "leave")
            case say.MqttPing():
                yield _send(say.MqttPong(d=event.d))

    def _write(self, text: str) -> Iterator[on.DialectCommand]:
        if self._writing is None:
            yield from self._begin()
        assert self._writing is not None
        yield on.AppendText(self._writing, text)

    def _begin(self) -> Iterator[on.DialectCommand]:
        assert self.options is not None
        self._writing = str(self._num_replies)
        self._lines[self._writing] = ReplyCounters(self._num_replies)
        self._num_replies += 1
        yield on.OpenContext(self._writing, self.options)

    def _end(self) -> Iterator[on.DialectCommand]:
        """Also of a reply without text, which then has an end as any other."""
        if self._torn:
            self._torn = False
            return
        if self._writing is None:
            yield from self._begin()
        assert self._writing is not None
        context, self._writing = self._writing, None
        yield on.EndContext(context)

    def _cancel(self, played_ms: float | None) -> Iterator[on.DialectCommand]:
        self._writing, self._torn = None, False
        if not self._lines and self._last is not None:
            yield on.QueryHeard(self._last, played_ms)
        speaking = next(iter(self._lines), None)
        for context in reversed(list(self._lines)):  # those that wait first: none begins because another was stopped
            yield on.CancelContext(context, played_ms if context == speaking else None)

    def _abort(self, seq: int) -> Iterator[on.DialectCommand]:
        lost = f"seq is {seq}, expected {self._next_seq}: messages were lost"
        yield _send(say.MqttFailed(error=ErrorInfo(code="invalid_event", message=lost, param="seq")))
        if self._writing is not None:
            yield on.CancelContext(self._writing)
            self._writing, self._torn = None, True

    def send_event(self, event: on.DialectEvent) -> Iterator[on.DialectCommand]:
        match event:
            case on.ContextOpened():
                yield _send(say.MqttStarted(reply=int(event.context), warnings=event.warnings))
            case on.ContextAudio():
                yield from map(on.SendMessage, self._lines[event.context].audio(event))
            case on.ContextWords():
                yield _send(say.MqttWordMarks(reply=int(event.context), words=tuple(map(_mark, event.words))))
            case on.ContextFlushed():
                yield _send(self._lines[event.context].seg_done(event.end_ms))
            case on.ContextEnded():
                yield from self._ended(event)
            case on.HeardReported():
                heard, left, played_ms = event.heard, event.remaining, event.played_ms
                yield _send(say.MqttHeard(reply=int(event.context), heard=heard, remaining=left, played_ms=played_ms))
            case on.AllContextsEnded():
                yield on.CloseConnection(1000, "close")

    def _ended(self, event: on.ContextEnded) -> Iterator[on.DialectCommand]:
        line = self._lines.pop(event.context)
        self._last = event.context
        if self._writing == event.context:  # it failed: the rest of its text is dropped
            self._writing, self._torn = None, event.status == "failed"
        yield on.SendMessage(line.last(event.audio_ms))
        yield _send(done(event))

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[on.DialectCommand]:
        yield _send(say.MqttFailed(error=error))


class ReplyCounters:
    """Numbers of what is sent of one reply."""

    def __init__(self, reply: int) -> None:
        self._reply = reply
        self._num_messages = 0
        self._num_flushes = 0

    def audio(self, event: on.ContextAudio) -> Iterator[bytes]:
        """A message for each packet of Opus, one for a run of anything else."""
        packets = event.packets or (event.data,)
        each_ms = (event.end_ms - event.start_ms) / len(packets)
        for number, sound in enumerate(packets):
            yield self._next(sound, event.start_ms + number * each_ms, False)

    def last(self, end_ms: float) -> bytes:
        return self._next(b"", end_ms, True)

    def seg_done(self, end_ms: float) -> say.MqttSegmentDone:
        seg, self._num_flushes = self._num_flushes, self._num_flushes + 1
        return say.MqttSegmentDone(reply=self._reply, seg=seg, end_ms=end_ms)

    def _next(self, sound: bytes, ts_ms: float, last: bool) -> bytes:
        seq, self._num_messages = self._num_messages, self._num_messages + 1
        return pack(MqttAudioMessage(AudioHeader(self._reply, seq, ts_ms, last), sound))


class MqttOneShotDialect(on.Dialect):
    """A text that came whole. Binary messages are audio, the one text message is the last of all."""

    reports_heard_text = True

    def __init__(self, sid: str, options: on.SpeechOptions, text: str) -> None:
        super().__init__(on.ClientHandshake(path={}, query={}, headers={}, request_id=sid))
        self.options = options
        self._text = text
        self._line = ReplyCounters(0)
        # The last message was sent.
        self._over = False

    def start(self) -> Iterator[on.DialectCommand]:
        assert self.options is not None
        yield on.OpenContext("0", self.options)
        yield on.AppendText("0", self._text, last=True)

    def receive_message(self, message: on.Message) -> Iterator[on.DialectCommand]:
        """It has no topic where anybody could write."""
        return iter(())

    def send_event(self, event: on.DialectEvent) -> Iterator[on.DialectCommand]:
        match event:
            case on.ContextAudio() if not self._over:
                yield from map(on.SendMessage, self._line.audio(event))
            case on.ContextEnded():
                yield from self._finish(done(event))
                yield on.CloseConnection(1000, "done")

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[on.DialectCommand]:
        """Cancel the text; its later end is not a second answer."""
        yield from self._finish(failed(error))

    def _finish(self, last: say.MqttDone) -> Iterator[on.DialectCommand]:
        if not self._over:
            self._over = True
            yield _send(last)


def done(event: on.ContextEnded) -> say.MqttDone:
    return say.MqttDone(
        reply=int(event.context),
        status=event.status,
        audio_ms=event.audio_ms,
        heard=event.heard,
        remaining=event.remaining,
        played_ms=event.played_ms,
        error=event.error,
    )


def failed(error: ErrorInfo) -> say.MqttDone:
    """Of a text that was not even begun, or was broken off."""
    status: Literal["failed"] = "failed"
    return say.MqttDone(reply=0, status=status, audio_ms=0, heard="", remaining="", played_ms=0, error=error)


def _mark(word: on.TimedWord) -> say.MqttWordMark:
    return say.MqttWordMark(text=word.text, start_ms=word.start_ms, end_ms=word.end_ms, at=word.raw_start)


def _send(message: say.ServerMessage) -> on.SendMessage:
    return on.SendMessage(say.serialize(message))
