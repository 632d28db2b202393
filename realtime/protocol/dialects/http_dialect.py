"""HTTP: one text in the request, its speech in the body of the answer."""

from __future__ import annotations

from collections.abc import Iterator

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect

CONTEXT = ""


class HttpDialect(Dialect):
    def start_response(
        self, wish: model.SpeechOptions, text: str, param: str = "text"
    ) -> Iterator[model.DialectCommand]:
        """Raises ``RemoteProtocolError`` where there is no text; ``param`` is what the vendor calls it."""
        if not text.strip():
            raise RemoteProtocolError("invalid_request", f"{param} is empty", param)
        yield model.OpenContext(CONTEXT, wish)
        yield model.AppendText(CONTEXT, text, last=True)

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextAudio():
                yield model.SendMessage(event.data)
            case model.ContextEnded(error=None):
                yield model.CloseConnection()
            case model.ContextEnded(error=ErrorInfo() as error):
                yield model.AbortRequest(error)

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[model.DialectCommand]:
        yield model.AbortRequest(error)
