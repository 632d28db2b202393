"""A replica on its machine: an engine or gateway as a child process, its health and its places. Independent of Ray."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

import msgspec
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from engine.api import child_environment
from realtime.cluster.config import ClusterConfig, Scalar, setting_text
from realtime.cluster.coordinator import WATERMARK_KEY, WatermarkKeyAnswer, WatermarkKeyRequest
from realtime.cluster.link import LINK_VARIABLE, VOICES, Call, ReplicaLink
from realtime.cluster.scaling import Kind, ReplicaStatus, State
from realtime.config import ConfigError
from realtime.metrics import PREFIX

log = logging.getLogger("voicewire.cluster")

PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "engine": (sys.executable, "-P", "-m", "realtime.cli", "engine"),
    "gateway": (sys.executable, "-P", "-m", "realtime.cli", "serve"),
}
PROBE_TIMEOUT_S = 3.0
KEY_TIMEOUT_S = 3.0
# Probes in a row without an answer after which a gateway is killed.
MAX_MISSED_PROBES = 5
KILL_AFTER_S = 10.0
# Time for a client that was sent here before the drain to begin its response.
DRAIN_DELAY_S = 2.0
# Name of the API key with which a replica reads the metrics of its own gateway.
KEY_NAME = "cluster"
NODE = "node"


class Members(Struct, frozen=True):
    """The replicas that others need to know."""

    engines: tuple[str, ...] = ()
    # Those that are ready or draining.
    gateways: tuple[ReplicaStatus, ...] = ()


class ReplicaSpec(Struct, frozen=True, kw_only=True):
    name: str
    kind: Kind
    generation: str
    config: ClusterConfig
    # Programs in place of ``PROGRAMS``, by kind.
    programs: dict[str, tuple[str, ...]] = {}


class ChildProcess:
    """A program under ``realtime.cluster.child``, which drains when this process dies."""

    def __init__(
        self, command: tuple[str, ...], environment: Mapping[str, str], stop_signal: signal.Signals = signal.SIGTERM
    ) -> None:
        self._process = subprocess.Popen(
            (sys.executable, "-P", "-m", "realtime.cluster.child", stop_signal.name, *command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**child_environment(), **environment},
            start_new_session=True,
        )
        # Lines of standard output, of the form ``NAME ADDRESS``.
        self.announced: dict[str, str] = {}
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, output: IO[bytes]) -> None:
        with output:
            for line in output:
                name, _, address = line.decode(errors="replace").strip().partition(" ")
                self.announced[name] = address.strip()

    @property
    def status(self) -> int | None:
        """Exit status; ``None`` while it runs."""
        return self._process.poll()

    def drain(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def kill(self) -> None:
        """Kill the program with all of its processes."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.drain()
        self._process.wait(KILL_AFTER_S)
        self._reader.join(KILL_AFTER_S)


