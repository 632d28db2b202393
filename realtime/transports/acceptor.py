"""Accept connections, plain or with TLS, whose handshakes are bounded in number and in time."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial

log = logging.getLogger("voicewire.listener")

# Per socket, so that a flood of connections leaves time for open ones.
ACCEPTS_PER_ITERATION = 64
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
ACCEPT_PAUSE_S = 1.0


class Acceptor:
    """Accepts on any number of listening sockets until it is closed.

    asyncio's own servers count no TLS handshakes: a client that never begins one would hold a file descriptor for a
    minute. Here ``max_handshakes`` may be open at once and each for ``handshake_timeout_s``; the oldest makes way.
    """

    def __init__(
        self,
        create_protocol: Callable[[], asyncio.BaseProtocol],
        handshake_timeout_s: float,
        max_handshakes: Callable[[], int],
    ) -> None:
        self._create_protocol = create_protocol
        self._handshake_timeout_s = handshake_timeout_s
        self._max_handshakes = max_handshakes
        self._loop = asyncio.get_running_loop()
        self._listeners: list[socket.socket] = []
        self._opening: set[asyncio.Task[None]] = set()
        # TLS connections among them. Insertion order: oldest first.
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}

    def listen(self, listeners: Sequence[socket.socket], backlog: int, tls: ssl.SSLContext | None = None) -> None:
        for listener in listeners:
            listener.setblocking(False)
            listener.listen(backlog)
            self._listeners.append(listener)
            self._loop.add_reader(listener, self._accept, listener, tls)

    def close(self) -> None:
        """Accept nothing more, and end what is still being opened."""
        for pause in self._pauses.values():
            pause.cancel()
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()
        for opening in self._opening:
            opening.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _accept(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        for _ in range(ACCEPTS_PER_ITERATION):
            try:
                accepted, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in OUT_OF_RESOURCES:
                    raise
                log.warning("no connection can be accepted for want of resources", extra={"code": error.errno})
                self._pause(listener, tls)
                return
            accepted.setblocking(False)
            self._open(accepted, tls)

    def _pause(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        """The socket stays readable, and would be reported again at once."""
        self._loop.remove_reader(listener)
        self._pauses[listener] = self._loop.call_later(ACCEPT_PAUSE_S, self._resume, listener, tls)

    def _resume(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        del self._pauses[listener]
        self._loop.add_reader(listener, self._accept, listener, tls)

    def _open(self, accepted: socket.socket, tls: ssl.SSLContext | None) -> None:
        opening = self._loop.create_task(self._connect(accepted, tls), name="voicewire accept")
        opening.add_done_callback(partial(self._on_opened, accepted))
        self._opening.add(opening)
        if tls is None:
            return
        # bounded here and not in the task, which does not run before all waiting connections are accepted
        while len(self._handshakes) >= max(1, self._max_handshakes()):
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]  # first, for it ends later than this loop
            oldest.cancel()
            log.info("ended a TLS handshake", extra={"code": "too_many_connections"})
        self._handshakes[opening] = None

    async def _connect(self, accepted: socket.socket, tls: ssl.SSLContext | None) -> None:
        timeout_s = None if tls is None else self._handshake_timeout_s
        await self._loop.connect_accepted_socket(
            self._create_protocol, accepted, ssl=tls, ssl_handshake_timeout=timeout_s
        )

    def _on_opened(self, accepted: socket.socket, opening: asyncio.Task[None]) -> None:
        self._opening.discard(opening)
        self._handshakes.pop(opening, None)
        if opening.cancelled():
            accepted.close()  # a task that was cancelled before its first step has not closed it
        elif isinstance(error := opening.exception(), OSError):
            log.debug("a connection was not opened", extra={"code": type(error).__name__})
        elif error is not None:
            log.error("a connection was not opened", exc_info=error)
