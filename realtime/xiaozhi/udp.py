"""The UDP port of devices: each stream is known by its number, its key and the address that its device came from."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from realtime.protocol.phones.xiaozhi import PACKET_MS
from realtime.protocol.phones.xiaozhi_udp import KEY_BYTES, UdpSound, stream_of
from sessions.clock import now_s

MAX_HELD_PACKETS = 16
"""Sent once the device's first packet tells where to: a second of sound."""
Address = tuple[Any, ...]


class Stream:
    """One device's sound. ``heard`` is called with each packet that may be."""

    def __init__(
        self, port: UdpPort, sound: UdpSound, host: str, heard: Callable[[bytes], None], max_packets_per_s: int
    ) -> None:
        self.sound, self._port = sound, port
        self._host, self._heard = host, heard
        self._max_packets_per_s = max_packets_per_s
        self._address: Address | None = None
        self._held: deque[bytes] = deque(maxlen=MAX_HELD_PACKETS)
        self._second, self._num_packets = 0, 0
        self._num_sent = 0

    def send(self, packet: bytes) -> None:
        datagram = self.sound.seal(packet, self._num_sent * PACKET_MS)
        self._num_sent += 1
        if self._address is None:
            self._held.append(datagram)
        else:
            self._port.send(datagram, self._address)

    def arrived(self, datagram: bytes, address: Address) -> None:
        """Only from the machine that holds the device's other line, and not faster than any device speaks."""
        if address[0] != self._host or self._is_too_fast():
            return
        if (packet := self.sound.open(datagram)) is None:
            return
        self._address = address
        while self._held:
            self._port.send(self._held.popleft(), address)
        self._heard(packet)

    def _is_too_fast(self) -> bool:
        second = int(now_s())
        if second != self._second:
            self._second, self._num_packets = second, 0
        self._num_packets += 1
        return self._num_packets > self._max_packets_per_s


class UdpPort(asyncio.DatagramProtocol):
    """All streams. What belongs to none is dropped without a word."""

    def __init__(self, max_packets_per_s: int) -> None:
        self._max_packets_per_s = max_packets_per_s
        self._streams: dict[int, Stream] = {}
        self._transport: asyncio.DatagramTransport | None = None
        self.port = 0

    @asynccontextmanager
    async def open(self, host: str, port: int) -> AsyncIterator[None]:
        """Raises ``OSError``."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(host, port))
        self.port = self._transport.get_extra_info("sockname")[1]
        try:
            yield
        finally:
            self._transport.close()

    @contextmanager
    def stream(self, host: str, heard: Callable[[bytes], None]) -> Iterator[Stream]:
        """A new one, while this lasts."""
        number = secrets.randbits(32)
        while number in self._streams:
            number = secrets.randbits(32)
        sound = UdpSound(secrets.token_bytes(KEY_BYTES), number)
        self._streams[number] = Stream(self, sound, host, heard, self._max_packets_per_s)
        try:
            yield self._streams[number]
        finally:
            del self._streams[number]

    def send(self, datagram: bytes, address: Address) -> None:
        if self._transport is not None:
            self._transport.sendto(datagram, address)

    def datagram_received(self, data: bytes, addr: Address) -> None:
        number = stream_of(data)
        if number is not None and (stream := self._streams.get(number)) is not None:
            stream.arrived(data, addr)

    def error_received(self, exc: Exception) -> None:
        """A device that is gone; its other line tells."""
