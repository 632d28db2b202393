"""HAProxy in front of the gateways: its configuration, and its slots, which are set over its admin socket.

A reload would start a second process, and the first would keep its sockets only until a time-out. So HAProxy is never
reloaded: ``server-template`` makes empty slots, and a gateway that comes or goes is one or two commands.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from realtime.cluster.config import ClientTls, DoorSettings

BACKEND = "gateways"
NUM_SLOTS = 256
COMMAND_TIMEOUT_S = 5.0
# HAProxy allocates memory for as many as it may open, which is a billion in some containers. A connection is two.
MAX_DESCRIPTORS = 200_000
# No session is as long: ``limits.max_session_duration_s`` is a day, and the server's pings show dead clients.
TUNNEL_TIMEOUT = "25h"
# The answer of HAProxy to a command that it carried out, apart from a note about a change.
NOTES = ("", "IP changed", "port changed", "no need to change", "nothing changed")


def haproxy_configuration(
    door: DoorSettings, tls: ClientTls | None, where_port: int, admin_socket: Path, pem: Path | None = None
) -> str:
    """Return the configuration file. ``pem`` holds the certificate chain and the key of ``tls``."""
    bind_tls = f" ssl crt {pem} alpn http/1.1" if pem else ""
    server_tls = f" ssl verify required ca-file {tls.ca} sni str({tls.name}) verifyhost {tls.name}" if tls else ""
    return f"""\
global
    stats socket {admin_socket} mode 600 level admin
    fd-hard-limit {MAX_DESCRIPTORS}

defaults
    mode http
    timeout connect 3s
    timeout check 1s
    timeout http-request 10s
    timeout client 75s
    timeout server 75s
    timeout tunnel {TUNNEL_TIMEOUT}
    timeout client-fin 30s
    timeout server-fin 30s
    retries 3
    retry-on conn-failure
    option redispatch 1

frontend door
    bind {_bind_address(door.host, door.port)}{bind_tls}
    use_backend where if {{ path /v1/where }}
    default_backend {BACKEND}

backend where
    server where 127.0.0.1:{where_port}

backend {BACKEND}
    balance leastconn
    option httpchk GET /readyz
    http-check expect status 200
    server-template gateway 1-{NUM_SLOTS} 127.0.0.1:9 check inter 1s fastinter 300ms fall 3 rise 1 disabled{server_tls}
"""


def _bind_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class HaproxySlots:
    """Which gateway has which slot. The owner calls ``update`` whenever the gateways change, and after a restart."""

    def __init__(self, admin_socket: Path, num_slots: int = NUM_SLOTS) -> None:
        self._admin_socket = admin_socket
        self._free = list(range(num_slots, 0, -1))
        # By the gateway's name.
        self._slots: dict[str, int] = {}
        self._drained: set[str] = set()

    def update(self, ready: Mapping[str, tuple[str, int]], draining: Sequence[str]) -> None:
        """Give each ready gateway a slot, by name and address; drain the slots of those that leave.

        A draining gateway gets no new connection and keeps those that it has. A slot is free again when its gateway is
        in neither list. Raises ``OSError`` if HAProxy does not answer, and ``RuntimeError`` if it refuses.
        """
        for name in [name for name in self._slots if name not in ready and name not in draining]:
            self._command(f"set server {self._server(name)} state maint")
            self._free.append(self._slots.pop(name))
            self._drained.discard(name)
        for name in draining:
            if name in self._slots and name not in self._drained:
                self._command(f"set server {self._server(name)} state drain")
                self._drained.add(name)
        for name, (host, port) in ready.items():
            if name not in self._slots:
                self._add(name, host, port)

    def _add(self, name: str, host: str, port: int) -> None:
        if not self._free:
            raise RuntimeError(f"HAProxy has {NUM_SLOTS} slots, and all are taken")
        slot = self._free[-1]
        server = f"{BACKEND}/gateway{slot}"
        self._command(f"set server {server} addr {host} port {port}")
        self._command(f"set server {server} state ready")
        self._slots[name] = self._free.pop()

    def _server(self, name: str) -> str:
        return f"{BACKEND}/gateway{self._slots[name]}"

    def _command(self, command: str) -> None:
        answer = admin_command(self._admin_socket, command).strip()
        if not answer.startswith(NOTES[1:]) and answer:
            raise RuntimeError(f"HAProxy refused {command!r}: {answer}")


def admin_command(admin_socket: Path, command: str) -> str:
    """Send one command and return the whole answer. Raises ``OSError``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(COMMAND_TIMEOUT_S)
        connection.connect(str(admin_socket))
        connection.sendall(command.encode() + b"\n")
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    return answer.decode(errors="replace")
