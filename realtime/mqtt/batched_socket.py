"""A socket of which all that is written in a turn of the event loop leaves at once, and all that has come is read at
once."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

# Per loop iteration: handling many small packets would delay other work.
READ_BYTES = 8_192
# Unsent bytes above which ``has_room`` is false.
MAX_WAITING_BYTES = 65_536
NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class BatchedSocket:
    """Socket interface for paho-mqtt, which receives the data that was ``put``.

    ``on_read`` is called with all received data, and not after the connection has ended.
    """

    def __init__(self, held: socket.socket, on_read: Callable[[bytes], None], before_write: Callable[[], None]) -> None:
        self._held = held
        self._on_read, self._before_write = on_read, before_write
        self._loop = asyncio.get_running_loop()
        self._inward, self._outward = bytearray(), bytearray()
        self._ended = self._closed = self._writes_soon = self._waits_to_write = False
        self._room = asyncio.Event()
        self._room.set()
        self._loop.add_reader(held, self._read)

    def fileno(self) -> int:
        return self._held.fileno()

    def shutdown(self, how: int) -> None:
        self._held.shutdown(how)

    def recv(self, size: int) -> bytes:
        if not self._inward and not self._ended:
            raise BlockingIOError
        found = bytes(self._inward[:size])
        del self._inward[:size]
        return found

    def put(self, data: bytes) -> None:
        """Provide the bytes for ``recv``; empty is the end."""
        self._inward += data
        self._ended = not data

    def send(self, data: bytes | bytearray) -> int:
        """Accept all data and send it with everything else of this loop iteration."""
        self._outward += data
        self.schedule_write()
        return len(data)

    def schedule_write(self) -> None:
        if not self._writes_soon:
            self._writes_soon = True
            self._loop.call_soon(self._write_turn)

    def has_capacity(self) -> bool:
        return len(self._outward) <= MAX_WAITING_BYTES

    async def free_bytes(self) -> None:
        """Wait for data or the close."""
        while not (self._closed or self.has_capacity()):
            self._room.clear()
            await self._room.wait()

    def close(self) -> None:
        if self._closed:
            return
        self._write()
        self._closed = True
        self._loop.remove_reader(self._held)
        self._loop.remove_writer(self._held)
        self._held.close()
        self._room.set()

    def _read_pending_tls(self) -> bool:
        """TLS holds some that the system tells nothing of."""
        return not self._closed and isinstance(self._held, ssl.SSLSocket) and self._held.pending() > 0

    def _read(self) -> None:
        if self._closed:
            return
        try:
            found = self._held.recv(READ_BYTES)
        except NOT_NOW:
            return
        except OSError:
            found = b""
        if not found:
            self._loop.remove_reader(self._held)
        self._on_read(found)
        if self._read_pending_tls():
            self._loop.call_soon(self._read)

    def _write_turn(self) -> None:
        self._writes_soon = False
        if not self._closed:
            self._before_write()
        if not self._closed:
            self._write()

    def _write(self) -> None:
        try:
            sent = self._held.send(self._outward) if self._outward else 0
        except NOT_NOW:
            sent = 0
        except OSError:  # reading tells of it
            sent = len(self._outward)
        del self._outward[:sent]
        self._wait_to_write(bool(self._outward))
        if self.has_capacity():
            self._room.set()

    def _wait_to_write(self, waits: bool) -> None:
        if waits and not self._waits_to_write:
            self._loop.add_writer(self._held, self._write)
        elif self._waits_to_write and not waits:
            self._loop.remove_writer(self._held)
        self._waits_to_write = waits
