"""The connection of a device: PCM and JSON on the server's side, packets of Opus and JSON on the device's.

It owns the device's view of whether the server speaks: ``tts start`` goes before the first packet, ``tts stop`` when
the device has played the last. Over MQTT, JSON and UDP sound are one connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from realtime.errors import RemoteProtocolError
from realtime.protocol.telephony.xiaozhi import FLUSH, PACKET_MS, SAMPLE_RATE, XiaozhiDialect, pack_frame, unpack_frame
from realtime.transports.transport import MessageTransport
from realtime.xiaozhi.udp_server import UdpAudioStream
from sessions.audio.opus import OpusDecoder, OpusEncoder, OpusError, OpusPacket, OpusSettings
from sessions.audio.pcm import pcm_to_s16le, s16le_to_pcm
from sessions.clock import now_s
from sessions.encoders import EncoderPool

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
        # For the next packet.
        self._gathered = bytearray()
        self._decoder = OpusDecoder(SAMPLE_RATE)
        # The device was told so.
        self._speaking = asyncio.Event()
        # When the device will have played all that it was sent.
        self._played_s = 0.0
        # Of this speech.
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
        """What is no sound, or broken, is passed over: a microphone's packet more or less is no matter."""
        try:
            packet = unpack_frame(self._version, message)
            return pcm_to_s16le(self._decoder.decode(packet)) if packet else b""
        except (RemoteProtocolError, OpusError):
            return b""


def _encoded(encoder: OpusEncoder, pcm: bytes, flush: bool) -> list[OpusPacket]:
    packets = encoder.push(s16le_to_pcm(pcm))
    return packets + encoder.flush() if flush else packets


class XiaozhiMqttTransport(MessageTransport):
    """Messages at the broker, sound by UDP."""

    def __init__(self, publish: Callable[[str], Awaitable[None]]) -> None:
        self._publish = publish
        # Once it is open.
        self.stream: UdpAudioStream | None = None
        self._waiting: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        self._closed = False

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

    def abort(self) -> None:
        """Idempotent."""
        if not self._closed:
            self._closed = True
            self._waiting.put_nowait(None)

    async def receive(self) -> str | bytes | None:
        return None if self._closed else await self._waiting.get()

    async def writable(self) -> bool:
        return not self._closed

    async def write(self, message: str | bytes) -> None:
        if isinstance(message, str):
            await self._publish(message)
        elif self.stream is not None:
            self.stream.send(message)

    async def close(self, code: int, reason: str = "") -> None:
        self.abort()
