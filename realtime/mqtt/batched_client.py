"""Batched reads and writes for aiomqtt: everything that its public interface, and paho-mqtt's, does not offer.

By itself paho-mqtt asks the system three times for every packet that it receives, reads one packet per iteration of the
event loop, and writes each packet by itself. It still makes and keeps the connection. No other module touches private
parts of the two libraries.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import aiomqtt

# Versions whose private parts were checked. A test compares them with the installed ones.
CHECKED_VERSIONS = {"aiomqtt": "2.5.1", "paho-mqtt": "2.2.0"}
MAX_INFLIGHT = 20
# Maximum of MQTT: the longest length, and the bytes that encode it.
MAX_PACKET_BYTES = 268_435_460
# Per loop iteration: handling many small packets would delay other work.
READ_BYTES = 8_192
# Unsent bytes above which ``has_room`` is false.
MAX_WAITING_BYTES = 65_536
NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(slots=True)
class BrokerLimits:
    """Limits of the broker, from its CONNACK (3.2.2.3 of MQTT 5)."""

    # Messages of QoS 1 on their way at once; as many as Mosquitto takes unless it is told otherwise.
    unacknowledged: int = MAX_INFLIGHT
    packet_bytes: int = MAX_PACKET_BYTES

    def from_connack(self, properties: object) -> None:
        self.unacknowledged = min(self.unacknowledged, getattr(properties, "ReceiveMaximum", MAX_INFLIGHT))
        self.packet_bytes = getattr(properties, "MaximumPacketSize", MAX_PACKET_BYTES)


class BatchedClient:
    """An aiomqtt client whose packets of one loop iteration are read and written at once."""

    # Set by ``open_socket``.
    socket: BatchedSocket

    def __init__(self, client: aiomqtt.Client, connect_timeout_s: float) -> None:
        self.client = client
        self.limits = BrokerLimits()
        self._paho = client._client
        self._paho.connect_timeout = connect_timeout_s
        self._on_connect_of_aiomqtt = self._paho.on_connect
        self._paho.on_connect = self._on_connect

    def _on_connect(self, *arguments: Any) -> None:
        self.limits.from_connack(arguments[-1])
        self._on_connect_of_aiomqtt(*arguments)

    def open_socket(self, on_read: Callable[[bytes], None], on_end: Callable[[], None]) -> bool:
        """Batch reads and writes from here on; false if the connection has ended already."""
        if self._paho._sock is None:
            return False
        self.socket = BatchedSocket(self._paho._sock, on_read, self.write)
        self._paho._sock = self.socket
        self._paho.on_socket_register_write = lambda *_: self.socket.schedule_write()
        self._paho.on_socket_unregister_write = None
        self.client._disconnected.add_done_callback(lambda _: on_end())
        return True

    @property
    def has_socket(self) -> bool:
        """False once paho-mqtt has closed the connection."""
        return self._paho._sock is not None

    @property
    def is_disconnected(self) -> bool:
        done: bool = self.client._disconnected.done()
        return done

    @property
    def end_reason(self) -> str:
        """Why the connection ended; only after its end."""
        return str(self.client._disconnected.exception() or "the connection was closed")

    def next_packet_id(self) -> int:
        packet_id: int = self._paho._mid_generate()
        return packet_id

    def read(self, data: bytes) -> None:
        """Let paho-mqtt read a packet; empty data is the end."""
        self.socket.put(data)
        self._paho.loop_read()

    def write(self) -> None:
        """Send what paho-mqtt has queued."""
        with self.ending_when_broken():
            if self._paho.want_write():
                self._paho.loop_write()

    @contextmanager
    def ending_when_broken(self) -> Iterator[None]:
        """End the connection on a malformed packet, as aiomqtt does."""
        try:
            yield
        except Exception as fault:
            if not self.is_disconnected:
                self.client._disconnected.set_exception(fault)
            self.socket.close()

    def force_close(self) -> None:
        """Close what is left of a failed connection; aiomqtt would wait for its keep-alive."""
        self._paho._sock_close()
        if self.is_disconnected:
            self.client._disconnected.exception()  # marks the exception as retrieved


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
