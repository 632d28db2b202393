"""Work for an HTTP client that may leave at any moment: then it is cancelled, wherever it is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from realtime.errors import RequestRefused

Result = TypeVar("Result")


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """What the work gives, once the body of the request has been read.

    Raises ``RequestRefused`` when the client leaves first; by then the work has ended and given back what it held.
    """
    working = asyncio.create_task(work, name="voicewire http work")
    leaving = asyncio.create_task(_wait_disconnected(request), name="voicewire http client")
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise client_disconnected()
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.wait([working, leaving])
        del working, leaving  # the error that a task holds would hold the task


class ClientLeft(RequestRefused):
    """The client closed the connection before its answer was complete."""


def client_disconnected() -> ClientLeft:
    return ClientLeft("session_closed", "the client has left")


async def _wait_disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
