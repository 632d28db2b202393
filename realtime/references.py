"""Recordings that a request names: data URIs, and addresses that are fetched with limits."""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

import h11

from engine.api import InvalidRequest
from realtime.h11_limits import ChunkLimitedConnection
from realtime.version import VERSION

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_URL_CHARS = 2_048
DEFAULT_PORTS = {"https": 443, "http": 80}
# Below it only the default port is allowed.
FIRST_FREE_PORT = 1_024
# Visible ASCII but the backslash, which some take for a slash.
PLAIN_URL = re.compile(r"[!-\[\]-~]*")
HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?")
NUMERIC_HOST = re.compile(r"(?:0[xX][0-9a-fA-F]*|[0-9]+)")

# Beside those that ``ipaddress`` knows as private, loopback, link-local, multicast, reserved or unspecified.
BLOCKED_NETWORKS: tuple[Network, ...] = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",
        "100.64.0.0/10",  # carriers' own
        "192.0.0.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "198.18.0.0/15",  # benchmarks
        "::/96",  # IPv4 in IPv6, the oldest way
        "::ffff:0:0/96",  # IPv4 mapped
        "::ffff:0:0:0/96",  # IPv4 translated
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",
        "2001::/23",  # protocols, Teredo among them
        "2002::/16",  # 6to4
        "3fff::/20",  # examples in books, which older Pythons do not know
        "5f00::/16",  # segment routing
        "fec0::/10",  # site local, as it was
    )
)


class FetchTarget(NamedTuple):
    """Target of a URL, as far as the URL itself says."""

    scheme: str
    host: str
    port: int
    # Path and query.
    path: str

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def parse_url(url: str, allow_http: bool = False) -> FetchTarget:
    """Parse the URL of a recording; raises ``InvalidRequest``."""
    if len(url) > MAX_URL_CHARS:
        raise refuse_address(f"the URL has {len(url)} characters, at most {MAX_URL_CHARS} are allowed")
    if not PLAIN_URL.fullmatch(url):
        raise refuse_address("the URL holds characters that no URL holds")
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
    except ValueError:
        raise refuse_address("this is no URL") from None
    if parts.scheme not in (DEFAULT_PORTS if allow_http else ("https",)):
        raise refuse_address("the URL must begin with https://" + (" or http://" if allow_http else ""))
    if "@" in parts.netloc:
        raise refuse_address("the URL must hold no user name")
    _check_host(host, parts.netloc)
    port = DEFAULT_PORTS[parts.scheme] if port is None else port
    if port != DEFAULT_PORTS[parts.scheme] and port < FIRST_FREE_PORT:
        raise refuse_address(
            f"port {port} is not allowed; use {DEFAULT_PORTS[parts.scheme]} or one from {FIRST_FREE_PORT} on"
        )
    return FetchTarget(parts.scheme, host, port, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))


def check_addresses(addresses: Iterable[str], networks: Iterable[Network] = ()) -> list[Address]:
    """Return all addresses, if every one is public or in ``networks``: a name with one closed address is refused.

    Raises ``InvalidRequest``, which does not name the address: it may be one of an inner network.
    """
    parsed = [ipaddress.ip_address(address) for address in addresses]
    if not parsed:
        raise refuse_address("the host has no address")
    if not all(is_public(address) or any(_within(address, network) for network in networks) for address in parsed):
        raise refuse_address("the host is not on the public network")
    return parsed


def is_public(address: Address) -> bool:
    """Return True for a public address that embeds no other address."""
    if getattr(address, "scope_id", None) or any(_within(address, network) for network in BLOCKED_NETWORKS):
        return False
    special = address.is_multicast or address.is_reserved or address.is_loopback or address.is_link_local
    return address.is_global and not special


def refuse_address(message: str) -> InvalidRequest:
    return InvalidRequest(f"ref_audio: {message}", "ref_audio")


def _within(address: Address, network: Network) -> bool:
    return address.version == network.version and address in network


def _check_host(host: str, netloc: str) -> None:
    """Check that a host is a name or a canonical address; raises ``InvalidRequest``."""
    if "[" in netloc or ":" in host:
        valid = _is_canonical(host, ipaddress.IPv6Address) and netloc.startswith("[")
    elif NUMERIC_HOST.fullmatch(host.rstrip(".").rpartition(".")[2]):
        valid = _is_canonical(host, ipaddress.IPv4Address)
    else:
        valid = len(host) <= 253 and HOST_NAME.fullmatch(host) is not None
    if not valid:
        raise refuse_address("the host must be a name or a plain address")


def _is_canonical(host: str, kind: type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address]) -> bool:
    try:
        return "%" not in host and bool(kind(host))
    except ValueError:
        return False


PREFIX = "data:"
# A multiple of four. Python's lock is held for the whole of a piece.
CHARS_PER_PIECE = 65_536


def decode_data_uri(uri: str, max_bytes: int) -> bytes:
    """Decode a data URI; raises ``InvalidRequest``."""
    head, comma, text = uri.removeprefix(PREFIX).partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise refuse_address("a data URI must be of the form data:audio/...;base64,...")
    if (len(text) - text[-2:].count("=")) * 3 // 4 > max_bytes:
        raise refuse_address(f"it is larger than max_upload_bytes, {max_bytes}")
    if "=" in text[:-2]:
        raise refuse_address("its base64 is broken")
    pieces = (text[start : start + CHARS_PER_PIECE] for start in range(0, len(text), CHARS_PER_PIECE))
    try:
        return b"".join(base64.b64decode(piece, validate=True) for piece in pieces)
    except (binascii.Error, ValueError):
        raise refuse_address("its base64 is broken") from None


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
    # Timeout of resolving, all redirects and the whole body.
    timeout_s: float = 10.0
    max_redirects: int = 3
    allow_http: bool = False
    # Closed networks that are allowed all the same.
    networks: tuple[Network, ...] = ()


class Redirect(NamedTuple):
    location: str


class SystemResolver:
    """The system's resolver, in threads of its own: a name whose servers never answer holds up other names at most."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_DNS_LOOKUPS, thread_name_prefix="resolver")

    async def __call__(self, host: str, port: int) -> list[str]:
        """Resolve a host to addresses; raises ``OSError``."""
        resolve = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, resolve)
        return [str(address[0]) for *_, address in found]


async def connect(
    address: str, target: FetchTarget, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the address; the name is only what the certificate must be for. Raises ``OSError``."""
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
        """Fetch a recording; raises ``InvalidRequest``."""
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
        """Connect to the first that answers. Raises ``OSError``."""
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
