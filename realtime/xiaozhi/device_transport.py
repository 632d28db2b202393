"""Transports of a xiaozhi device: Opus over its line, the broker, and UDP."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any, NamedTuple, cast

from realtime.errors import RemoteProtocolError
from realtime.protocol.telephony.xiaozhi import (
    FLUSH,
    KEY_BYTES,
    PACKET_MS,
    SAMPLE_RATE,
    EncryptedAudioStream,
    XiaozhiDialect,
    pack_frame,
    stream_id_of,
    unpack_frame,
)
from realtime.transports.listening_sockets import bound_sockets
from realtime.transports.transport import MessageTransport, QueueTransport
from sessions.audio.opus import OpusDecoder, OpusEncoder, OpusError, OpusPacket, OpusSettings
from sessions.audio.pcm import pcm_to_s16le, s16le_to_pcm
from sessions.clock import now_s
from sessions.encoders import EncoderPool

# Sent once the device's first packet gives the address: a second of sound.
MAX_HELD_PACKETS = 16
Address = tuple[Any, ...]


class UdpReplyPath(NamedTuple):
    """Return path to the sender of a datagram."""

    transport: asyncio.DatagramTransport
    address: Address

    def send(self, datagram: bytes) -> None:
        self.transport.sendto(datagram, self.address)


class UdpAudioStream:
    """The UDP audio of a device. ``heard`` is called with each valid packet."""

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
        """Accept packets only from the host of the device's other connection, no faster than any device speaks."""
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
    """A socket of the UDP port."""

    def __init__(self, arrived: Callable[[bytes, UdpReplyPath], None]) -> None:
        self._arrived = arrived
        self._transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Address) -> None:
        self._arrived(data, UdpReplyPath(self._transport, addr))

    def error_received(self, exc: Exception) -> None:
        """Ignore a lost device; its other connection reports it."""


class UdpServer:
    """Routes UDP packets to the streams of devices; others are dropped."""

    def __init__(self, max_packets_per_s: int) -> None:
        self._max_packets_per_s = max_packets_per_s
        self._streams: dict[int, UdpAudioStream] = {}
        self.port = 0

    @asynccontextmanager
    async def open(self, host: str, port: int) -> AsyncIterator[None]:
        """Listen on every address of the host. Raises ``OSError``."""
        loop = asyncio.get_running_loop()
        with ExitStack() as transports:
            for one in bound_sockets(host, port, socket.SOCK_DGRAM):
                one.setblocking(False)
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


log = logging.getLogger("voicewire.xiaozhi")

PACKET_BYTES = SAMPLE_RATE * PACKET_MS // 1000 * 2
# A device begins to play so long after the first packet came.
START_DELAY_S = 0.12
# Messages and packets that are not read yet; sound beyond is dropped, a message beyond ends the line.
MAX_WAITING = 256


class XiaozhiTransport(MessageTransport):
    """Over the device's own line. ``run_idle_timer`` runs beside it."""

    def __init__(
        self,
        line: MessageTransport,
        dialect: XiaozhiDialect,
        threads: EncoderPool,
        *,
        version: int,
        bitrate: int,
        linger_s: float,
    ) -> None:
        self._line, self._dialect, self._threads = line, dialect, threads
        self._version = version
        self._settings = OpusSettings(sample_rate=SAMPLE_RATE, packet_ms=PACKET_MS, bitrate=bitrate)
        self._linger_s = linger_s
        self._encoder = OpusEncoder(self._settings)
        # PCM for the next packet.
        self._gathered = bytearray()
        self._decoder = OpusDecoder(SAMPLE_RATE)
        # Set once the device was notified of speech.
        self._speaking = asyncio.Event()
        # When the device will have played all that it was sent.
        self._played_s = 0.0
        # Packets of this reply.
        self._num_packets = 0

    async def receive(self) -> str | bytes | None:
        while True:
            message = await self._line.receive()
            if not isinstance(message, bytes):
                return message
            if pcm := self._decoded(message):
                return pcm

    async def writable(self) -> bool:
        return await self._line.writable()

    async def write(self, message: str | bytes) -> None:
        if isinstance(message, bytes):
            await self._write_audio(message)
        elif message == self._dialect.stop():
            await self._stop()
        else:
            await self._line.send(message)

    def discard_audio(self) -> None:
        self._encoder = OpusEncoder(self._settings)
        self._gathered.clear()

    async def close(self, code: int, reason: str = "") -> None:
        await self._line.close(code, reason)

    async def run_idle_timer(self) -> None:
        """Tell the device when the speech has ended."""
        while True:
            await self._speaking.wait()
            left_s = self._played_s + self._linger_s - now_s()
            if left_s <= 0:
                await self._stop()
            else:
                await asyncio.sleep(left_s)

    async def _write_audio(self, pcm: bytes) -> None:
        encoder = self._encoder
        self._gathered += pcm
        if len(self._gathered) < PACKET_BYTES and pcm != FLUSH:
            return
        sound, self._gathered = bytes(self._gathered), bytearray()
        packets = await self._threads.run(lambda: _encoded(encoder, sound, pcm == FLUSH))
        if encoder is self._encoder:  # else it was stopped meanwhile
            for packet in packets:
                await self._write_packet(packet)

    async def _write_packet(self, packet: OpusPacket) -> None:
        now = now_s()
        if not self._speaking.is_set():
            self._speaking.set()
            self._played_s, self._num_packets = now + START_DELAY_S, 0
            await self._line.send(self._dialect.start_speech())
        self._played_s = max(self._played_s, now) + PACKET_MS / 1000
        time_ms = self._num_packets * PACKET_MS
        self._num_packets += 1
        await self._line.send(pack_frame(self._version, packet.data, time_ms))

    async def _stop(self) -> None:
        self.discard_audio()
        if self._speaking.is_set():
            self._speaking.clear()
            await self._line.send(self._dialect.stop())

    def _decoded(self, message: bytes) -> bytes:
        """Decode a packet; broken ones are dropped."""
        try:
            packet = unpack_frame(self._version, message)
            return pcm_to_s16le(self._decoder.decode(packet)) if packet else b""
        except (RemoteProtocolError, OpusError):
            return b""


def _encoded(encoder: OpusEncoder, pcm: bytes, flush: bool) -> list[OpusPacket]:
    packets = encoder.push(s16le_to_pcm(pcm))
    return packets + encoder.flush() if flush else packets


class XiaozhiMqttTransport(QueueTransport):
    """Messages at the broker, sound by UDP."""

    def __init__(self, publish: Callable[[str], Awaitable[None]]) -> None:
        super().__init__()
        self._publish = publish
        # Set once it is open.
        self.stream: UdpAudioStream | None = None

    def on_text(self, message: str) -> None:
        if self._closed:
            return
        if self._waiting.qsize() < MAX_WAITING:
            self._waiting.put_nowait(message)
        else:
            self.abort()

    def on_audio(self, packet: bytes) -> None:
        if not self._closed and self._waiting.qsize() < MAX_WAITING:
            self._waiting.put_nowait(packet)

    async def write(self, message: str | bytes) -> None:
        if isinstance(message, str):
            await self._publish(message)
        elif self.stream is not None:
            self.stream.send(message)

    async def close(self, code: int, reason: str = "") -> None:
        self.abort()
