"""The listener: uvicorn's server and protocols with the limits that a voice server needs."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
import weakref
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State

from realtime.config import ConfigError
from realtime.config_sections import LimitSettings, ListenSettings
from realtime.h11_limits import ChunkLimitedConnection
from realtime.transports.acceptor import Acceptor
from realtime.transports.listening_sockets import Listeners
from realtime.transports.transport import BODY_FOLLOWS, EXTENSION, SocketControls, write_timeout_s
from realtime.transports.websocket_frames import FIN, OPCODE, WHOLE, FrameSplitter, payload, whole_frame
from sessions.weak import weak_method

if TYPE_CHECKING:
    from realtime.server import SpeechServer

log = logging.getLogger("voicewire.listener")

TOO_MANY_BODY = (
    b'{"error":{"message":"max_http_connections is reached","type":"capacity_error","param":null,'
    b'"code":"too_many_connections"}}'
)
TOO_MANY_CONNECTIONS_RESPONSE = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(TOO_MANY_BODY), TOO_MANY_BODY)
)
# Per WebSocket and loop iteration, so that a flood of tiny frames does not delay others.
READ_BYTES = 16_384
# Longer frames pass the general parser, whose unmasking in C is faster from there on.
SHORT_FRAME_BYTES = 1_024
# Per WebSocket; with more unprocessed messages nothing is read.
READ_AHEAD_MESSAGES = 4
# A message beyond this multiple of ``max_message_bytes`` is not read to its end.
HARD_LIMIT = 4


class UvicornConfig(uvicorn.Config):
    """uvicorn's configuration, from the server's settings."""

    def __init__(self, app: Any, listen: ListenSettings, limits: LimitSettings) -> None:
        self.listen = listen
        self.write_timeout_s = write_timeout_s(limits)
        self.max_http_connections = limits.max_http_connections
        # Open ones that are no WebSocket, or not yet.
        self.http_connections: set[asyncio.Protocol] = set()
        super().__init__(
            app,
            http=SpeechHttpProtocol,
            ws=SpeechWebSocketProtocol,
            ws_max_size=HARD_LIMIT * limits.max_message_bytes,
            ws_ping_interval=listen.ping_interval_s,
            ws_ping_timeout=listen.ping_timeout_s,
            ws_per_message_deflate=False,
            backlog=listen.backlog,
            lifespan="on",
            loop="asyncio",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            ssl_certfile=listen.tls_certificate,
            ssl_keyfile=listen.tls_key,
            timeout_graceful_shutdown=max(1, round(listen.close_timeout_s)),
        )

    def load(self) -> None:
        """Load the certificate; raises ``ConfigError`` if it cannot be used."""
        try:
            super().load()
        except (OSError, ssl.SSLError) as error:
            files = f"{self.listen.tls_certificate}, listen.tls_key = {self.listen.tls_key}"
            raise ConfigError(f"listen.tls_certificate = {files}: {error}") from error


class SpeechHttpProtocol(H11Protocol):
    """Closes a connection that does not come up with its first request, or the next one, and cuts one that takes
    nothing of an answer; the number of open connections is limited."""

    config: UvicornConfig
    conn: ChunkLimitedConnection
    _deadline: asyncio.TimerHandle | None = None
    _write_deadline: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app = FencedApp(self.app, weakref.ref(self))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.conn = ChunkLimitedConnection(h11.SERVER)
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=self.config.listen.write_buffer_bytes)
        self.config.http_connections.add(self)
        if len(self.config.http_connections) > self.config.max_http_connections:
            log.info("connection rejected", extra={"code": "too_many_connections"})
            transport.write(TOO_MANY_CONNECTIONS_RESPONSE)
            self._close()
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timers()
        super().connection_lost(exc)
        self.cycle = None  # type: ignore[assignment]  # it refers to this object

    def fence(self) -> bool:
        """Report a closing connection; what is sent then is dropped."""
        if self.transport.is_closing() and self.cycle is not None:
            self.cycle.disconnected = True
        return self.transport.is_closing()

    def handle_websocket_upgrade(self, event: Any) -> None:
        self._cancel_timers()
        super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed request; if a response has begun, close the connection."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.close()

    def on_response_complete(self) -> None:
        self._await_request()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_deadline = self.loop.call_later(self.config.write_timeout_s, self._abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._write_deadline)

    def _abort(self) -> None:
        log.info("closed unresponsive connection", extra={"code": "slow_reader"})
        self.transport.abort()

    def _await_request(self) -> None:
        _cancel(self._deadline)
        timeout_s = self.config.listen.handshake_timeout_s
        self._deadline = self.loop.call_later(timeout_s, self._require_request_after, self.scope)

    def _require_request_after(self, scope: object) -> None:
        if self.scope is scope and not self.transport.is_closing():
            self._close()

    def _close(self) -> None:
        self.transport.close()
        self.loop.call_later(self.config.listen.close_timeout_s, self.transport.abort)

    def _cancel_timers(self) -> None:
        self.config.http_connections.discard(self)
        _cancel(self._deadline)
        _cancel(self._write_deadline)


class FencedApp:
    """An application whose answers are dropped once the line is closing: asyncio warns of each write after that."""

    def __init__(self, app: ASGIApp, protocol: weakref.ref[SpeechHttpProtocol]) -> None:
        self._app = app
        self._protocol = protocol

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        protocol = self._protocol()

        async def fenced_send(message: Any) -> None:
            if protocol is None or not protocol.fence():
                if protocol is not None and BODY_FOLLOWS in message:
                    protocol.conn.holds_head = True
                await send(message)

        await self._app(scope, receive, fenced_send)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class SpeechWebSocketProtocol(WebSocketsSansIOProtocol):
    """Tells the application when it can write, and lets no closed connection linger. Messages that are whole in a
    frame go past the general parser, both ways."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.close_timeout = cast(UvicornConfig, self.config).listen.close_timeout_s
        self._cutter: FrameSplitter | None = None
        # A message has begun and its last frame has not arrived.
        self._in_pieces = False

    def data_received(self, data: bytes) -> None:
        if self._cutter is not None:
            for frame in self._cutter.push(data):
                self._on_frame(frame, self._cutter.is_broken)
            return
        shook_hands = self.handshake_initiated
        super().data_received(data)
        config = cast(UvicornConfig, self.config)
        if (
            config.listen.fast_frame_parser
            and self.handshake_initiated
            and not (shook_hands or self.conn.reader.buffer)
        ):
            self._cutter = FrameSplitter(config.ws_max_size)

    def _on_frame(self, frame: bytes, is_broken: bool) -> None:
        kind = WHOLE.get(frame[0])
        is_short = len(frame) <= SHORT_FRAME_BYTES
        if kind and is_short and self.conn.state is State.OPEN and not (self._in_pieces or is_broken):
            self.frames, self.curr_msg_data_type = [payload(frame)], kind
            self.send_receive_event_to_app()
            return
        if frame[0] & OPCODE in (Opcode.CONT, Opcode.TEXT, Opcode.BINARY):
            self._in_pieces = not frame[0] & FIN
        super().data_received(frame)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        limit_read_size(transport, READ_BYTES)
        super().connection_made(transport)

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            line = SocketControls(
                writable=self.writable, abort=self.transport.abort, ended=weak_method(self._has_ended)
            )
            cast(dict[str, Any], self.scope["extensions"])[EXTENSION] = line

    def handle_cont(self, event: Frame) -> None:
        """Join the pieces in one buffer: a list takes fifty bytes more for each piece, eight for an empty one."""
        if not isinstance(self.frames[0], bytearray):
            self.frames[0] = bytearray(self.frames[0])  # type: ignore[call-overload]
        self.frames[0] += event.data
        if event.fin:
            self.send_receive_event_to_app()

    def send_receive_event_to_app(self) -> None:
        """uvicorn stops reading at every message until it is taken, which costs more than the message itself, and logs
        text that is no UTF-8 as an internal error."""
        data, self.frames = b"".join(self.frames), []
        if self.close_sent:
            return
        try:
            if self.curr_msg_data_type == "text":
                self.queue.put_nowait({"type": "websocket.receive", "text": data.decode()})
            else:
                self.queue.put_nowait({"type": "websocket.receive", "bytes": data})
        except UnicodeDecodeError:
            self.conn.fail(CloseCode.INVALID_DATA)
            self.handle_parser_exception()
            return
        if not self.read_paused and self.queue.qsize() > READ_AHEAD_MESSAGES:
            self.read_paused = True
            self.transport.pause_reading()

    def _has_ended(self) -> bool:
        return self.close_sent or self.disconnected or self.transport.is_closing()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.conn.parser.close()  # a generator that refers to the object that holds it

    async def send(self, message: Any) -> None:
        data = sole_payload(message)
        if data is not None and self._can_send_past_parser:
            self.transport.write(whole_frame(data))
            return
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True  # else uvicorn logs an error for each refusal

    @property
    def _can_send_past_parser(self) -> bool:
        is_open = self.conn.state is State.OPEN and not self.disconnected
        return is_open and self._cutter is not None and self.writable.is_set()

    async def run_asgi(self) -> None:
        try:
            await super().run_asgi()
        finally:
            self.loop.call_later(self.close_timeout, self.transport.abort)


