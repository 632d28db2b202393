"""Sockets that the engine's thread reads itself. No torch."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from contextlib import suppress

WAKE_BYTES = 4096


class CommandSockets:
    """Connections of gateways by what reads them. They are read on the thread that calls ``poll``.

    A thread for each would need the interpreter for every message. The engine's thread gives it away in each call of
    torch, and would then wait for all of them.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._woken, self._waking = socket.socketpair()
        for end in (self._woken, self._waking):
            end.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain)

    def add(self, connection: socket.socket, read: Callable[[], None]) -> None:
        """Have ``read`` called when something has come; it must not wait, and not raise. Any thread may call this."""
        self._selector.register(connection, selectors.EVENT_READ, read)

    def remove(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)

    def poll(self, max_wait_s: float | None) -> bool:
        """Read what has come; wait for something if there is nothing. Returns whether there was anything."""
        ready = self._selector.select(max_wait_s)
        for key, _ in ready:
            key.data()
        return bool(ready)

    def wake(self) -> None:
        """End the wait of ``poll``, from any thread."""
        with suppress(OSError):  # it is woken often enough already, or waits no more
            self._waking.send(b"\0")

    def close(self) -> None:
        """Free what ``poll`` waits with; the connections stay open."""
        self._selector.close()
        self._woken.close()
        self._waking.close()

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            self._woken.recv(WAKE_BYTES)
