"""The messages of a client between two gateways, over a Unix socket: frames of a kind, a length and a message."""

from __future__ import annotations

import asyncio
import logging
import struct
from contextlib import suppress

from realtime.transports.transport import MessageTransport

log = logging.getLogger("voicewire.transport")

# Kind and length, big-endian.
FRAME = struct.Struct(">BI")
TEXT, BINARY, CLOSE = 1, 2, 3
CLOSE_CODE = struct.Struct(">H")
# Listeners take no longer messages, and no message of the server is longer.
MAX_FRAME_BYTES = 16 * 1024 * 1024
# More unread audio makes the session's gateway wait for the client.
MAX_UNREAD_BYTES = 65_536
# In place of a close code that the client has not sent.
NO_CODE = 0


class RelayTransport(MessageTransport):
    """One end of a relayed connection. At the session's gateway it stands for the client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, write_timeout_s: float) -> None:
        self._reader, self._writer = reader, writer
        self._write_timeout_s = write_timeout_s
        self._closed = False
        # With ``close_code``.
        self.close_reason = ""
        writer.transport.set_write_buffer_limits(MAX_UNREAD_BYTES)

    async def receive(self) -> str | bytes | None:
        """The next message; ``None`` once the other end has closed, or is gone: then ``close_code`` is ``None``."""
        try:
            kind, num_bytes = FRAME.unpack(await self._reader.readexactly(FRAME.size))
            if num_bytes > MAX_FRAME_BYTES:
                raise ConnectionError(f"a frame of {num_bytes} bytes")
            data = await self._reader.readexactly(num_bytes)
        except (OSError, EOFError):
            self._closed = True
            return None
        if kind == CLOSE:
            self._closed = True
            self.close_code = CLOSE_CODE.unpack_from(data)[0] or None
            self.close_reason = data[CLOSE_CODE.size :].decode()
            return None
        return data.decode() if kind == TEXT else data

    async def writable(self) -> bool:
        if self._closed:
            return False
        try:
            async with asyncio.timeout(self._write_timeout_s):
                await self._writer.drain()
        except OSError:  # also a time-out
            log.info("closed unresponsive connection", extra={"code": "slow_reader"})
            self.abort()
        return not self._closed

    async def write(self, message: str | bytes) -> None:
        data = message.encode() if isinstance(message, str) else message
        self._write_frame(TEXT if isinstance(message, str) else BINARY, data)

    async def close(self, code: int | None, reason: str = "") -> None:
        if await self.writable():
            self._write_frame(CLOSE, CLOSE_CODE.pack(code or NO_CODE) + reason.encode())
            self._closed = True

    def _write_frame(self, kind: int, data: bytes) -> None:
        self._writer.write(FRAME.pack(kind, len(data)) + data)

    def abort(self) -> None:
        self._closed = True
        self._writer.transport.abort()

    async def aclose(self) -> None:
        """Close the socket once all is written."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
