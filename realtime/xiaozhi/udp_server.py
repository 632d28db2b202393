"""The UDP port of devices: each stream is known by its number, its key and the address that its device came from."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any, NamedTuple, cast

from realtime.protocol.telephony.xiaozhi import PACKET_MS
from realtime.protocol.telephony.xiaozhi_udp import KEY_BYTES, EncryptedAudioStream, stream_id_of
from sessions.clock import now_s

# Sent once the device's first packet tells where to: a second of sound.
MAX_HELD_PACKETS = 16
Address = tuple[Any, ...]


class UdpReplyPath(NamedTuple):
    """Return path to the sender of a datagram."""

    transport: asyncio.DatagramTransport
    address: Address

    def send(self, datagram: bytes) -> None:
        self.transport.sendto(datagram, self.address)


class UdpAudioStream:
    """One device's sound. ``heard`` is called with each packet that may be."""

    def __init__(
        self, crypto: EncryptedAudioStream, host: str, on_packet: Callable[[bytes], None], max_packets_per_s: int
    ) -> None:
        self.crypto = crypto
        self._host, self._heard = host, on_packet
        self._max_packets_per_s = max_packets_per_s
        self._answer: UdpReplyPath | None = None
        self._held: deque[bytes] = deque(maxlen=MAX_HELD_PACKETS)
        self._second, self._num_packets = 0, 0
        self._num_sent = 0

    def send(self, packet: bytes) -> None:
        datagram = self.crypto.encrypt(packet, self._num_sent * PACKET_MS)
        self._num_sent += 1
        if self._answer is None:
            self._held.append(datagram)
        else:
            self._answer.send(datagram)

    def on_datagram(self, datagram: bytes, answer: UdpReplyPath) -> None:
        """Only from the machine that holds the device's other line, and not faster than any device speaks."""
        if answer.address[0] != self._host or self._is_too_fast():
            return
        if (packet := self.crypto.decrypt(datagram)) is None:
            return
        self._answer = answer
        while self._held:
            answer.send(self._held.popleft())
        self._heard(packet)

    def _is_too_fast(self) -> bool:
        second = int(now_s())
        if second != self._second:
            self._second, self._num_packets = second, 0
        self._num_packets += 1
        return self._num_packets > self._max_packets_per_s


class UdpProtocol(asyncio.DatagramProtocol):
    """One address of the port."""

    def __init__(self, arrived: Callable[[bytes, UdpReplyPath], None]) -> None:
        self._arrived = arrived
        self._transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Address) -> None:
        self._arrived(data, UdpReplyPath(self._transport, addr))

    def error_received(self, exc: Exception) -> None:
        """A device that is gone; its other line tells."""


class UdpServer:
    """All streams. What belongs to none is dropped without a word."""

    def __init__(self, max_packets_per_s: int) -> None:
        self._max_packets_per_s = max_packets_per_s
        self._streams: dict[int, UdpAudioStream] = {}
        self.port = 0

    @asynccontextmanager
    async def open(self, host: str, port: int) -> AsyncIterator[None]:
        """On every address of the host. Raises ``OSError``."""
        loop = asyncio.get_running_loop()
        with ExitStack() as transports:
            for one in bound_sockets(host, port):
                transport, _ = await loop.create_datagram_endpoint(lambda: UdpProtocol(self._arrived), sock=one)
                transports.callback(transport.close)
                self.port = one.getsockname()[1]
            yield

    @contextmanager
    def stream(self, host: str, heard: Callable[[bytes], None]) -> Iterator[UdpAudioStream]:
        """A new one, while this lasts."""
        number = secrets.randbits(32)
        while number in self._streams:
            number = secrets.randbits(32)
        sound = EncryptedAudioStream(secrets.token_bytes(KEY_BYTES), number)
        self._streams[number] = UdpAudioStream(sound, host, heard, self._max_packets_per_s)
        try:
            yield self._streams[number]
        finally:
            del self._streams[number]

    def _arrived(self, data: bytes, answer: UdpReplyPath) -> None:
        number = stream_id_of(data)
        if number is not None and (stream := self._streams.get(number)) is not None:
            stream.on_datagram(data, answer)


def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """One for each address of the host, all on one port. Raises ``OSError``."""
    sockets: list[socket.socket] = []
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE)
    try:
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            sockets.append(one := socket.socket(family, kind, protocol))
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.setblocking(False)
            one.bind((address[0], port, *address[2:]))
            port = one.getsockname()[1]
    except OSError:
        for one in sockets:
            one.close()
        raise
    return sockets
