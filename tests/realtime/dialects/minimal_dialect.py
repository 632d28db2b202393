"""The smallest whole dialect: a line of text in, PCM out, ``done`` at the end. An empty line ends the text."""

from __future__ import annotations

from collections.abc import Iterator

from engine.api import ErrorInfo
from realtime.protocol.dialects import base as on
from realtime.protocol.dialects.parsing import text_only
from realtime.protocol.dialects.registry import DialectRoute


class MinimalDialect(on.Dialect):
    def __init__(self, handshake: on.ClientHandshake) -> None:
        super().__init__(handshake)
        self.options = on.SpeechOptions(
            voice=handshake.query.get("voice"), format=on.RequestedFormat(handshake.query.get("encoding", "pcm_s16le"))
        )
        self._turn = 0
        self._open = False

    def receive_message(self, message: on.Message) -> Iterator[on.DialectCommand]:
        text = text_only(message)
        context = str(self._turn)
        if text.startswith("key "):
            yield on.AuthenticateKey(text.removeprefix("key "))
        elif text == "stop":
            yield on.CancelContext(context)
        elif text == "bye":
            yield on.FinishContexts()
        elif text:
            if not self._open:
                self._open = True
                yield on.OpenContext(context, self.options, track=self.handshake.query.get("line"))
            yield on.AppendText(context, text + " ")
        else:
            yield on.EndContext(context)
            self._open, self._turn = False, self._turn + 1

    def send_event(self, event: on.DialectEvent) -> Iterator[on.DialectCommand]:
        match event:
            case on.ContextAudio():
                yield on.SendMessage(event.data)
            case on.ContextEnded():
                yield on.SendMessage(
                    f"done {event.context} {event.status} {event.error.code if event.error else ''}".strip()
                )
            case on.AllContextsEnded():
                yield on.CloseConnection(1000)

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[on.DialectCommand]:
        yield on.SendMessage(f"error {error.code}")


class Pairs(MinimalDialect):
    """Two messages for each piece of audio."""

    def send_event(self, event: on.DialectEvent) -> Iterator[on.DialectCommand]:
        if isinstance(event, on.ContextAudio):
            yield on.SendMessage(f"begin {event.context} {event.start_ms}")
            yield on.SendMessage(f"end {event.context} {event.start_ms}")
        else:
            yield from super().send_event(event)


class TinyFile(on.Dialect):
    """The same over HTTP: a body in, its audio out."""

    media_type = "audio/pcm"

    def receive_message(self, message: on.Message) -> Iterator[on.DialectCommand]:
        assert isinstance(message, bytes)
        yield on.OpenContext("", on.SpeechOptions(voice=self.handshake.query.get("voice")))
        yield on.AppendText("", message.decode(), last=True)

    def send_event(self, event: on.DialectEvent) -> Iterator[on.DialectCommand]:
        match event:
            case on.ContextAudio():
                yield on.SendMessage(event.data)
            case on.ContextEnded(error=None):
                yield on.CloseConnection()
            case on.ContextEnded():
                yield on.AbortRequest(event.error)

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[on.DialectCommand]:
        yield on.AbortRequest(error)


TINY_WIRES = (
    DialectRoute("/tiny", MinimalDialect, serial=True),
    DialectRoute("/tiny/at-once", MinimalDialect),
    DialectRoute("/tiny/late", MinimalDialect, late_key=True),
    DialectRoute("/tiny/pairs", Pairs),
    DialectRoute("/tiny/file", TinyFile, "http"),
)
