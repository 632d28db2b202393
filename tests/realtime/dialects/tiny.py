"""The smallest whole dialect: a line of text in, PCM out, ``done`` at the end. An empty line ends the text."""

from __future__ import annotations

from collections.abc import Iterator

from realtime.protocol.dialects import base as on
from realtime.protocol.dialects.parsing import text_only
from realtime.protocol.dialects.registry import Wire
from realtime.protocol.events import ErrorBody


class Tiny(on.Dialect):
    def __init__(self, handshake: on.Handshake) -> None:
        super().__init__(handshake)
        self.wish = on.Wish(
            voice=handshake.query.get("voice"), format=on.WireFormat(handshake.query.get("encoding", "pcm_s16le"))
        )
        self._turn = 0
        self._open = False

    def receive(self, message: on.Message) -> Iterator[on.Intent]:
        text = text_only(message)
        context = str(self._turn)
        if text.startswith("key "):
            yield on.Authenticate(text.removeprefix("key "))
        elif text == "stop":
            yield on.Cancel(context)
        elif text == "bye":
            yield on.Finish()
        elif text:
            if not self._open:
                self._open = True
                yield on.Open(context, self.wish, line=self.handshake.query.get("line"))
            yield on.Append(context, text + " ")
        else:
            yield on.End(context)
            self._open, self._turn = False, self._turn + 1

    def tell(self, event: on.Event) -> Iterator[on.Intent]:
        match event:
            case on.Audio():
                yield on.Send(event.data)
            case on.Ended():
                yield on.Send(f"done {event.context} {event.status} {event.error.code if event.error else ''}".strip())
            case on.Silent():
                yield on.Close(1000)

    def fail(self, error: ErrorBody, close: int | None) -> Iterator[on.Intent]:
        yield on.Send(f"error {error.code}")


class Pairs(Tiny):
    """Two messages for each piece of audio."""

    def tell(self, event: on.Event) -> Iterator[on.Intent]:
        if isinstance(event, on.Audio):
            yield on.Send(f"begin {event.context} {event.start_ms}")
            yield on.Send(f"end {event.context} {event.start_ms}")
        else:
            yield from super().tell(event)


class TinyFile(on.Dialect):
    """The same over HTTP: a body in, its audio out."""

    media_type = "audio/pcm"

    def receive(self, message: on.Message) -> Iterator[on.Intent]:
        assert isinstance(message, bytes)
        yield on.Open("", on.Wish(voice=self.handshake.query.get("voice")))
        yield on.Append("", message.decode(), last=True)

    def tell(self, event: on.Event) -> Iterator[on.Intent]:
        match event:
            case on.Audio():
                yield on.Send(event.data)
            case on.Ended(error=None):
                yield on.Close()
            case on.Ended():
                yield on.Abort(event.error)

    def fail(self, error: ErrorBody, close: int | None) -> Iterator[on.Intent]:
        yield on.Abort(error)


TINY_WIRES = (
    Wire("/tiny", Tiny, serial=True),
    Wire("/tiny/at-once", Tiny),
    Wire("/tiny/late", Tiny, late_key=True),
    Wire("/tiny/pairs", Pairs),
    Wire("/tiny/file", TinyFile, "http"),
)
