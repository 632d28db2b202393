"""Skips tests whose program or package is missing; starts gateways with the fake engine, and Ray."""

from __future__ import annotations

import importlib.util
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from realtime.cluster.scaling import ReplicaStatus
from tests.realtime.server_process import FAKE_GATEWAY_MODULE, start_fake, wire_address

HELM = ("helm_python", "kubernetes_validate")
FAKE_GATEWAY = (sys.executable, "-m", FAKE_GATEWAY_MODULE)
# In the environment of all that Ray starts here, so that nothing else is ever killed.
MARK = "VOICEWIRE_CLUSTER_TEST"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = {
        program: None if shutil.which(program) else f"no program {program} here"
        for program in ("haproxy", "prometheus", "redis-server")
    }
    missing |= {
        "ray": None if importlib.util.find_spec("ray") else "no package ray here: pip install 'voicewire[cluster]'",
        "helm": next((f"no package {name} here" for name in HELM if not importlib.util.find_spec(name)), None),
    }
    for item in items:
        for name in item.get_closest_marker("cluster").args if item.get_closest_marker("cluster") else ():
            if missing[name]:
                item.add_marker(pytest.mark.skip(reason=missing[name]))


@pytest.fixture
def free_ports() -> Callable[[int], list[int]]:
    def find(num: int) -> list[int]:
        probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(num)]
        ports = [probe.getsockname()[1] for probe in probes]
        for probe in probes:
            probe.close()
        return ports

    return find


@pytest.fixture
def free_port(free_ports: Callable[[int], list[int]]) -> int:
    return free_ports(1)[0]


class GatewayProcess:
    """A process of its own."""

    def __init__(self, name: str, num_slots: int = 64, chunk_frames: int = 1, **settings: object) -> None:
        """``settings`` have two underscores for the dot."""
        self.name = name
        values = {"listen__port": 0, "listen__drain_timeout_s": 60} | settings
        flags = [f"{setting.replace('__', '.')}={value}" for setting, value in values.items()]
        engine = ("--slots", str(num_slots), "--chunk-frames", str(chunk_frames))
        arguments = (*engine, *(text for flag in flags for text in ("--set", flag)))
        self.process = start_fake(FAKE_GATEWAY_MODULE, *arguments)
        self.url = wire_address(self.process.stdout)
        self.port = int(self.url.rpartition(":")[2].partition("/")[0])

    def status(self, state: str = "ready", port: int | None = None) -> ReplicaStatus:
        """``port`` is that of a proxy in front of it."""
        return ReplicaStatus(
            name=self.name,
            kind="gateway",
            generation="1",
            state=state,
            host="127.0.0.1",
            port=port or self.port,
            url=self.url,
        )


@pytest.fixture
def start_gateway() -> Iterator[Callable[..., GatewayProcess]]:
    running: list[GatewayProcess] = []

    def start(name: str, **settings: object) -> GatewayProcess:
        running.append(GatewayProcess(name, **settings))
        return running[-1]

    yield start
    for gateway in running:
        gateway.process.kill()
        gateway.process.close()


@pytest.fixture(scope="session")
def ray_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Ray of its own with logical cores and a data folder; returns the mark of its processes."""
    import ray

    mark = secrets.token_hex(8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark)
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        try:
            ray.init("local", num_cpus=16, include_dashboard=False, log_to_driver=False, logging_level="error")
            yield mark
        finally:
            ray.shutdown()
            for process in marked(mark):
                process.kill()


def marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


def command_of(process: psutil.Process) -> list[str]:
    """Return the command line; empty for one that has just ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []
