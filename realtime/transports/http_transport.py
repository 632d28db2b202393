"""An HTTP request as a line: its body is the one message that comes, and what is sent is the answer's body."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from realtime.errors import RequestRefused
from realtime.transports.disconnect import client_disconnected

# Media type and headers of the answer.
Head = tuple[str, dict[str, str]]


class ResponseAborted(Exception):
    """Speech broke off after the answer had begun; the connection is cut, so that the client can tell."""


async def read_limited_body(request: Request, max_bytes: int, timeout_s: float) -> bytes:
    """All of a request's. Raises ``RequestRefused``, also when the client leaves before."""
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for piece in request.stream():
                body += piece
                if len(body) > max_bytes:
                    raise RequestRefused("message_too_big", f"the body is longer than max_message_bytes, {max_bytes}")
    except ClientDisconnect:
        raise client_disconnected() from None
    except TimeoutError:
        raise RequestRefused("body_timeout", "the body did not arrive in time") from None
    return bytes(body)


class HttpTransport:
    """Implements ``MessageTransport``; ``head`` is asked with the first piece of the answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, head: Callable[[], Head]) -> None:
        self._scope, self._raw_receive, self._raw_send = scope, receive, send
        self._request = Request(scope, receive)
        self._head = head
        self._body_read = False
        self._begun = False
        self._ended = False

    async def read_body(self, max_bytes: int, timeout_s: float) -> bytes:
        """Raises ``RequestRefused``."""
        return await read_limited_body(self._request, max_bytes, timeout_s)

    async def receive(self) -> None:
        """Returns when the client has left, or has all of the answer. Nothing is sent from then on."""
        while (await self._raw_receive())["type"] != "http.disconnect":
            pass
        self._ended = True

    async def send(self, message: str | bytes, wanted: Callable[[], bool] | None = None) -> None:
        if self._ended or (wanted is not None and not wanted()):
            return
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
        if self._begun:
            raise ResponseAborted
        await answer(self._scope, self._raw_receive, self._raw_send)

    async def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        media_type, headers = self._head()
        raw = [(b"content-type", media_type.encode())]
        raw += [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self._raw_send({"type": "http.response.start", "status": 200, "headers": raw})
