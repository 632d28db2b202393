"""Warm up a process: its first requests take longer than later ones.

Requests of its own go through a listener's connection and an application to a server that is made for it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route
from uvicorn.server import ServerState

from engine.api import SpeechError
from realtime.config_sections import ListenSettings
from realtime.tracing import TraceParents
from realtime.transports.http_routes import error_handler
from realtime.transports.listener import SpeechHttpProtocol, UvicornConfig
from realtime.transports.listening_sockets import listening_sockets
from realtime.transports.speech_routes import SpeechEndpoint

if TYPE_CHECKING:
    from realtime.server import SpeechServer

log = logging.getLogger("voicewire.warm_up")

# Python's interpreter specializes code that has run some times.
NUM_REQUESTS = 25
TIMEOUT_S = 5.0
# The event loop stands still meanwhile.
CONNECT_TIMEOUT_S = 1.0
# Two codec frames of any model, many times over.
MAX_ANSWER_BYTES = 2**20
PATH = "/v1/audio/speech"
BODY = msgspec.json.encode(
    {
        "input": "Good morning, this is the first of some sentences. They are spoken by no voice, and sent nowhere.",
        "response_format": "pcm",
    }
)
REQUEST = (
    b"POST %b HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nConnection: keep-alive\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (PATH.encode(), len(BODY), BODY)
)
OK = b"HTTP/1.1 200 "
LAST_CHUNK = b"\r\n0\r\n\r\n"


async def warm_up(make_server: Callable[[], SpeechServer]) -> None:
    """Serve some requests like those of clients on a server that is made for it. A failure is logged."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await _serve_requests(make_server())
    except TimeoutError:
        log.warning("warm-up took too long")
    except Exception:
        log.exception("warm-up failed")


async def _serve_requests(server: SpeechServer) -> None:
    try:
        routes = [Route(PATH, SpeechEndpoint(server), methods=["POST"])]
        handlers = {SpeechError: error_handler}
        app = Starlette(routes=routes, middleware=[Middleware(TraceParents)], exception_handlers=handlers)
        app.state.server = server
        config = UvicornConfig(app, server.config.listen, server.config.limits)
        config.load()
        await server.engine.start()
        await _send_requests(partial(SpeechHttpProtocol, config=config, server_state=ServerState(), app_state={}))
    finally:
        await server.aclose()


async def _send_requests(make_protocol: Callable[[], SpeechHttpProtocol]) -> None:
    near, far = _connected_sockets()
    line, _ = await asyncio.get_running_loop().connect_accepted_socket(make_protocol, far)
    reader, writer = await asyncio.open_connection(sock=near, limit=MAX_ANSWER_BYTES)
    try:
        for _ in range(NUM_REQUESTS):
            await _request(reader, writer)
    finally:
        line.abort()
        writer.transport.abort()
        await asyncio.sleep(0)


async def _request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Raises ``RuntimeError`` if the request is refused."""
    writer.write(REQUEST)
    answer = await reader.readuntil(b"\r\n\r\n")
    if not answer.startswith(OK):
        raise RuntimeError(f"a request was answered with {answer[: len(OK) + 2]!r}")
    await reader.readuntil(LAST_CHUNK)


def _connected_sockets() -> tuple[socket.socket, socket.socket]:
    """Return two ends of a connection over the loopback address, which callers without a key must have.

    Raises ``OSError``."""
    [listener] = listening_sockets(ListenSettings(host="127.0.0.1", port=0))
    with listener:
        listener.listen()
        listener.settimeout(CONNECT_TIMEOUT_S)
        near = socket.create_connection(listener.getsockname(), CONNECT_TIMEOUT_S)
        while True:
            far, address = listener.accept()
            if address == near.getsockname():
                return near, far
            far.close()  # of another process, which was faster
