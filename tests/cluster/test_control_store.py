"""Ray's control store, kept in Redis, is killed: speech goes on without it, and the cluster recovers with it."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from realtime.cluster.config import ClusterConfig, DoorSettings, GatewayReplicas
from tests.cluster.callers import load
from tests.cluster.conftest import FAKE_GATEWAY, MARK, command_of, marked
from tests.realtime.live_server import WAIT_S

pytestmark = [pytest.mark.cluster("ray", "haproxy", "redis-server"), pytest.mark.timeout(540)]

# Seconds without the store; 120 takes longer than the other tests together.
OUTAGE_S = float(os.environ.get("VOICEWIRE_TEST_OUTAGE_S", "20"))
PROGRAMS = {"gateway": FAKE_GATEWAY, "engine": (sys.executable, "-m", "tests.cluster.fake_engine")}
RAY = Path(sys.executable).with_name("ray")
UP = """\
import sys, msgspec
from realtime.cluster import deploy
from realtime.cluster.config import ClusterConfig
config = msgspec.json.decode(sys.argv[1], type=ClusterConfig)
deploy.connect(config.name)
deploy.up(config, msgspec.json.decode(sys.argv[2]))
deploy.wait_until_ready(config.name, 300)
"""


class RayWithRedis:
    """A Ray whose control store can be killed and started again."""

    def __init__(self, folder: Path, redis_port: int, port: int) -> None:
        self._redis_command = ["redis-server", "--port", str(redis_port), "--dir", str(folder), "--appendonly", "yes"]
        self._redis_command += ["--set-proc-title", "no"]  # its title would overwrite the environment that marks it
        self._mark = secrets.token_hex(8)
        self.environment = {
            **os.environ,
            MARK: self._mark,
            "XDG_DATA_HOME": str(folder),
            "RAY_AUTH_MODE": "disabled",
            "RAY_REDIS_ADDRESS": f"127.0.0.1:{redis_port}",
            "RAY_ADDRESS": f"127.0.0.1:{port}",
            "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
        }
        self._spawn(self._redis_command)
        self.run(
            *(str(RAY), "start", "--head", f"--port={port}", "--num-cpus=16", "--include-dashboard=false"),
            *("--disable-usage-stats", f"--temp-dir={folder}"),
        )

    def run(self, *command: str) -> str:
        """Return what it prints, in a file: what Ray leaves running would keep a pipe open."""
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=WAIT_S + 120,
                check=False,
            )
            output.seek(0)
            printed = output.read()
        assert done.returncode == 0, printed
        return printed

    def kill_store(self) -> None:
        self._store = self._find("gcs_server")
        self._store_command = self._store.cmdline()
        for process in (self._find("redis-server"), self._store):
            process.kill()
        psutil.wait_procs([self._store])

    def start_store(self) -> None:
        self._spawn(self._redis_command)
        self._spawn(self._store_command)

    def programs(self, module: str) -> list[psutil.Process]:
        return [one for one in marked(self._mark) if command_of(one)[1:3] == ["-m", module]]

    def close(self) -> None:
        for process in marked(self._mark):
            process.kill()

    def _spawn(self, command: list[str]) -> None:
        """Start a program that outlives this object's references to it, as a service does."""
        output = subprocess.DEVNULL
        subprocess.run(["setsid", "--fork", *command], env=self.environment, stdout=output, stderr=output, check=True)

    def _find(self, program: str) -> psutil.Process:
        return next(one for one in marked(self._mark) if Path((command_of(one) or [""])[0]).name.startswith(program))


@contextmanager
def ray_with_redis(redis_port: int, port: int) -> Iterator[RayWithRedis]:
    with tempfile.TemporaryDirectory(prefix="vw", ignore_cleanup_errors=True) as folder:  # a short path, for sockets
        ray = RayWithRedis(Path(folder), redis_port, port)
        try:
            yield ray
        finally:
            ray.close()


async def test_killed_control_store_cuts_nothing_and_comes_back(free_ports, tmp_path):
    """Replies go on and begin without it. Afterwards a killed gateway is replaced."""
    redis_port, ray_port, door_port = free_ports(3)
    config = ClusterConfig(
        name="test-store",
        gateway=GatewayReplicas(min_replicas=2, max_replicas=2),
        door=DoorSettings(port=door_port, haproxy=True),
    )
    file = tmp_path / "cluster.yaml"
    file.write_text("name: test-store\n")

    async def url() -> str:
        return f"ws://127.0.0.1:{door_port}"

    with ray_with_redis(redis_port, ray_port) as ray:
        up = (sys.executable, "-c", UP, msgspec.json.encode(config).decode(), msgspec.json.encode(PROGRAMS).decode())
        await asyncio.to_thread(ray.run, *up)
        async with load(url, num_callers=8) as work:
            await until_completed(work, 8)
            await asyncio.to_thread(ray.kill_store)
            await asyncio.sleep(OUTAGE_S)
            await until_completed(work, 8)
            ray.start_store()
            killed = ray.programs("tests.cluster.fake_gateway")[0]
            killed.send_signal(signal.SIGTERM)  # drains
            await until_ready(ray, file, killed)
            await until_completed(work, 8)
        assert work.cut == []
        await asyncio.to_thread(ray.run, sys.executable, "-m", "realtime.cli", "cluster", "down", str(file))


async def until_completed(work, num_more: int) -> None:
    wanted = work.outcomes["completed"] + num_more
    async with asyncio.timeout(WAIT_S):
        while work.outcomes["completed"] < wanted:
            await asyncio.sleep(0.1)


async def until_ready(ray: RayWithRedis, file: Path, killed: psutil.Process) -> None:
    """Wait until the engine, two gateways without the killed one, and the door are ready."""
    command = (sys.executable, "-m", "realtime.cli", "cluster", "status", str(file))
    async with asyncio.timeout(300):
        while True:
            lines = (await asyncio.to_thread(ray.run, *command)).splitlines()
            gateways = ray.programs("tests.cluster.fake_gateway")
            if [line.split()[1] for line in lines] == ["ready"] * 4 and killed not in gateways:
                return
            await asyncio.sleep(1)
