"""One client's line, whatever carries it: messages in, messages out, one end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypedDict

from starlette.types import Receive, Scope, Send

log = logging.getLogger("voicewire.transport")

EXTENSION = "voicewire.line"
# A line is cut so long after the response that could not be written has ended.
WRITE_GRACE_S = 2.0


class MessageTransport(Protocol):
    async def receive(self) -> str | bytes | None:
        """The next message; ``None`` once the line is closed by either side."""
        ...

    async def send(self, message: str | bytes, wanted: Callable[[], bool] | None = None) -> None:
        """Write one message, when the line can take it and if it is still ``wanted`` then.

        On a closed line it does nothing. A line that takes nothing for too long is cut.
        """
        ...

    async def close(self, code: int, reason: str = "") -> None:
        """End the line; ``receive`` returns ``None`` from now on. Idempotent."""
        ...


class SocketControls(TypedDict):
    """Socket details of the listener beyond ASGI."""

    writable: asyncio.Event
    abort: Callable[[], None]
    # Nothing may be sent any more.
    ended: Callable[[], bool]


class WebSocketTransport:
    """A WebSocket that was accepted. All writing of a connection goes through ``send``."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, write_timeout_s: float) -> None:
        self._receive = receive
        self._send = send
        self._write_timeout_s = write_timeout_s
        self._line: SocketControls | None = scope.get("extensions", {}).get(EXTENSION)
        self._closed = False
        # With which the line was closed, once ``receive`` has said so.
        self.close_code: int | None = None

    async def receive(self) -> str | bytes | None:
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            self._closed = True
            self.close_code = message.get("code")
            return None
        text: str | None = message.get("text")
        data: bytes = message.get("bytes") or b""
        return data if text is None else text

    async def send(self, message: str | bytes, wanted: Callable[[], bool] | None = None) -> None:
        await self._until_writable()
        if self._ended or (wanted is not None and not wanted()):
            return
        body = {"text": message} if isinstance(message, str) else {"bytes": message}
        try:
            await self._send({"type": "websocket.send", **body})
        except OSError:  # the client is gone; receive() will say so
            self._closed = True

    async def close(self, code: int, reason: str = "") -> None:
        await self._until_writable()
        if self._ended:
            return
        self._closed = True
        with suppress(OSError):
            await self._send({"type": "websocket.close", "code": code, "reason": reason})

    @property
    def _ended(self) -> bool:
        return self._closed or (self._line is not None and self._line["ended"]())

    async def _until_writable(self) -> None:
        if self._line is None or self._line["writable"].is_set():
            return
        try:
            async with asyncio.timeout(self._write_timeout_s):
                while not self._line["writable"].is_set():  # another that waited may have filled it again
                    await self._line["writable"].wait()
        except TimeoutError:
            log.info("closed unresponsive connection", extra={"code": "slow_reader"})
            self._closed = True
            self._line["abort"]()
