"""The key of the watermark: the head node's, at the gateways of all machines. No Ray."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from realtime.cluster.config import ClusterConfig, GatewayReplicas
from realtime.cluster.coordinator import WATERMARK_KEY
from realtime.cluster.replica import ProcessReplica, ReplicaSpec
from realtime.config import ConfigError
from realtime.watermark import KEY
from tests.cluster.conftest import FAKE_GATEWAY
from tests.cluster.test_link import CoordinatorThread
from tests.realtime.live_server import NO_CERTIFICATES, WAIT_S

PRINTS_KEY = (sys.executable, "-c", f"import os; print('key', os.environ.get('{WATERMARK_KEY}'))")
OTHER_KEY = "a key of another machine with 32 characters"


class Machines:
    """A head with its coordinator, and replicas whose programs have data folders of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.key_file = folder / "head" / "voicewire" / KEY.file_name
        self.coordinator = CoordinatorThread(folder / "voices")
        self._replicas: list[ProcessReplica] = []

    def add(self, name: str, program: tuple[str, ...] = PRINTS_KEY, **settings: object) -> ProcessReplica:
        settings = {setting.replace("__", "."): value for setting, value in settings.items()}
        command = ("env", f"XDG_DATA_HOME={self._folder / name}", *program)
        config = ClusterConfig(gateway=GatewayReplicas(settings=settings))
        spec = ReplicaSpec(name=name, kind="gateway", generation="1", config=config, programs={"gateway": command})
        self._replicas.append(ProcessReplica(spec, "127.0.0.1", self.coordinator.caller(name)))
        return self._replicas[-1]

    def close(self) -> None:
        for replica in self._replicas:
            replica.kill()
            assert replica._link is not None
            replica._link.close()
        self.coordinator.close()


def announced(replica: ProcessReplica, name: str = "key") -> str:
    """Start its program; returns what that announces."""
    end_s = time.monotonic() + WAIT_S
    while True:
        replica.report(None)
        if replica._child is not None and name in replica._child.announced:
            return replica._child.announced[name]
        assert time.monotonic() < end_s
        time.sleep(0.05)


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "head"))
    monkeypatch.delenv(WATERMARK_KEY, raising=False)
    machines = Machines(tmp_path)
    yield machines
    machines.close()


def test_gateways_get_the_key_of_the_head(machines):
    """It is created once. A gateway that starts while the coordinator is away waits for it."""
    machines.coordinator.unreachable = {"b"}
    first, second = machines.add("a"), machines.add("b")
    key = announced(first)
    assert key == machines.key_file.read_text().strip()
    assert second.report(None).state == "starting"
    assert second._child is None
    machines.coordinator.unreachable = set()
    assert announced(second) == key


def test_key_of_a_machine_gives_way_to_that_of_the_head(machines, monkeypatch, caplog):
    machines.coordinator._coordinator.watermark_key()
    monkeypatch.setenv(WATERMARK_KEY, OTHER_KEY)
    with caplog.at_level(logging.WARNING, "voicewire.cluster"):
        assert announced(machines.add("a")) == machines.key_file.read_text().strip()
    assert "used in place of this machine's" in caplog.text
    assert OTHER_KEY not in caplog.text


def test_gateway_without_a_watermark_gets_no_key(machines):
    assert announced(machines.add("a", watermark__enabled=False)) == "None"
    assert not machines.key_file.exists()


def test_key_that_the_head_cannot_use_is_named(machines):
    machines.key_file.parent.mkdir(parents=True)
    machines.key_file.write_text(OTHER_KEY)
    machines.key_file.chmod(0o644)
    with pytest.raises(ConfigError, match=r"head node has no key of the watermark: .*other users may read it"):
        machines.add("a").report(None)


@pytest.mark.cluster
@pytest.mark.timeout(120)
def test_gateways_of_two_machines_mark_the_same_samples(machines):
    spoken = []
    for name in "ab":
        url = announced(machines.add(name, FAKE_GATEWAY, watermark__enabled=True), "wire")
        body = {"input": "Hello there, this is a short reply.", "response_format": "pcm", "seed": 1}
        with httpx.Client(trust_env=False, verify=NO_CERTIFICATES, timeout=WAIT_S) as client:
            address = url.replace("ws", "http").removesuffix("/v1/speech")
            spoken.append(client.post(f"{address}/v1/audio/speech", json=body).raise_for_status().content)
    assert spoken[0] == spoken[1]
    assert not any((machines.key_file.parents[2] / name).exists() for name in "ab")
