"""A network that is not there: names and what they resolve to, and a web server on the loopback address."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from realtime.references import FetchTarget

PUBLIC = "93.184.216.34"
NAMES: dict[str, list[str]] = {
    "public.test": [PUBLIC],
    "private.test": ["10.0.0.1"],
    "loopback.test": ["127.0.0.1"],
    "localhost": ["127.0.0.1", "::1"],
    "127.0.0.1.wildcard.test": ["127.0.0.1"],
    "metadata.test": ["169.254.169.254"],
    "mixed.test": [PUBLIC, "127.0.0.1"],
    "mixed-again.test": ["192.168.0.1", PUBLIC],
    "mapped.test": ["::ffff:10.0.0.1"],
    "nat64.test": ["64:ff9b::a00:1"],
    "six.test": ["2606:2800:220:1::1", "fd00::1"],
    "nowhere.test": [],
}

# From the head of a request to what is written; a number is a pause in seconds.
Answer = Callable[[bytes], Sequence[bytes | float]]


class FakeResolver:
    """A resolver; several lists for one name are given one after the other."""

    def __init__(self, **more: Sequence[list[str]]) -> None:
        self._turns = {name: list(answers) for name, answers in more.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        name = host.rstrip(".")
        if name in self._turns:
            return self._turns[name].pop(0) if len(self._turns[name]) > 1 else self._turns[name][0]
        if name in NAMES:
            return NAMES[name]
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        return [str(address[0]) for *_, address in found]


class NoConnection:
    """Where nobody may connect; remembers who tried."""

    def __init__(self) -> None:
        self.tried: list[str] = []

    async def __call__(self, address: str, target: FetchTarget, tls: ssl.SSLContext | None) -> Awaitable[None]:
        self.tried.append(address)
        raise ConnectionRefusedError


def answer(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    lines = {"Content-Length": str(len(body)), "Content-Type": "audio/wav"}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


@asynccontextmanager
async def web_server(give: Answer, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """Its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            for piece in give(head):
                if isinstance(piece, bytes):
                    writer.write(piece)
                    await writer.drain()
                else:
                    await asyncio.sleep(piece)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return
        finally:
            writer.transport.abort() if writer.transport.is_closing() else writer.close()

    server = await asyncio.start_server(serve, host, 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in [task for task in asyncio.all_tasks() if "serve" in repr(task.get_coro())]:
            task.cancel()
        await asyncio.sleep(0)


LOOPBACK = (ipaddress.ip_network("127.0.0.1/32"),)
