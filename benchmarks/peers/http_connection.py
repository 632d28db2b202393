"""A kept connection of HTTP/1.1 with nothing but h11 between the socket and the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import cast
from urllib.parse import urlsplit

import h11

from benchmarks.peers.reply import now_s

OK = 200
PORTS = {"http": 80, "https": 443}


class HttpConnection(asyncio.Protocol):
    """Sends one request after the other. ``open_connection`` makes it."""

    def __init__(self, host: str, prefix: str, headers: Mapping[str, str]) -> None:
        self._prefix, self._headers = prefix, [("Host", host), *headers.items()]
        self._http = h11.Connection(h11.CLIENT)
        self._status = 0
        self._answer: asyncio.Future[int] | None = None

    @property
    def is_reusable(self) -> bool:
        """True if the server lets another request follow."""
        return self._http.our_state is h11.IDLE and not self._transport.is_closing()

    def encode(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Return the bytes of a request, which has to be sent before another is encoded."""
        headers = [*self._headers, ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        request = h11.Request(method=method, target=self._prefix + path, headers=headers)
        return b"".join(self._http.send(event) or b"" for event in (request, h11.Data(data=body), h11.EndOfMessage()))

    def send(self, request: bytes, receive: Callable[[int, float], None]) -> asyncio.Future[int]:
        """Write a request at once; the result is the status, when the answer has ended.

        ``receive`` gets the sizes of the pieces of a body with status 200, and when their bytes arrived. The future
        raises ``ConnectionError``: ``closed`` before the answer, ``incomplete`` within it, or how it breaks HTTP.
        """
        self._receive, self._status = receive, 0
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        at_s = now_s()
        self._http.receive_data(data)
        try:
            self._handle_events(at_s)
        except h11.RemoteProtocolError as error:
            self._fail(str(error))
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:
            self._http.receive_data(b"")
            with suppress(h11.RemoteProtocolError):
                # The end of the connection ends a body without a length.
                self._handle_events(now_s())
        self._fail("incomplete" if self._status else "closed")

    def _handle_events(self, at_s: float) -> None:
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Data):
                if self._status == OK:
                    self._receive(len(event.data), at_s)
            elif isinstance(event, h11.Response):
                self._status = event.status_code
            elif isinstance(event, h11.EndOfMessage):
                self._end()
            elif not isinstance(event, h11.InformationalResponse):
                return

    def _end(self) -> None:
        if self._http.our_state is self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(self._status)

    def _fail(self, code: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(code))


async def open_connection(url: str, headers: Mapping[str, str]) -> HttpConnection:
    """Connect to ``http://HOST:PORT``, with a path that comes before those of requests; raises ``OSError``."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: HttpConnection(parts.netloc, parts.path, headers), host, port, ssl=parts.scheme == "https" or None
    )
    return connection
