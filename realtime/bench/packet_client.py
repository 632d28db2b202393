"""A client that counts packets instead of decoding them, so that one core drives many hundreds of listeners.

It speaks the native wire alone, without TLS, to a server that is known: frames are read where they lie, and what is
sent is masked with zeros.
"""

from __future__ import annotations

import asyncio
import base64
import os
import struct
from collections import deque
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from realtime.client import speech_url
from realtime.protocol.events import ClientEvent, ServerEvent
from realtime.protocol.native import HEADER, SUBPROTOCOL, parse_server, serialize
from sessions.clock import WakeEvent

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
FINAL = 0x80
MASKED = 0x80
NO_MASK = bytes(4)
SHORT, TWO_BYTES, EIGHT_BYTES = 125, 126, 127
HANDSHAKE_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class CountedAudio:
    """An audio message: how many packets, and when it came by the loop's clock, which is the machine's."""

    num_packets: int
    at_s: float


class PacketCountingClient(asyncio.Protocol):
    """One session. ``send`` events, iterate over what comes back, as with ``NativeClient``."""

    def __init__(self, handshake: bytes) -> None:
        self._handshake = handshake
        self._loop = asyncio.get_running_loop()
        self._alarm = WakeEvent()
        self._messages: deque[ServerEvent | CountedAudio] = deque()
        self._received = bytearray()
        self._is_open = False
        self.close_code: int | None = None
        self._error: OSError | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._handshake)

    def connection_lost(self, exc: Exception | None) -> None:
        self.close_code = self.close_code or 1006
        self._alarm.set()

    def data_received(self, data: bytes) -> None:
        received, at_s = self._received, self._loop.time()
        received += data
        at = 0 if self._is_open else self._perform_handshake()
        while self._is_open and (frame := parse_frame(received, at)) is not None:
            opcode, start, end = frame
            self._on_frame(opcode, memoryview(received)[start:end], at_s)
            at = end
        del received[:at]
        self._alarm.set()

    def _perform_handshake(self) -> int:
        """How many bytes the server's answer takes; 0 while it is not all there."""
        end = self._received.find(HANDSHAKE_END)
        if end < 0:
            return 0
        status = bytes(self._received[:end].split(b" ", 2)[1]).decode()
        self._is_open = status == "101"
        if not self._is_open:
            self._error = ConnectionError(f"http_{status}")
            self._transport.abort()
        return end + len(HANDSHAKE_END)

    def _on_frame(self, opcode: int, payload: memoryview, at_s: float) -> None:
        with payload:
            if opcode == BINARY:
                self._messages.append(CountedAudio(HEADER.unpack_from(payload)[2], at_s))
            elif opcode == TEXT:
                self._messages.append(parse_server(bytes(payload)))
            elif opcode == PING:
                self._transport.write(build_frame(PONG, bytes(payload)))
            elif opcode == CLOSE:
                self.close_code = int.from_bytes(payload[:2], "big") or 1005
                self._transport.close()

    async def send(self, event: ClientEvent) -> None:
        """Raises ``ConnectionError`` when the line is closed."""
        if self.close_code is not None:
            raise ConnectionError(f"closed_{self.close_code}")
        self._transport.write(build_frame(TEXT, serialize(event).encode()))

    def __aiter__(self) -> PacketCountingClient:
        return self

    async def __anext__(self) -> ServerEvent | CountedAudio:
        while not self._messages:
            if self._error is not None:
                raise self._error
            if self.close_code is not None:
                raise StopAsyncIteration
            await self._alarm.wait()
        return self._messages.popleft()

    async def __aenter__(self) -> PacketCountingClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._transport.is_closing():
            self._transport.write(build_frame(CLOSE, (1000).to_bytes(2, "big")))
            self._transport.close()


def parse_frame(received: bytearray, at: int) -> tuple[int, int, int] | None:
    """(opcode, start and end of the payload) of a server's frame that is all there."""
    if len(received) < at + 2:
        return None
    size, start = received[at + 1], at + 2
    if size > SHORT:
        width = 2 if size == TWO_BYTES else 8
        start += width
        size = int.from_bytes(received[at + 2 : start], "big")
    return (received[at] & 0x0F, start, start + size) if len(received) >= start + size and start > at else None


def build_frame(opcode: int, payload: bytes) -> bytes:
    """A client's frame."""
    size = len(payload)
    if size <= SHORT:
        head = bytes((FINAL | opcode, MASKED | size))
    elif size < 1 << 16:
        head = struct.pack(">BBH", FINAL | opcode, MASKED | TWO_BYTES, size)
    else:
        head = struct.pack(">BBQ", FINAL | opcode, MASKED | EIGHT_BYTES, size)
    return head + NO_MASK + payload


async def open_packet_client(url: str, api_key: str | None = None) -> PacketCountingClient:
    """Raises ``OSError``; refused with a status, its message is ``http_STATUS``."""
    parts = urlsplit(speech_url(url))
    if parts.scheme != "ws" or parts.hostname is None:
        raise OSError(f"url must be ws://HOST:PORT for light clients, is {url!r}")
    lines = [
        f"GET {parts.path} HTTP/1.1",
        f"Host: {parts.netloc}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Protocol: {SUBPROTOCOL}",
        *([] if api_key is None else [f"Authorization: Bearer {api_key}"]),
    ]
    handshake = "\r\n".join(lines).encode() + HANDSHAKE_END
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: PacketCountingClient(handshake), parts.hostname, parts.port or 80)
    await anext(client)  # session.created
    return client
