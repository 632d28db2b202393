"""Which clients are run, with which services and in which modes: each in an environment of its own.

``tests/sdk/run`` makes the environments. What a client prints and keeps of its turns is in ``clients/turns.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "clients"
ENVIRONMENTS = Path(os.environ.get("VOICEWIRE_SDK_ENVS", ROOT / ".sdk-envs"))
KEY = "a-key-of-enough-characters"
RUN_TIMEOUT_S = 150


# By name: its environment, its program, and the modes of each service. A client that needs TLS makes ``wss`` of every
# address; a service that is timed tells the times of words. Modes under ``needs_ffmpeg`` decode MP3 with FFmpeg.
CLIENTS: dict[str, Any] = json.loads((Path(__file__).parent / "clients.json").read_text())
TIMED_MODES = {"websocket", "flush", "cancel", "contexts", "timestamps", "timestamps_whole", "dialogue"}


class Run(NamedTuple):
    client: str
    service: str
    mode: str

    @property
    def is_timed(self) -> bool:
        """Whether it tells the times of words."""
        if self.client.startswith("vendor"):
            return self.mode in TIMED_MODES
        return CLIENTS[self.client]["services"][self.service]["timed"] and self.mode != "synthesize"

    def speak(self, url: str, **variables: str) -> dict[str, Any]:
        """What the client printed. ``url`` begins with ``http``; ``variables`` are put into its environment."""
        client = CLIENTS[self.client]
        if self.mode in client.get("needs_ffmpeg", []) and shutil.which("ffprobe") is None:
            pytest.skip(f"{self.client} decodes MP3 with FFmpeg, which is not installed")
        environment = existing_environment(client["environment"])
        if client["environment"] == "node":
            with node_folder(environment) as folder:
                return _printed(["node", Path(folder) / client["program"], *self._arguments(url)], variables)
        python = environment / "bin" / "python"
        return _printed([python, PROGRAMS / client["program"], *self._arguments(url)], variables)

    def _arguments(self, url: str) -> tuple[str, str, str]:
        return self.service, url, self.mode


def existing_environment(name: str) -> Path:
    """Its folder, or skip the test."""
    environment, missing = ENVIRONMENTS / name, ENVIRONMENTS / f"{name}.missing"
    if missing.exists():
        pytest.skip(missing.read_text().strip())
    if not environment.exists():
        pytest.skip(f"no environment {name}: tests/sdk/run makes it")
    if name == "node" and shutil.which("node") is None:
        pytest.skip("node is not installed")
    return environment


def node_folder(environment: Path) -> tempfile.TemporaryDirectory[str]:
    """The programs beside the packages, where node looks for them."""
    folder = tempfile.TemporaryDirectory(prefix="voicewire-sdk-")
    for program in PROGRAMS.glob("*.mjs"):
        shutil.copy(program, folder.name)
    (Path(folder.name) / "node_modules").symlink_to(environment / "node_modules")
    return folder


def all_runs(needs_tls: bool) -> list[Run]:
    return [
        Run(name, service, mode)
        for name, client in CLIENTS.items()
        if client["needs_tls"] == needs_tls
        for service, spoken in client["services"].items()
        for mode in spoken["modes"]
    ]


def _printed(command: list[str | Path], variables: dict[str, str]) -> dict[str, Any]:
    """The last line."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False, env=os.environ | variables
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]
