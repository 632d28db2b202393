"""Which addresses of the network a reference may come from: public ones, written the plain way."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from engine.api import InvalidRequest

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_URL_CHARS = 2_048
DEFAULT_PORTS = {"https": 443, "http": 80}
# Below it only the default port is asked.
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
    """Where a URL points, as far as the URL itself says."""

    scheme: str
    host: str
    port: int
    # With the query.
    path: str

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def parse_url(url: str, allow_http: bool = False) -> FetchTarget:
    """Raises ``InvalidRequest`` for whatever is not plain."""
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
            f"port {port} is not asked; use {DEFAULT_PORTS[parts.scheme]} or one from {FIRST_FREE_PORT} on"
        )
    return FetchTarget(parts.scheme, host, port, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))


def check_addresses(addresses: Iterable[str], networks: Iterable[Network] = ()) -> list[Address]:
    """All of them, if every one is public or in ``networks``: a name that has one closed address is not asked at all.

    Raises ``InvalidRequest``, which does not tell the address: it may be one of an inner network.
    """
    parsed = [ipaddress.ip_address(address) for address in addresses]
    if not parsed:
        raise refuse_address("the host has no address")
    if not all(is_public(address) or any(_within(address, network) for network in networks) for address in parsed):
        raise refuse_address("the host is not on the public network")
    return parsed


def is_public(address: Address) -> bool:
    """Whether the address means a host that anyone can reach, and hides no other address."""
    if getattr(address, "scope_id", None) or any(_within(address, network) for network in BLOCKED_NETWORKS):
        return False
    special = address.is_multicast or address.is_reserved or address.is_loopback or address.is_link_local
    return address.is_global and not special


def refuse_address(message: str) -> InvalidRequest:
    return InvalidRequest(f"ref_audio: {message}", "ref_audio")


def _within(address: Address, network: Network) -> bool:
    return address.version == network.version and address in network


def _check_host(host: str, netloc: str) -> None:
    """Raises ``InvalidRequest`` unless it is a name, or an address in its one canonical form."""
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
