"""Base classes of dialects: they turn messages into commands, and events of contexts into messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

from engine.api import ErrorInfo
from realtime.errors import CloseCode, RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.agent_turns import AgentEvent

# The one context of an HTTP request.
HTTP_CONTEXT = ""


class Dialect(ABC):
    """A connection of a wire, without timer, queue or task.

    The commands that the methods return are carried out in order; the methods may be generators. ``receive_message``
    raises ``RemoteProtocolError`` for a message that breaks the wire; ``send_error`` then reports it. The constructor
    raises it for a handshake that cannot be served.
    """

    context_timeout_s: float | None = None
    # A message that breaks the wire is answered by ``send_error`` and does not close the connection.
    forgiving = False
    # True if the client receives heard text; otherwise no text is aligned.
    reports_heard_text = False
    # True if ``send_session`` is called first.
    reports_session = False
    # True if a session outlives a lost connection.
    can_resume: bool = False
    # True to refuse handshakes while no response could begin, for wires without an error for it.
    refuses_when_full = True
    # True if it gives commands to the server's built-in agent.
    uses_agent = False
    # True if the reason of a close is sent after the ends of the contexts.
    sends_error_last = False
    # Replacements of this server's own close codes, which clients of most wires do not know.
    close_codes: ClassVar[Mapping[CloseCode, CloseCode]] = {
        CloseCode.IDLE_TIMEOUT: CloseCode.GOING_AWAY,
        CloseCode.SESSION_EXPIRED: CloseCode.GOING_AWAY,
    }
    # HTTP: media type of the body; read with its first piece.
    media_type = "application/octet-stream"

    # Options in the handshake. Unsupported formats refuse it; warnings are in the answer's headers.
    options: model.SpeechOptions | None = None

    # State of each context that is open, by id.
    _contexts: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, handshake: model.ClientHandshake) -> None:
        self.handshake = handshake

    @property
    def subprotocol(self) -> str | None:
        """The subprotocol to accept of those that the client offered."""
        return next(iter(self.handshake.subprotocols), None)

    @property
    def open_contexts(self) -> Iterable[str]:
        """Ids of the contexts whose state is held: all of them are open in the ``Conversation``."""
        return self._contexts

    def headers(self) -> dict[str, str]:
        """Return headers of the answer to the handshake or request."""
        return {}

    def start(self) -> Iterable[model.DialectCommand]:
        """Return commands for the start, after the handshake."""
        return ()

    @abstractmethod
    def receive_message(self, message: model.Message) -> Iterable[model.DialectCommand]:
        """Return commands for a message of the client; on HTTP for the body, once."""

    @abstractmethod
    def send_event(self, event: model.DialectEvent) -> Iterable[model.DialectCommand]:
        """Return commands for an event: not ``Configure`` or ``QueryHeard``, as in ``start`` and ``send_error``."""

    def send_agent_event(self, event: AgentEvent) -> Iterable[model.DialectCommand]:
        """Return commands for an event of the agent, with ``uses_agent``: any but ``Configure``."""
        return ()

    def send_session(self, event: model.SessionEvent) -> Iterable[model.DialectCommand]:
        """Return commands for a session that was opened (with ``reports_session``), changed or resumed."""
        return ()

    def send_resumed(self, contexts: Iterable[model.ResumedContext]) -> Iterable[model.DialectCommand]:
        """Return commands for contexts that go on after ``ResumeContexts``."""
        return ()

    @abstractmethod
    def send_error(self, error: ErrorInfo, close: int | None) -> Iterable[model.DialectCommand]:
        """Return commands that report an error. With ``close`` the connection is closed with that code afterwards."""

    @classmethod
    def reject_handshake(cls, error: ErrorInfo, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        """Return body and headers of an HTTP answer with this ``status``, in the vendor's shape."""
        return {"error": {"message": error.message, "code": error.code}}, {}


class HttpDialect(Dialect):
    """Base of HTTP wires: one text in the request, its speech in the body of the answer."""

    def start_response(
        self, options: model.SpeechOptions, text: str, param: str = "text"
    ) -> Iterator[model.DialectCommand]:
        """Speak a text. Raises ``RemoteProtocolError`` if it is empty; ``param`` is its field in the request."""
        if not text.strip():
            raise RemoteProtocolError("invalid_request", f"{param} is empty", param)
        yield model.OpenContext(HTTP_CONTEXT, options)
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


class DialectRoute(NamedTuple):
    """The address of a wire on HTTP, and its dialect."""

    path: str
    dialect: type[Dialect]
    # ``http``: POST, one body in, one streamed body out.
    transport: Literal["socket", "http"] = "socket"
    # Contexts are spoken one after the other; otherwise at once, distinguished by their ids.
    serial: bool = False
    # The API key may stand in the first message.
    late_key: bool = False
