"""The engine's end of one gateway's connection: whole messages in, and messages out by a thread of its own."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import islice

from engine.api import ClonedVoice
from engine.ipc import LENGTH, message_size
from engine.tls_socket import Buffer, ByteSocket

# A gateway that reads no more is cut off when this much waits for it.
MAX_UNSENT_BYTES = 64 * 2**20
# Below 128 kB, from which on the C library maps memory for each read: that takes seven times as long.
READ_AHEAD_BYTES = 2**16
# What is written together counts as unsent until all of it is.
WRITE_TOGETHER_BYTES = 2**20
# In one call to the system, which takes 1,024.
MAX_PIECES = 512


class GatewayConnection:
    """One connection. The engine's thread hands messages over and never waits for the socket.

    A first chunk it sends itself: waking another thread, which then needs the interpreter, takes longer.
    """

    # None where the engine's thread reads the connection.
    reading: threading.Thread | None = None

    def __init__(self, number: int, connection: ByteSocket) -> None:
        self.number, self.connection = number, connection
        self.active: set[int] = set()
        self.encodings: dict[int, Future[ClonedVoice]] = {}
        self._unsent: queue.SimpleQueue[Sequence[Buffer] | None] = queue.SimpleQueue()
        self._num_unsent_bytes = 0
        # Three threads hand messages over, a fourth sends them.
        self._counting = threading.Lock()
        self.writing = threading.Thread(target=self._write, name="voicewire-gateway-write", daemon=True)
        self.writing.start()

    @property
    def is_idle(self) -> bool:
        """Return whether it has neither requests nor recordings here, and has been sent everything."""
        return not self.active and not self.encodings and not self._num_unsent_bytes

    def send(self, *message: Buffer, at_once: bool = False) -> None:
        """Give a message to the writing thread; with ``at_once`` only what the socket does not take now."""
        with self._counting:
            rest = self._send_now(message) if at_once and not self._num_unsent_bytes else message
            self._num_unsent_bytes += sum(map(len, rest))
            is_reading = self._num_unsent_bytes <= MAX_UNSENT_BYTES
            if rest and is_reading:  # under the lock: nothing may come between the parts of a message
                self._unsent.put(rest)
        if not is_reading:
            self.close()

    def _send_now(self, message: Sequence[Buffer]) -> Sequence[Buffer]:
        """Send what the socket takes without a wait; returns the rest."""
        if not isinstance(self.connection, socket.socket) or len(message) > MAX_PIECES:
            return message
        try:
            sent = self.connection.sendmsg(message, (), socket.MSG_DONTWAIT)
        except OSError:  # full, or broken, which the writing thread will find
            return message
        return drop_sent(deque(memoryview(piece) for piece in message), sent)

    def _count_sent(self, num_bytes: int) -> None:
        with self._counting:
            self._num_unsent_bytes -= num_bytes

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def close_when_sent(self) -> None:
        """The reading side has ended; let the writing side end too."""
        self.close()
        self._unsent.put(None)

    def _write(self) -> None:
        while message := self._pop_unsent():
            try:
                send_all(self.connection, message)
            except OSError:
                return
            self._count_sent(sum(map(len, message)))

    def _pop_unsent(self) -> list[Buffer]:
        """Wait for queued items and return all of them; empty at the end."""
        found: list[Buffer] = []
        num_bytes = 0
        while not found or (num_bytes < WRITE_TOGETHER_BYTES and not self._unsent.empty()):
            message = self._unsent.get()
            if message is None:
                self._unsent.put(None)
                break
            found += message
            num_bytes += sum(map(len, message))
        return found


def send_all(connection: ByteSocket, message: Sequence[Buffer]) -> None:
    """Every piece, from where it lies."""
    pieces = deque(memoryview(piece) for piece in message)
    while pieces:
        drop_sent(pieces, connection.sendmsg(list(islice(pieces, MAX_PIECES))))


def drop_sent(pieces: deque[memoryview], num_bytes: int) -> deque[memoryview]:
    """Remove the first ``num_bytes`` from the pieces, and return them."""
    while pieces and num_bytes >= len(pieces[0]):
        num_bytes -= len(pieces.popleft())
    if num_bytes:
        pieces[0] = pieces[0][num_bytes:]
    return pieces


class MessageSplitter:
    """Bytes in, whole messages out."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def push(self, part: bytes) -> list[bytes]:
        """As many as have come, none while one is not all there. Raises ``IpcError`` for one that is too long."""
        rest = self._rest
        rest += part
        messages, at = [], 0
        while (end := find_message_end(rest, at)) is not None:
            messages.append(bytes(rest[at + LENGTH.size : end]))
            at = end
        del rest[:at]
        return messages


def read_messages(connection: ByteSocket) -> Iterator[list[bytes]]:
    """Whole messages, as many at a time as have come, none while one is not all there, until the end of the stream."""
    splitter = MessageSplitter()
    while part := connection.recv(READ_AHEAD_BYTES):
        yield splitter.push(part)


def find_message_end(data: bytearray, at: int) -> int | None:
    """Return the end of the message that begins there; None while it is incomplete."""
    if len(data) < at + LENGTH.size:
        return None
    end = at + LENGTH.size + message_size(data, at)
    return end if len(data) >= end else None
