"""HTTP: one text in the request, its speech in the body of the answer."""

from __future__ import annotations

from collections.abc import Iterator

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError
from realtime.protocol.dialects import base as on

CONTEXT = ""


class HttpDialect(on.Dialect):
    def start_response(self, wish: on.SpeechOptions, text: str, param: str = "text") -> Iterator[on.DialectCommand]:
        """Raises ``RemoteProtocolError`` where there is no text; ``param`` is what the vendor calls it."""
        if not text.strip():
            raise RemoteProtocolError("invalid_request", f"{param} is empty", param)
        yield on.OpenContext(CONTEXT, wish)
        yield on.AppendText(CONTEXT, text, last=True)

    def send_event(self, event: on.DialectEvent) -> Iterator[on.DialectCommand]:
        match event:
            case on.ContextAudio():
                yield on.SendMessage(event.data)
            case on.ContextEnded(error=None):
                yield on.CloseConnection()
            case on.ContextEnded(error=ErrorInfo() as error):
                yield on.AbortRequest(error)

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[on.DialectCommand]:
        yield on.AbortRequest(error)
