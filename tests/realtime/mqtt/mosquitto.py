"""A real Mosquitto on a free port of this machine."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

READY_S = 10.0


def program() -> str:
    """Skips the test where there is none."""
    folders = [Path(folder) for folder in os.environ.get("PATH", os.defpath).split(os.pathsep)]
    # Debian installs it into sbin, which is on the PATH of root alone.
    places = [place for folder in folders for place in (folder, folder.with_name("sbin"))]
    found = shutil.which("mosquitto", path=os.pathsep.join(map(str, places)))
    if found is None:
        pytest.skip("no mosquitto here; on Debian: apt install mosquitto")
    return found


class Mosquitto:
    """``start`` and ``kill`` as often as wanted; the port stays."""

    def __init__(self, folder: Path, *settings: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._config = folder / f"mosquitto-{self.port}.conf"
        self._log = folder / f"mosquitto-{self.port}.log"
        user = getpass.getuser()  # as root it would become another, who may not read our files
        lines = (f"user {user}", f"listener {self.port} 127.0.0.1", "set_tcp_nodelay true", "persistence false")
        anonymous = () if any(line.startswith("allow_anonymous") for line in settings) else ("allow_anonymous true",)
        self._config.write_text("\n".join([*lines, *anonymous, *settings]) + "\n")

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([program(), "-c", str(self._config)], stdout=log, stderr=log)
        give_up_s = time.monotonic() + READY_S
        while time.monotonic() < give_up_s:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.01)
        self.kill()
        raise AssertionError(f"mosquitto did not come up: {self._log.read_text()}")

    def kill(self) -> None:
        """As a machine that loses its power."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop_answering(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(folder: Path, *settings: str) -> Iterator[Mosquitto]:
    broker = Mosquitto(folder, *settings)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()
