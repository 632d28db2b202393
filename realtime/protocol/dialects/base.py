"""What every dialect does: a client's messages in, commands out; events of its contexts in, messages out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from engine.api import ErrorInfo
from realtime.errors import CloseCode, RemoteProtocolError
from realtime.protocol import model

# The one context of an HTTP request.
HTTP_CONTEXT = ""


class Dialect(ABC):
    """One connection of a vendor's wire. No timer, no queue, no task.

    What the methods give is carried out in order; they may be generators. ``receive`` raises ``RemoteProtocolError``
    for a message that breaks the wire; ``fail`` then tells the client. The constructor raises it for a handshake that
    cannot be served.
    """

    context_timeout_s: float | None = None
    # A message that breaks the wire is answered by ``fail`` and costs no connection.
    forgiving = False
    # Whether the client learns what was heard of a context; otherwise it need not be found.
    reports_heard_text = False
    # Whether the client is told of the session before anything else.
    reports_session = False
    # A handshake is refused while no response could begin: the wire may have no error for it.
    refuses_when_full = True
    # The reason of a close is told after the ends of the contexts.
    sends_error_last = False
    # What stands for this server's own close codes, which clients of most wires do not know.
    close_codes: ClassVar[Mapping[CloseCode, CloseCode]] = {
        CloseCode.IDLE_TIMEOUT: CloseCode.GOING_AWAY,
        CloseCode.SESSION_EXPIRED: CloseCode.GOING_AWAY,
    }
    # HTTP: of the body; read with its first piece.
    media_type = "application/octet-stream"

    # What the handshake tells of it: refused there if it cannot be served, warned of in the answer's headers.
    options: model.SpeechOptions | None = None

    def __init__(self, handshake: model.ClientHandshake) -> None:
        self.handshake = handshake

    @property
    def subprotocol(self) -> str | None:
        """Accepted of those that the client offered."""
        return next(iter(self.handshake.subprotocols), None)

    def headers(self) -> dict[str, str]:
        """Of the answer to the handshake or request."""
        return {}

    def start(self) -> Iterable[model.DialectCommand]:
        """The handshake has succeeded."""
        return ()

    @abstractmethod
    def receive_message(self, message: model.Message) -> Iterable[model.DialectCommand]:
        """A message of the client; on HTTP the body, once."""

    @abstractmethod
    def send_event(self, event: model.DialectEvent) -> Iterable[model.DialectCommand]:
        """What became of a context. Gives no ``Configure`` and no ``QueryHeard``, as ``start`` and ``send_error``."""

    def send_session(self, event: model.SessionEvent) -> Iterable[model.DialectCommand]:
        """The session was opened (with ``reports_session``), or its settings were changed."""
        return ()

    @abstractmethod
    def send_error(self, error: ErrorInfo, close: int | None) -> Iterable[model.DialectCommand]:
        """The connection fails, or a message did: tell the client. With ``close`` the connection ends with that code
        afterwards, whatever is given here."""

    @classmethod
    def reject_handshake(cls, error: ErrorInfo, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        """Body and headers of an HTTP answer with this ``status``, in the vendor's shape."""
        return {"error": {"message": error.message, "code": error.code}}, {}


class HttpDialect(Dialect):
    """One text in the request, its speech in the body of the answer."""

    def start_response(
        self, wish: model.SpeechOptions, text: str, param: str = "text"
    ) -> Iterator[model.DialectCommand]:
        """Raises ``RemoteProtocolError`` where there is no text; ``param`` is what the vendor calls it."""
        if not text.strip():
            raise RemoteProtocolError("invalid_request", f"{param} is empty", param)
        yield model.OpenContext(HTTP_CONTEXT, wish)
        yield model.AppendText(HTTP_CONTEXT, text, last=True)

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
