"""The engine's child process: its command, its start and its end."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from engine.address import EngineAddress
from engine.api import CheckpointError
from engine.config import EngineConfig
from engine.endpoint import Connection, EngineSocket
from engine.ipc import PROGRESS, READY
from engine.process import RunDirectory, child_environment

log = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT_S = 10.0


def host_command(settings: Mapping[str, Any]) -> list[str]:
    """``-P`` keeps the current folder, and whatever lies in it, out of the imports."""
    return [sys.executable, "-P", "-m", "engine.host", json.dumps(settings)]


class EngineProcess(EngineSocket):
    """The child that runs ``engine.host``; it ends when this end of its standard input closes."""

    def __init__(self, folder: Path, config: EngineConfig, device: str, dtype: str, is_embedded: bool) -> None:
        self._folder = RunDirectory()
        self.socket = self._folder.path / "engine.sock"
        super().__init__(EngineAddress(str(self.socket)))
        self.settings = {
            "socket": str(self.socket),
            "folder": str(folder),
            "config": msgspec.to_builtins(config),
            "device": device,
            "dtype": dtype,
            "is_embedded": is_embedded,
        }
        self._process: asyncio.subprocess.Process | None = None

    @property
    def command(self) -> list[str]:
        return host_command(self.settings)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def connect(self) -> Connection:
        await self.start()
        return await super().connect()

    async def start(self) -> None:
        """Returns once the checkpoint is loaded and the socket is open; one that still runs is ended first.

        Raises ``CheckpointError`` when it fails.
        """
        await self._end()
        self._folder.make()
        self.socket.unlink(missing_ok=True)
        self._process = await asyncio.create_subprocess_exec(
            *self.command,
            env=child_environment(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout
        answer = await self._read_line(self._process.stdout)
        while answer.startswith(PROGRESS):
            log.info("%s", answer.removeprefix(PROGRESS))
            answer = await self._read_line(self._process.stdout)
        if answer != READY:
            raise CheckpointError(answer or "the engine process ended before it was ready")

    @staticmethod
    async def _read_line(stdout: asyncio.StreamReader) -> str:
        return (await stdout.readline()).decode().strip()

    async def stop(self) -> None:
        await self._end()
        self._folder.remove()

    async def _end(self) -> None:
        """It ends by itself when its standard input closes; by force when that takes too long."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin
        process.stdin.close()
        try:
            # Not ``wait_for``: it drops a cancellation that comes with the end of the process.
            async with asyncio.timeout(SHUTDOWN_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
