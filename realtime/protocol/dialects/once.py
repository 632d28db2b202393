"""HTTP: one text in the request, its speech in the body of the answer."""

from __future__ import annotations

from collections.abc import Iterator

from realtime.protocol.dialects import base as on
from realtime.protocol.errors import RemoteProtocolError
from realtime.protocol.events import ErrorBody

CONTEXT = ""


class Once(on.Dialect):
    def speak(self, wish: on.Wish, text: str, param: str = "text") -> Iterator[on.Intent]:
        """Raises ``RemoteProtocolError`` where there is no text; ``param`` is what the vendor calls it."""
        if not text.strip():
            raise RemoteProtocolError("invalid_request", f"{param} is empty", param)
        yield on.Open(CONTEXT, wish)
        yield on.Append(CONTEXT, text, last=True)

    def tell(self, event: on.Event) -> Iterator[on.Intent]:
        match event:
            case on.Audio():
                yield on.Send(event.data)
            case on.Ended(error=None):
                yield on.Close()
            case on.Ended(error=ErrorBody() as error):
                yield on.Abort(error)

    def fail(self, error: ErrorBody, close: int | None) -> Iterator[on.Intent]:
        yield on.Abort(error)
