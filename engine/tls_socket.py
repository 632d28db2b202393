"""TLS over a blocking socket that one thread reads and another writes.

``ssl.SSLSocket`` must not be used by two threads at once. Here a lock is held while OpenSSL works in memory, and none
while a thread waits for the socket to be readable.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | memoryview

# Below the size from which on the C library maps memory for each read.
READ_BYTES = 2**16


class ByteSocket(Protocol):
    """The methods of ``socket.socket`` that a connection uses."""

    def recv(self, num_bytes: int, /) -> bytes: ...

    def sendmsg(self, pieces: Sequence[Buffer], /) -> int: ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...


class TlsSocket:
    """The server's end of a connection; ``handshake`` comes first."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        self._connection = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._tls_lock = threading.Lock()
        # Keeps records in the order in which they were made; taken before the other lock.
        self._send_lock = threading.Lock()

    def handshake(self, timeout_s: float) -> None:
        """Raises ``OSError`` if the peer's certificate is refused, or after the timeout."""
        deadline_s = time.monotonic() + timeout_s
        while not self._advance_handshake():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"no handshake within {timeout_s:g} s")
            self._connection.settimeout(left_s)
            data = self._connection.recv(READ_BYTES)
            if not data:
                raise ConnectionError("the connection ended before the handshake")
            self._incoming.write(data)
        self._connection.settimeout(None)

    def _advance_handshake(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self._flush()
        return True

    def recv(self, num_bytes: int, /) -> bytes:
        while (data := self._decrypt(num_bytes)) is None:
            if self._outgoing.pending:
                self._flush()
            received = self._connection.recv(READ_BYTES)
            if not received:
                return b""
            with self._tls_lock:
                self._incoming.write(received)
        return data

    def _decrypt(self, num_bytes: int) -> bytes | None:
        """Return ``None`` if more has to be received first."""
        with self._tls_lock:
            try:
                return self._tls.read(num_bytes)
            except ssl.SSLWantReadError:
                return None
            except ssl.SSLZeroReturnError:
                return b""

    def sendmsg(self, pieces: Sequence[Buffer], /) -> int:
        """Send all pieces; returns their size."""
        with self._send_lock:
            with self._tls_lock:
                for piece in pieces:
                    self._encrypt(memoryview(piece))
                data = self._outgoing.read()
            self._connection.sendall(data)
        return sum(map(len, pieces))

    def _encrypt(self, piece: memoryview) -> None:
        while piece:
            piece = piece[self._tls.write(piece) :]

    def _flush(self) -> None:
        with self._send_lock:
            with self._tls_lock:
                data = self._outgoing.read()
            self._connection.sendall(data)

    def shutdown(self, how: int, /) -> None:
        self._connection.shutdown(how)

    def close(self) -> None:
        self._connection.close()
