"""A server with the fake engine in a process of its own, for tests that are not coroutines."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple


class ServerProcess(NamedTuple):
    process: subprocess.Popen[bytes]
    url: str


def server_command(script: dict[str, object], flags: dict[str, object]) -> list[str]:
    """``flags`` are settings, with two underscores for the dot; the process prints its port."""
    settings = {"listen.port": 0} | {name.replace("__", "."): value for name, value in flags.items()}
    return [sys.executable, "-m", "tests.realtime.fake_server", json.dumps(settings), json.dumps(script)]


@contextmanager
def server(script: dict[str, object] | None = None, **flags: object) -> Iterator[ServerProcess]:
    command = server_command(script or {}, flags)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield ServerProcess(process, f"ws://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.kill()


def wire_address(announced: IO[bytes], wanted: str = "wire") -> str:
    """What `voicewire serve` prints on its line for the wire, or on another."""
    for line in announced:
        name, address = line.decode().split()
        if name == wanted:
            return address
    raise AssertionError("the server ended before it was ready")
