"""The engine's end of an address: it accepts gateways, and over TLS only those with a certificate of the CA."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from engine.address import HANDSHAKE_TIMEOUT_S, EngineAddress, TlsFiles
from engine.tls_socket import ByteSocket, TlsSocket

log = logging.getLogger(__name__)

# Peers that have not shown a certificate yet; another one is closed.
MAX_HANDSHAKES = 32
# Time after which sent bytes that a peer did not acknowledge end its connection: its machine is gone.
ACKNOWLEDGE_TIMEOUT_MS = 10_000


class EngineListener:
    """Listens from the start. Raises ``InvalidRequest`` or ``OSError``."""

    def __init__(self, address: EngineAddress, tls: TlsFiles | None = None) -> None:
        address.check_protected(tls)
        self._tls = tls if address.is_tcp else None
        self._socket = _listen_tcp(address) if address.is_tcp else _listen_unix(address.path)
        self.address = address
        if address.is_tcp:  # port 0 has become a free one
            self.address = address._replace(port=self._socket.getsockname()[1])
        self._handshakes = threading.BoundedSemaphore(MAX_HANDSHAKES)
        self._is_serving = self._is_closed = False

    def serve(self, attach: Callable[[ByteSocket], None]) -> None:
        """Pass each connection to ``attach`` until ``close``."""
        self._is_serving = True
        while not self._is_closed:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if not self._is_closed:
                    log.error("accepting a gateway failed: %s", error)
                    threading.Event().wait(0.1)  # too many open files, for instance
                continue
            self._admit(connection, attach)
        self._socket.close()

    def close(self) -> None:
        """Accept no more connections."""
        self._is_closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread, which closes the socket
        if not self._is_serving:
            self._socket.close()
        if not self.address.is_tcp:
            Path(self.address.path).unlink(missing_ok=True)

    def _admit(self, connection: socket.socket, attach: Callable[[ByteSocket], None]) -> None:
        if not self.address.is_tcp:
            attach(connection)
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, ACKNOWLEDGE_TIMEOUT_MS)
        if self._tls is None:
            attach(connection)
        elif self._handshakes.acquire(blocking=False):
            arguments = connection, self._tls, attach
            threading.Thread(target=self._shake_hands, args=arguments, name="voicewire-handshake", daemon=True).start()
        else:
            log.warning("a gateway was closed: %d handshakes are open", MAX_HANDSHAKES)
            connection.close()

    def _shake_hands(self, connection: socket.socket, tls: TlsFiles, attach: Callable[[ByteSocket], None]) -> None:
        try:
            secured = TlsSocket(connection, tls.server_context())
            secured.handshake(HANDSHAKE_TIMEOUT_S)
        except Exception as error:
            log.warning("a gateway was refused: %s", error)
            connection.close()
        else:
            attach(secured)
        finally:
            self._handshakes.release()


def _listen_tcp(address: EngineAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    return socket.create_server((address.host, address.port), family=family)


def _listen_unix(path: str) -> socket.socket:
    """For this user alone. A socket that a killed engine left is replaced."""
    if _is_abandoned(path):
        Path(path).unlink()
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(path)
        listener.listen()
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def _is_abandoned(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return Path(path).is_socket()
        except OSError:
            return False
    return False
