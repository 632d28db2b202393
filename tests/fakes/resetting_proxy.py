"""A TCP proxy in a thread of its own whose connections can be reset at any moment."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

# Closing then resets the connection: the other side gets no end, but an error.
RESET = struct.pack("ii", 1, 0)


class ResettingProxy:
    def __init__(self, port: int) -> None:
        # Of later connections.
        self.upstream_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self.num_connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def reset_all(self) -> None:
        """Reset every open connection, on both sides."""
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            with contextlib.suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        self._listener.close()
        self.reset_all()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                pair = (self._listener.accept()[0], self._connect())
                self.num_connections += 1
                self._sockets += pair
                for source, target in (pair, pair[::-1]):
                    threading.Thread(target=self._forward, args=(source, target), daemon=True).start()

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.upstream_port))

    @staticmethod
    def _forward(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        # The source may have been reset, too.
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def resetting_proxy(port: int) -> Iterator[ResettingProxy]:
    proxy = ResettingProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