class ProcessReplica:
    """Engine or gateway. ``report`` is called about once a second, by one caller at a time."""

    def __init__(self, spec: ReplicaSpec, node_address: str, call: Call) -> None:
        """``call`` reaches the coordinator."""
        self._spec = spec
        self._call = call
        # Empty until the coordinator has answered; ``None`` without a watermark.
        self._watermark_key: str | None = "" if has_watermark(spec) else None
        self._is_draining = False
        self._num_missed = 0
        # Of the last probe with an answer.
        self._last: ReplicaStatus | None = None
        self._key = secrets.token_urlsafe(24)
        self._folder = Path(tempfile.mkdtemp(prefix="voicewire-"))
        self._engines_file = self._folder / "engines"
        self._engines_file.touch()
        section = spec.config.engine if spec.kind == "engine" else spec.config.gateway
        self._host = node_address if section.host == NODE else section.host
        self._child: ChildProcess | None = None
        self._link = ReplicaLink(spec.name, self._folder, call) if spec.kind == "gateway" else None

    def report(self, members: Members | None) -> ReplicaStatus:
        """Bring the file of engine addresses up to date, and return the replica's state.

        ``None`` changes nothing. Raises ``ConfigError`` if its program cannot be started as it should be.
        """
        if members is not None:
            self._write_engines(members.engines)
        status = ReplicaStatus(name=self._spec.name, kind=self._spec.kind, generation=self._spec.generation)
        if self._child is None and not self._is_draining:
            if self._watermark_key == "" and not self._load_watermark_key():
                return status
            self._child = ChildProcess(self._command(), self._environment())
        if self._child is None or self._child.status is not None:
            if self._link is not None:
                self._link.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            return msgspec.structs.replace(status, state="gone")
        url = self._child.announced.get("engine" if self._spec.kind == "engine" else "wire", "")
        if not url:
            return msgspec.structs.replace(status, state=self._state("starting"))
        place = urlsplit(url)
        status = msgspec.structs.replace(status, url=url, host=place.hostname or "", port=place.port or 0)
        return (
            self._probe(status)
            if self._spec.kind == "gateway"
            else msgspec.structs.replace(status, state=self._state("ready"))
        )

    def drain(self) -> None:
        """Let the program end soon: it finishes or hands over what it speaks."""
        self._is_draining = True
        if self._child is not None:
            timer = threading.Timer(DRAIN_DELAY_S, self._child.drain)
            timer.daemon = True
            timer.start()

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def _state(self, state: State) -> State:
        return "draining" if self._is_draining else state

    def _write_engines(self, engines: tuple[str, ...]) -> None:
        content = "".join(f"{engine}\n" for engine in engines)
        if self._folder.exists() and engines and content != self._engines_file.read_text():
            new = self._engines_file.with_suffix(".new")
            new.write_text(content)
            new.replace(self._engines_file)

    def _probe(self, status: ReplicaStatus) -> ReplicaStatus:
        try:
            is_ready, _ = self._get(status, "/readyz")
            can_read, text = self._get(status, "/metrics")
        except OSError:
            self._num_missed += 1
            if self._num_missed >= MAX_MISSED_PROBES and not self._is_draining:
                self.kill()
            last = self._last or status
            return msgspec.structs.replace(last, state=self._state(last.state))
        self._num_missed = 0
        gauges = read_gauges(text) if can_read else {}
        total = gauges.get("decoder_slots_total", 0)
        self._last = msgspec.structs.replace(
            status,
            state=self._state("ready" if is_ready else "starting"),
            num_connections=gauges.get("open_connections", 0),
            num_active_responses=gauges.get("active_responses", 0),
            places=total,
            used_places=total - gauges.get("decoder_slots_free", 0) + gauges.get("requests_waiting", 0),
        )
        return self._last

    def _get(self, status: ReplicaStatus, path: str) -> tuple[bool, str]:
        """Return whether the answer is 200, and its body. Raises ``OSError`` without an answer."""
        tls = self._spec.config.tls
        context = ssl.create_default_context(cafile=tls.ca) if tls else ssl.create_default_context()
        context.check_hostname = False
        scheme = "https" if tls else "http"
        host = f"[{status.host}]" if ":" in status.host else status.host
        request = Request(f"{scheme}://{host}:{status.port}{path}", headers={"Authorization": f"Bearer {self._key}"})
        try:
            with build_opener(ProxyHandler({}), HTTPSHandler(context=context)).open(
                request, timeout=PROBE_TIMEOUT_S
            ) as answer:
                return True, answer.read().decode()
        except HTTPError as error:
            return False, error.reason

    def _command(self) -> tuple[str, ...]:
        program = self._spec.programs.get(self._spec.kind, PROGRAMS[self._spec.kind])
        config = self._spec.config
        if self._spec.kind == "engine":
            model = ("--model", config.model) if config.model else ()
            own = {"listen.drain_timeout_s": config.drain_timeout_s} | config.engine.tls_settings
            return (*program, *model, "--listen", f"tcp://{self._host}:0", *as_arguments(own | config.engine.settings))
        return (*program, *as_arguments(self._gateway_settings() | config.gateway.settings))

    def _load_watermark_key(self) -> bool:
        """Return False while the coordinator does not answer. Raises ``ConfigError`` if it has no key."""
        try:
            message = self._call(msgspec.msgpack.encode(WatermarkKeyRequest()), KEY_TIMEOUT_S)
        except OSError:
            return False
        answer = msgspec.msgpack.decode(message, type=WatermarkKeyAnswer)
        if answer.error:
            raise ConfigError(f"the head node has no key of the watermark: {answer.error}")
        if os.environ.get(WATERMARK_KEY, answer.key) != answer.key:
            log.warning("the watermark's key of the head node is used in place of this machine's")
        self._watermark_key = answer.key
        return True

    def _gateway_settings(self) -> dict[str, Scalar]:
        config = self._spec.config
        settings: dict[str, Scalar] = {
            "listen.host": self._host,
            "listen.port": 0,
            "listen.drain_timeout_s": config.drain_timeout_s,
            "engine.addresses": f"file:{self._engines_file}",
            "voices.folder": str(self._folder / VOICES),
        }
        settings |= config.engine.tls_settings
        if config.keys_file is not None:
            settings["auth.keys_file"] = config.keys_file
        if config.tls is not None:
            settings |= {"listen.tls_certificate": config.tls.certificate, "listen.tls_key": config.tls.key}
        return settings

    def _environment(self) -> dict[str, str]:
        """The link, and secrets, which do not belong on a command line."""
        config = self._spec.config
        link = {LINK_VARIABLE: str(self._link.address)} if self._link else {}
        if self._watermark_key is not None:
            link[WATERMARK_KEY] = self._watermark_key
        if self._spec.kind == "engine" or config.keys_file is None or config.token_secret_file is None:
            return link
        keys = [*filter(None, [os.environ.get("VOICEWIRE_AUTH_API_KEYS")]), f"{KEY_NAME}:{self._key}"]
        return link | {
            "VOICEWIRE_AUTH_API_KEYS": ",".join(keys),
            "VOICEWIRE_AUTH_TOKEN_SECRET": Path(config.token_secret_file).read_text(encoding="ascii").strip(),
        }


def has_watermark(spec: ReplicaSpec) -> bool:
    return spec.kind == "gateway" and spec.config.gateway.settings.get("watermark.enabled", True) is not False


def as_arguments(settings: Mapping[str, Scalar]) -> tuple[str, ...]:
    return tuple(text for name, value in settings.items() for text in ("--set", f"{name}={setting_text(value)}"))


def read_gauges(exposition: str) -> dict[str, int]:
    """Return the values without labels, by their names without the prefix."""
    return {
        sample.name.removeprefix(PREFIX): int(sample.value)
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
        if not sample.labels and sample.name.startswith(PREFIX)
    }
