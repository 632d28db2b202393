"""The smallest whole dialect: a line of text in, PCM out, ``done`` at the end. An empty line ends the text."""

from __future__ import annotations

from collections.abc import Iterator

from engine.api import ErrorInfo
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect
from realtime.protocol.dialects.parsing import text_only
from realtime.protocol.dialects.registry import DialectRoute


class MinimalDialect(Dialect):
    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self.options = model.SpeechOptions(
            voice=handshake.query.get("voice"),
            format=model.RequestedFormat(handshake.query.get("encoding", "pcm_s16le")),
        )
        self._turn = 0
        self._open = False

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        text = text_only(message)
        context = str(self._turn)
        if text.startswith("key "):
            yield model.AuthenticateKey(text.removeprefix("key "))
        elif text == "stop":
            yield model.CancelContext(context)
        elif text == "bye":
            yield model.FinishContexts()
        elif text:
            if not self._open:
                self._open = True
                yield model.OpenContext(context, self.options, track=self.handshake.query.get("line"))
            yield model.AppendText(context, text + " ")
        else:
            yield model.EndContext(context)
            self._open, self._turn = False, self._turn + 1

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextAudio():
                yield model.SendMessage(event.data)
            case model.ContextEnded():
                yield model.SendMessage(
                    f"done {event.context} {event.status} {event.error.code if event.error else ''}".strip()
                )
            case model.AllContextsEnded():
                yield model.CloseConnection(1000)

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[model.DialectCommand]:
        yield model.SendMessage(f"error {error.code}")


class Pairs(MinimalDialect):
    """Two messages for each piece of audio."""

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        if isinstance(event, model.ContextAudio):
            yield model.SendMessage(f"begin {event.context} {event.start_ms}")
            yield model.SendMessage(f"end {event.context} {event.start_ms}")
        else:
            yield from super().send_event(event)


class TinyFile(Dialect):
    """The same over HTTP: a body in, its audio out."""

    media_type = "audio/pcm"

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        assert isinstance(message, bytes)
        yield model.OpenContext("", model.SpeechOptions(voice=self.handshake.query.get("voice")))
        yield model.AppendText("", message.decode(), last=True)

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextAudio():
                yield model.SendMessage(event.data)
            case model.ContextEnded(error=None):
                yield model.CloseConnection()
            case model.ContextEnded():
                yield model.AbortRequest(event.error)

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[model.DialectCommand]:
        yield model.AbortRequest(error)


TINY_WIRES = (
    DialectRoute("/tiny", MinimalDialect, serial=True),
    DialectRoute("/tiny/at-once", MinimalDialect),
    DialectRoute("/tiny/late", MinimalDialect, late_key=True),
    DialectRoute("/tiny/pairs", Pairs),
    DialectRoute("/tiny/file", TinyFile, "http"),
)
