"""Fetch reference audio from a client's URL without giving the client access to the server's network.

A name is resolved once for each hop; all its addresses are looked at; the connection goes to one that was looked at,
whatever the name means by then; the certificate must be for the name. Redirects are hops like the first. One clock
runs over all of it, and no proxy of the environment is used.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import NamedTuple
from urllib.parse import urljoin

import h11

from engine.api import InvalidRequest
from realtime.h11_limits import ChunkLimitedConnection
from realtime.references.addresses import Address, FetchTarget, Network, check_addresses, parse_url, refuse_address
from realtime.version import VERSION

REDIRECTS = frozenset({301, 302, 303, 307, 308})
READ_BYTES = 65_536
# Read between two turns of the event loop: a host that sends its body in crumbs takes no more of it at once.
STEP_BYTES = 4_096
MAX_HEAD_BYTES = 32_768
MAX_DNS_LOOKUPS = 4

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Connect = Callable[
    [str, FetchTarget, ssl.SSLContext | None], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRules:
    max_bytes: int = 10 * 2**20
    # For resolving, all hops and the whole body.
    timeout_s: float = 10.0
    max_redirects: int = 3
    allow_http: bool = False
    # Closed networks that are asked all the same.
    networks: tuple[Network, ...] = ()


class Redirect(NamedTuple):
    location: str


class SystemResolver:
    """The system's resolver, in threads of its own: a name whose servers never answer holds up other names at most."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_DNS_LOOKUPS, thread_name_prefix="resolver")

    async def __call__(self, host: str, port: int) -> list[str]:
        """Raises ``OSError``."""
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        return [str(address[0]) for *_, address in found]


async def connect(
    address: str, target: FetchTarget, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """To the address; the name is only what the certificate must be for. Raises ``OSError``."""
    server_hostname = target.host.rstrip(".") if tls else None
    return await asyncio.open_connection(
        address, target.port, ssl=tls, server_hostname=server_hostname, limit=READ_BYTES
    )


@cache
def trusted_by_the_system() -> ssl.SSLContext:
    """Takes 20 ms to read."""
    return ssl.create_default_context()


@dataclass(frozen=True, slots=True)
class Fetcher:
    rules: FetchRules = FetchRules()
    resolve: Resolve = field(default_factory=SystemResolver)
    connect: Connect = connect
    tls: ssl.SSLContext = field(default_factory=trusted_by_the_system)

    async def fetch(self, url: str) -> bytes:
        """Raises ``InvalidRequest``."""
        try:
            async with asyncio.timeout(self.rules.timeout_s):
                return await self._follow(url)
        except TimeoutError:
            raise refuse_address(f"it did not arrive within {self.rules.timeout_s:g} s") from None
        except (OSError, h11.RemoteProtocolError, ValueError) as error:  # also what is wrong with a certificate
            raise refuse_address(f"it cannot be fetched: {type(error).__name__}") from None

    async def _follow(self, url: str) -> bytes:
        for _ in range(self.rules.max_redirects + 1):
            answer = await self._hop(parse_url(url, self.rules.allow_http))
            if isinstance(answer, bytes):
                return answer
            url = urljoin(url, answer.location)
        raise refuse_address(f"it was redirected more than {self.rules.max_redirects} times")

    async def _hop(self, target: FetchTarget) -> bytes | Redirect:
        found = await self.resolve(target.host, target.port)
        reader, writer = await self._connect(check_addresses(found, self.rules.networks), target)
        try:
            return await self._send_request(target, reader, writer)
        finally:
            writer.transport.abort()

    async def _connect(
        self, addresses: Sequence[Address], target: FetchTarget
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To the first that answers. Raises ``OSError``."""
        tls = self.tls if target.scheme == "https" else None
        for address in addresses[:-1]:
            with suppress(OSError):
                return await self.connect(str(address), target, tls)
        return await self.connect(str(addresses[-1]), target, tls)

    async def _send_request(
        self, target: FetchTarget, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes | Redirect:
        connection = ChunkLimitedConnection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        headers = [
            ("Host", target.host_header),
            ("User-Agent", f"voicewire/{VERSION}"),
            ("Accept", "audio/*"),
            ("Accept-Encoding", "identity"),
            ("Connection", "close"),
        ]
        request = h11.Request(method="GET", target=target.path, headers=headers)
        writer.write(connection.send(request) + connection.send(h11.EndOfMessage()))
        await writer.drain()
        head = await self._follow_redirect(connection, reader)
        if not isinstance(head, h11.Response):
            raise refuse_address("the host does not answer in HTTP")
        if (moved := _check_head(head, self.rules.max_bytes)) is not None:
            return moved
        return await self._body(connection, reader)

    async def _body(self, connection: h11.Connection, reader: asyncio.StreamReader) -> bytes:
        body = bytearray()
        while isinstance(event := await self._follow_redirect(connection, reader), h11.Data):
            body += event.data
            if len(body) > self.rules.max_bytes:
                raise _too_large(self.rules.max_bytes)
        if not isinstance(event, h11.EndOfMessage):
            raise refuse_address("it broke off")
        return bytes(body)

    async def _follow_redirect(self, connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Event:
        while (event := connection.next_event()) is h11.NEED_DATA or isinstance(event, h11.InformationalResponse):
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(STEP_BYTES))
                await asyncio.sleep(0)
        return event  # type: ignore[return-value]


def _check_head(head: h11.Response, max_bytes: int) -> Redirect | None:
    headers = {name: value.decode("latin-1") for name, value in head.headers}
    if head.status_code in REDIRECTS:
        if location := headers.get(b"location"):
            return Redirect(location)
        raise refuse_address("it was redirected to nowhere")
    if head.status_code != 200:
        raise refuse_address(f"the host answered with status {head.status_code}")
    if headers.get(b"content-encoding", "identity") != "identity":
        raise refuse_address("it is compressed for the transport")
    if headers.get(b"content-length", "0").isdigit() and int(headers.get(b"content-length", "0")) > max_bytes:
        raise _too_large(max_bytes)
    return None


def _too_large(max_bytes: int) -> InvalidRequest:
    return refuse_address(f"it is larger than max_upload_bytes, {max_bytes}")
