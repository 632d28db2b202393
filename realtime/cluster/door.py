"""The door of the cluster: ``GET /v1/where`` and, where the file asks for it, HAProxy on the same port."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from realtime.api_keys import load_authenticator
from realtime.cluster.config import ClientTls, ClusterConfig
from realtime.cluster.haproxy import HaproxySlots, admin_command, haproxy_configuration
from realtime.cluster.link import Call
from realtime.cluster.replica import NODE, ChildProcess, Members, ReplicaSpec
from realtime.cluster.scaling import ReplicaStatus
from realtime.config import ConfigError
from realtime.config_sections import AuthSettings
from realtime.errors import RequestRefused
from realtime.transports.http_routes import refusal_response

RETRY_AFTER_MS = 1_000
THREAD_END_S = 5.0


class GatewayDirectory:
    """The ready gateways, and which is the least loaded."""

    def __init__(self) -> None:
        self._ready: list[ReplicaStatus] = []
        # Answers since the last report, by name: a second's clients must not all get the same gateway.
        self._assigned: Counter[str] = Counter()

    @property
    def num_ready(self) -> int:
        return len(self._ready)

    def update(self, members: Members) -> None:
        self._ready = [gateway for gateway in members.gateways if gateway.state == "ready"]
        self._assigned = Counter()

    def assign(self) -> ReplicaStatus | None:
        """Return the ready gateway with the fewest connections."""
        if not self._ready:
            return None
        chosen = min(self._ready, key=lambda gateway: gateway.num_connections + self._assigned[gateway.name])
        self._assigned[chosen.name] += 1
        return chosen


def where_app(directory: GatewayDirectory, auth: AuthSettings) -> Starlette:
    """Create the application. Raises ``ConfigError``."""
    authenticator = load_authenticator(auth)

    async def where(request: Request) -> Response:
        try:
            authenticator.authenticate(request)
            if (gateway := directory.assign()) is None:
                raise RequestRefused("engine_dead", "no gateway is ready", retry_after_ms=RETRY_AFTER_MS)
        except RequestRefused as refused:
            return refusal_response(refused.info)
        return JSONResponse({"url": gateway.url}, headers={"Cache-Control": "no-store"})

    return Starlette(routes=[Route("/v1/where", where, methods=["GET"])])


class WhereServer(uvicorn.Server):
    """Serves an application in a thread of its own."""

    def __init__(self, app: Starlette, host: str, port: int, tls: ClientTls | None) -> None:
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off")
        if tls:
            config.ssl_certfile, config.ssl_keyfile = tls.certificate, tls.key
        super().__init__(config)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # the next door listens beside this one
        self._socket.bind((host, port))
        self._socket.listen()
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="voicewire where", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.run(self.serve(sockets=[self._socket]))

    def close(self) -> None:
        self.should_exit = True
        self._thread.join(THREAD_END_S)
        self._socket.close()


class DoorReplica:
    """Has the interface of ``ProcessReplica``. HAProxy keeps its tunnels until they end when the door is drained."""

    def __init__(self, spec: ReplicaSpec, node_address: str, call: Call | None = None) -> None:
        config, door = spec.config, spec.config.door
        self._spec = spec
        self._is_draining = False
        self._host = node_address if door.host == NODE else door.host
        self._folder = Path(tempfile.mkdtemp(prefix="voicewire-"))
        self._members = Members()
        self._directory = GatewayDirectory()
        app = where_app(self._directory, door_auth(config))
        self._child: ChildProcess | None = None
        self._slots: HaproxySlots | None = None
        if not door.haproxy:
            self._where = WhereServer(app, self._host, door.port, config.tls)
            return
        self._where = WhereServer(app, "127.0.0.1", 0, None)
        self._admin_socket = self._folder / "admin"
        self._child = ChildProcess(self._haproxy_command(), {}, signal.SIGUSR1)

    def report(self, members: Members | None) -> ReplicaStatus:
        """Take the gateways over, and return the door's state: it is ready when it has a ready gateway.

        ``None`` changes nothing.
        """
        if members is not None:
            self._members = members
            self._directory.update(members)
        door = self._spec.config.door
        scheme = "https" if self._spec.config.tls else "http"
        status = ReplicaStatus(
            name=self._spec.name,
            kind="door",
            generation=self._spec.generation,
            host=self._host,
            port=door.port,
            url=f"{scheme}://{self._host}:{door.port}",
        )
        if self._is_over():
            shutil.rmtree(self._folder, ignore_errors=True)
            return msgspec.structs.replace(status, state="gone")
        has_slots = self._child is None or self._is_draining or self._update_slots(self._members)
        if not self._is_draining and not (has_slots and self._directory.num_ready):
            return status
        return msgspec.structs.replace(status, state="draining" if self._is_draining else "ready")

    def drain(self) -> None:
        """Stop listening."""
        self._is_draining = True
        self._where.close()
        if self._child is not None:
            self._child.drain()

    def kill(self) -> None:
        self._where.close()
        if self._child is not None:
            self._child.kill()

    def _is_over(self) -> bool:
        return self._is_draining if self._child is None else self._child.status is not None

    def _update_slots(self, members: Members) -> bool:
        """Return False while HAProxy does not answer yet."""
        if self._slots is None:
            with suppress(OSError):
                admin_command(self._admin_socket, "show version")
                self._slots = HaproxySlots(self._admin_socket)
        if self._slots is None:
            return False
        ready = {one.name: (one.host, one.port) for one in members.gateways if one.state == "ready"}
        self._slots.update(ready, [one.name for one in members.gateways if one.state == "draining"])
        return True

    def _haproxy_command(self) -> tuple[str, ...]:
        if (program := shutil.which("haproxy")) is None:
            raise ConfigError("door.haproxy is true, and there is no program haproxy; on Debian: apt install haproxy")
        config = self._spec.config
        pem = self._folder / "door.pem" if config.tls else None
        if config.tls and pem:
            pem.touch(mode=0o600)
            pem.write_bytes(Path(config.tls.certificate).read_bytes() + Path(config.tls.key).read_bytes())
        file = self._folder / "haproxy.cfg"
        door = msgspec.structs.replace(config.door, host=self._host)
        file.write_text(haproxy_configuration(door, config.tls, self._where.port, self._admin_socket, pem))
        return program, "-db", "-f", str(file)


def door_auth(config: ClusterConfig) -> AuthSettings:
    """Return the settings of the keys, which are those of the gateways. Raises ``OSError``."""
    if config.token_secret_file is None:
        return AuthSettings()
    secret = Path(config.token_secret_file).read_text(encoding="ascii").strip()
    return AuthSettings(
        keys_file=config.keys_file, api_keys=os.environ.get("VOICEWIRE_AUTH_API_KEYS"), token_secret=secret
    )