def sole_payload(message: Any) -> str | bytes | None:
    """Return the text or the bytes of a message to send that has one of them and no other field, or None."""
    if message["type"] != "websocket.send" or len(message) != 2:
        return None
    text, data = message.get("text"), message.get("bytes")
    if isinstance(text, str):
        return text
    return data if isinstance(data, bytes) else None


def limit_read_size(transport: Any, num_bytes: int) -> None:
    """Read in pieces of this many bytes, with other tasks in between.

    asyncio has no setting for it, and TLS has a buffer of 256 kB: 100,000 tiny frames in it would delay all others.
    """
    tls = getattr(transport, "_ssl_protocol", None)
    if tls is not None:
        tls._ssl_buffer = bytearray(num_bytes)
        tls._ssl_buffer_view = memoryview(tls._ssl_buffer)
    (tls or transport).max_size = num_bytes


class DrainingServer(uvicorn.Server):
    """Lets what is spoken end before it shuts down, and then returns normally."""

    # Set at the startup.
    acceptor: Acceptor

    def __init__(self, config: UvicornConfig, speech: SpeechServer, listeners: Listeners) -> None:
        super().__init__(config)
        self._speech = speech
        self._listeners = listeners
        self.on_started: Callable[[], None] = lambda: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets=[])  # uvicorn's own servers count no handshakes
        config = cast(UvicornConfig, self.config)
        self.acceptor = Acceptor(
            self._create_protocol,
            config.listen.handshake_timeout_s,
            lambda: config.max_http_connections - len(config.http_connections),
        )
        self.acceptor.listen(self._listeners.plain, config.backlog)
        self.acceptor.listen(self._listeners.tls, config.backlog, config.ssl)
        for listener in self._listeners.all:
            host, port, *_ = listener.getsockname()
            log.info("listening", extra={"host": host, "port": port, "tls": listener in self._listeners.tls})
        self.on_started()

    def _create_protocol(self) -> asyncio.Protocol:
        return SpeechHttpProtocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End after the drain, and skip the drain on a second SIGINT. uvicorn would raise the signals again at the end,
        so that a clean end would look like a crash."""
        if self.should_exit and sig == signal.SIGINT:
            self._loop.call_soon_threadsafe(self._speech.skip_drain)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._speech.drain()
        self.acceptor.close()
        await super().shutdown(sockets)
        await self.acceptor.wait_closed()
