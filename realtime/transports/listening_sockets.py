"""Bind the sockets on which the server listens."""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from msgspec import structs

from realtime.config import ConfigError, ServerConfig
from realtime.config_sections import ListenSettings
from realtime.integration_config import parse_address

log = logging.getLogger("voicewire.listener")

# Linux; the socket module has no name for it before Python 3.12.
TCP_NOTSENT_LOWAT = 25


class Ports(NamedTuple):
    """Port numbers that were bound; ``tls`` is there if it is a second one."""

    main: int
    tls: int | None


class Listeners(NamedTuple):
    """Bound sockets."""

    plain: list[socket.socket]
    tls: list[socket.socket]

    @property
    def all(self) -> list[socket.socket]:
        return self.plain + self.tls

    @property
    def ports(self) -> Ports:
        numbers = [sockets[0].getsockname()[1] for sockets in self if sockets]
        return Ports(numbers[0], numbers[1] if len(numbers) > 1 else None)

    def close(self) -> None:
        for listener in self.all:
            listener.close()


def open_listeners(settings: ListenSettings, share_port: bool = False) -> Listeners:
    """Bind the server's one port, or its plain one and its TLS one. Raises ``ConfigError`` or ``OSError``."""
    if settings.tls_port is None:
        if settings.tls_host is not None:
            raise ConfigError(f"listen.tls_host = {settings.tls_host!r} needs listen.tls_port")
        sockets = listening_sockets(settings, share_port)
        return Listeners([], sockets) if settings.tls_certificate else Listeners(sockets, [])
    if settings.tls_certificate is None:
        raise ConfigError(f"listen.tls_port = {settings.tls_port} needs listen.tls_certificate")
    if settings.tls_port == settings.port != 0:
        raise ConfigError(f"listen.tls_port = {settings.tls_port}: must be another than listen.port")
    listeners = Listeners(listening_sockets(settings, share_port), [])
    second = structs.replace(settings, host=settings.tls_host or settings.host, port=settings.tls_port)
    try:
        listeners.tls.extend(listening_sockets(second, share_port))
    except OSError:
        listeners.close()
        raise
    return listeners


def listening_sockets(settings: ListenSettings, share_port: bool = False) -> list[socket.socket]:
    """Bind TCP sockets to a host; accepted sockets inherit their options. Raises ``OSError``."""

    def set_options(listener: socket.socket) -> None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer_bytes)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if share_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if hasattr(socket, "TCP_QUICKACK"):  # Linux
            listener.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, settings.tcp_notsent_lowat_bytes)

    return bound_sockets(settings.host, settings.port, socket.SOCK_STREAM, set_options)


def bound_sockets(
    host: str, port: int, kind: socket.SocketKind, set_options: Callable[[socket.socket], None] = lambda one: None
) -> list[socket.socket]:
    """Bind one socket per address of the host, all to one port. Raises ``OSError``."""
    sockets: list[socket.socket] = []
    addresses = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)
    try:
        for family, _, protocol, _, address in dict.fromkeys(addresses):
            sockets.append(one := socket.socket(family, kind, protocol))
            set_options(one)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((address[0], port, *address[2:]))
            port = one.getsockname()[1]
    except OSError:
        _close(sockets)
        raise
    return sockets


def check_ports(config: ServerConfig) -> None:
    """Bind the ports beside the server's own, and free them.

    Raises ``ConfigError`` for two settings with one port, and ``OSError`` with the setting of a taken port.
    """
    listen = config.listen
    addresses = {"listen.port": (listen.host, listen.port)}
    if listen.tls_port is not None:
        addresses["listen.tls_port"] = (listen.tls_host or listen.host, listen.tls_port)
    for setting, text in _added_addresses(config).items():
        address = parse_address(text)
        for other, taken in addresses.items():
            if _overlap(address, taken):
                raise ConfigError(f"{setting} = {text}: must have another port than {other}")
        addresses[setting] = address
        own = structs.replace(listen, host=address[0], port=address[1])
        with _naming(setting, text):
            sockets = listening_sockets(own, share_port=listen.gateways > 1)
        _close(sockets)
    if config.xiaozhi.mqtt is not None:
        with _naming("xiaozhi.udp", config.xiaozhi.udp):
            sockets = bound_sockets(*parse_address(config.xiaozhi.udp), socket.SOCK_DGRAM)
        _close(sockets)


@contextmanager
def _naming(setting: str, text: str) -> Iterator[None]:
    """Put the setting into an ``OSError``."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{setting} = {text}: {error.strerror}") from error


def _close(sockets: list[socket.socket]) -> None:
    for one in sockets:
        one.close()


def _added_addresses(config: ServerConfig) -> dict[str, str]:
    found = {
        "calls.audiosocket": config.calls.audiosocket,
        "wyoming.address": config.wyoming.address,
        "xiaozhi.mqtt": config.xiaozhi.mqtt,
    }
    return {setting: text for setting, text in found.items() if text is not None}


def _overlap(one: tuple[str, int], other: tuple[str, int]) -> bool:
    return one[1] == other[1] != 0 and (one[0] == other[0] or bool({one[0], other[0]} & {"", "0.0.0.0", "::"}))


def warn_if_public_without_auth(name: str, sockets: list[socket.socket]) -> None:
    """Warn of a port that needs no key: other machines may reach it."""
    hosts = [listener.getsockname()[0] for listener in sockets]
    if not all(ipaddress.ip_address(host.partition("%")[0]).is_loopback for host in hosts):
        log.warning("%s listens on a non-loopback address without authentication", name, extra={"host": hosts[0]})
