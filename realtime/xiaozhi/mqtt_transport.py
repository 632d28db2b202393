"""A device's line over MQTT and UDP: JSON one way, sound the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from realtime.xiaozhi.udp_server import UdpAudioStream

# Messages and packets that are not read yet; sound beyond is dropped, a message beyond ends the line.
MAX_WAITING = 256


class XiaozhiMqttTransport:
    """Implements ``MessageTransport``."""

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

    async def send(self, message: str | bytes, wanted: Callable[[], bool] | None = None) -> None:
        if self._closed or (wanted is not None and not wanted()):
            return
        if isinstance(message, str):
            await self._publish(message)
        elif self.stream is not None:
            self.stream.send(message)

    async def close(self, code: int, reason: str = "") -> None:
        self.abort()
