"""Where a command's speech goes: a WAV file, or whatever player the machine has. Mono 16-bit PCM."""

from __future__ import annotations

import asyncio
import shutil
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import BinaryIO, Protocol

from sessions.audio.wav import BYTES_PER_SAMPLE, wav_header

PLAYERS = {
    "aplay": "-q -t raw -f S16_LE -r {rate} -c 1 -",
    "paplay": "--raw --format=s16le --rate={rate} --channels=1",
    "ffplay": "-nodisp -autoexit -loglevel error -f s16le -ar {rate} -i -",
}
"""Program -> arguments that make it play from standard input."""


class Output(Protocol):
    async def write(self, pcm: bytes) -> None: ...

    async def finish(self) -> None:
        """All of the speech has been written."""
        ...

    async def abort(self) -> None:
        """No more will come; a player falls silent, a file keeps what it has."""
        ...


def find_player() -> str | None:
    return next((path for name in PLAYERS if (path := shutil.which(name))), None)


class WavFile:
    """Begins with the first speech: without any there is no file, and one that was there stays as it is.

    Readable at any time; its length is right once it is closed.
    """

    def __init__(self, path: Path, sample_rate: int) -> None:
        self._path = path
        self._sample_rate = sample_rate
        self._num_samples = 0
        self._file: BinaryIO | None = None

    async def write(self, pcm: bytes) -> None:
        if self._file is None:
            self._file = self._path.open("wb")
            self._file.write(wav_header(self._sample_rate))
        self._file.write(pcm)
        self._num_samples += len(pcm) // BYTES_PER_SAMPLE

    async def finish(self) -> None:
        if self._file is None:
            return
        with self._file:
            self._file.seek(0)
            self._file.write(wav_header(self._sample_rate, self._num_samples))

    async def abort(self) -> None:
        if self._file is not None and not self._file.closed:
            await self.finish()


class Player:
    """Made by ``Player.start``."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        self._process = process
        self._stdin = process.stdin

    @classmethod
    async def start(cls, path: str, sample_rate: int) -> Player:
        arguments = PLAYERS[Path(path).name].format(rate=sample_rate).split()
        # in a group of its own, so that Ctrl-C reaches us alone
        return cls(await asyncio.create_subprocess_exec(path, *arguments, stdin=PIPE, start_new_session=True))

    async def write(self, pcm: bytes) -> None:
        self._stdin.write(pcm)
        await self._stdin.drain()

    async def finish(self) -> None:
        self._stdin.close()
        if status := await self._process.wait():
            raise OSError(f"the player ended with status {status}")

    async def abort(self) -> None:
        self._stdin.close()
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()
