"""A server with the fake engine in a process of its own, for tests that are not coroutines."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple

from tests.fork_server import ForkedProcess, fork_server

FAKE_SERVER_MODULE, FAKE_GATEWAY_MODULE = "tests.realtime.fake_server", "tests.cluster.fake_gateway"


class ServerProcess(NamedTuple):
    process: ForkedProcess | subprocess.Popen[bytes]
    url: str


def start_fake(module: str, *arguments: str, **how: object) -> ForkedProcess:
    """Start a server with the fake engine; ``how`` is that of ``ForkServer.start``."""
    return fork_server(FAKE_SERVER_MODULE, FAKE_GATEWAY_MODULE).start(module, *arguments, stdout=subprocess.PIPE, **how)


@contextmanager
def server(
    script: dict[str, object] | None = None, stderr: int = subprocess.DEVNULL, **flags: object
) -> Iterator[ServerProcess]:
    """``flags`` are settings, with two underscores for the dot."""
    settings = {"listen.port": 0} | {name.replace("__", "."): value for name, value in flags.items()}
    process = start_fake(FAKE_SERVER_MODULE, json.dumps(settings), json.dumps(script or {}), stderr=stderr)
    try:
        yield ServerProcess(process, f"ws://127.0.0.1:{int(process.stdout.readline())}")
    finally:
        process.kill()
        process.close()


def wire_address(announced: IO[bytes], wanted: str = "wire") -> str:
    """What `voicewire serve` prints on its line for the wire, or on another."""
    for line in announced:
        name, address = line.decode().split()
        if name == wanted:
            return address
    raise AssertionError("the server ended before it was ready")
