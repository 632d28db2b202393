"""The connection of one client, whatever carries it: messages in, messages out, one end."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypedDict, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from realtime.config_sections import LimitSettings
from realtime.errors import RemoteProtocolError, RequestRefused
from sessions.audio.provenance import SOURCE_TYPE

Result = TypeVar("Result")


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of the work, once the body of the request has been read.

    Raises ``RequestRefused`` when the client leaves first; by then the work has ended and given back what it held.
    """
    # The work runs in this task: nothing comes between the request and what is sent to the engine.
    task = asyncio.current_task()
    assert task is not None
    num_cancels = task.cancelling()
    leaving = asyncio.create_task(_cancel_on_leave(request, task), name="voicewire http client")
    try:
        return await work
    except BaseException:
        has_left = leaving.done() and not leaving.cancelled() and leaving.exception() is None
        if has_left and task.uncancel() <= num_cancels:
            raise client_disconnected() from None
        raise
    finally:
        leaving.cancel()
        await asyncio.wait([leaving])
        del task, leaving  # the error that a task holds would hold the task


class ClientLeft(RequestRefused):
    """The client closed the connection before its answer was complete."""


def client_disconnected() -> ClientLeft:
    return ClientLeft("session_closed", "the client has left")


async def _cancel_on_leave(request: Request, task: asyncio.Task[Any]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    task.cancel()


log = logging.getLogger("voicewire.transport")

EXTENSION = "voicewire.line"
# Key of a start of a response whose body is sent at once: both leave in one packet.
BODY_FOLLOWS = "voicewire.body_follows"
# A line is cut so long after the response that could not be written has ended.
WRITE_GRACE_S = 2.0
# Media type and headers of the answer.
Head = tuple[str, dict[str, str]]


class MessageTransport(ABC):
    # Close code of a WebSocket, set once ``receive`` has reported the close.
    close_code: int | None = None

    @abstractmethod
    async def receive(self) -> str | bytes | None:
        """The next message; ``None`` once the line is closed by either side."""

    @abstractmethod
    async def writable(self) -> bool:
        """Wait until the line takes a message; false once it is closed. Cuts a line that takes nothing for too long."""

    @abstractmethod
    async def write(self, message: str | bytes) -> None:
        """Write one message. Where ``writable`` has just returned true, no other task runs before it is written."""

    @abstractmethod
    async def close(self, code: int, reason: str = "") -> None:
        """End the line; ``receive`` returns ``None`` from now on. Idempotent."""

    def discard_audio(self) -> None:
        """Drop what was written and is still being encoded."""
        return

    async def send(self, message: str | bytes) -> None:
        """Write one message when the line can take it."""
        if await self.writable():
            await self.write(message)


def write_timeout_s(limits: LimitSettings) -> float:
    """Return the time after which a line that takes nothing is cut: not before its response has failed."""
    return limits.reader_timeout_s + WRITE_GRACE_S


class QueueTransport(MessageTransport):
    """Base of lines whose messages another connection delivers. Once cut, they send nothing more."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        self._closed = False

    def abort(self) -> None:
        """End the line without a message. Idempotent."""
        if not self._closed:
            self._closed = True
            self._waiting.put_nowait(None)

    async def receive(self) -> str | bytes | None:
        return None if self._closed else await self._waiting.get()

    async def writable(self) -> bool:
        return not self._closed


class SocketControls(TypedDict):
    """Socket details of the listener beyond ASGI."""

    writable: asyncio.Event
    abort: Callable[[], None]
    # Returns True once nothing may be sent.
    ended: Callable[[], bool]


class WebSocketTransport(MessageTransport):
    """A WebSocket that was accepted."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, timeout_s: float) -> None:
        self._receive = receive
        self._send = send
        self._write_timeout_s = timeout_s
        self._line: SocketControls | None = scope.get("extensions", {}).get(EXTENSION)
        self._closed = False
        # True once the disconnect was received, after which nothing comes.
        self._is_disconnected = False

    async def receive(self) -> str | bytes | None:
        if self._is_disconnected:
            return None
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            self._closed = self._is_disconnected = True
            self.close_code = message.get("code")
            return None
        text: str | None = message.get("text")
        data: bytes = message.get("bytes") or b""
        return data if text is None else text

    async def writable(self) -> bool:
        if self._line is not None and not self._line["writable"].is_set():
            await self._wait_until_writable(self._line)
        return not self._ended

    async def write(self, message: str | bytes) -> None:
        body = {"text": message} if isinstance(message, str) else {"bytes": message}
        try:
            await self._send({"type": "websocket.send", **body})
        except OSError:  # the client is gone; receive() will say so
            self._closed = True

    async def close(self, code: int, reason: str = "") -> None:
        if not await self.writable():
            return
        self._closed = True
        with suppress(OSError):
            await self._send({"type": "websocket.close", "code": code, "reason": reason})

    @property
    def _ended(self) -> bool:
        return self._closed or (self._line is not None and self._line["ended"]())

    async def _wait_until_writable(self, line: SocketControls) -> None:
        try:
            async with asyncio.timeout(self._write_timeout_s):
                while not line["writable"].is_set():  # another that waited may have filled it again
                    await line["writable"].wait()
        except TimeoutError:
            log.info("closed unresponsive connection", extra={"code": "slow_reader"})
            self._closed = True
            line["abort"]()


# Says of an answer that its audio is synthetic.
PROVENANCE_HEADER = "X-Voicewire-Digital-Source-Type"
PROVENANCE = (PROVENANCE_HEADER.lower().encode(), SOURCE_TYPE.encode())


class ResponseAborted(Exception):
    """Speech broke off after the answer had begun; the connection is cut to show it."""


class HttpTransport(MessageTransport):
    """The answer to a request. Set ``head`` before its first piece."""

    # Called with the first piece.
    head: Callable[[], Head]

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._raw_receive, self._raw_send = scope, receive, send
        self.has_begun = False
        self._ended = False

    async def receive(self) -> None:
        """Returns when the client has left, or has all of the answer. Nothing is sent from then on."""
        while (await self._raw_receive())["type"] != "http.disconnect":
            pass
        self._ended = True

    async def writable(self) -> bool:
        return not self._ended

    async def write(self, message: str | bytes) -> None:
        await self._begin()
        data = message.encode() if isinstance(message, str) else message
        if data:
            await self._raw_send({"type": "http.response.body", "body": data, "more_body": True})

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """The answer is complete."""
        if not self._ended:
            await self._begin()
            self._ended = True
            await self._raw_send({"type": "http.response.body", "body": b"", "more_body": False})

    async def abort(self, answer: Response) -> None:
        """Give this answer instead. Raises ``ResponseAborted`` when another has begun."""
        if self._ended:
            return
        self._ended = True
        if self.has_begun:
            raise ResponseAborted
        await answer(self._scope, self._raw_receive, self._raw_send)

    async def _begin(self) -> None:
        if self.has_begun:
            return
        self.has_begun = True
        media_type, headers = self.head()
        raw = [(b"content-type", media_type.encode()), PROVENANCE]
        raw += [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self._raw_send({"type": "http.response.start", "status": 200, "headers": raw, BODY_FOLLOWS: True})


def check_size(message: str | bytes, max_message_bytes: int) -> None:
    """Check the size of a message; raises ``RemoteProtocolError``."""
    is_short = len(message) <= max_message_bytes // 4  # no character takes more than four bytes
    num_bytes = len(message) if is_short or isinstance(message, bytes) else len(message.encode())
    if num_bytes > max_message_bytes:
        found = f"a message of {num_bytes} bytes"
        raise RemoteProtocolError("message_too_big", f"{found}, max_message_bytes is {max_message_bytes}")
