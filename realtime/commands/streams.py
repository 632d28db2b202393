"""Text that a command reads, and audio that it writes."""

from __future__ import annotations

import argparse
import asyncio
import codecs
import os
import shutil
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Protocol

from sessions.audio.formats.registry import file_trailer, finalize_header, stream_encoder
from sessions.audio.pcm import s16le_to_pcm
from sessions.audio.wav import BYTES_PER_SAMPLE, HEADER_BYTES
from sessions.config import AudioFormat, Encoding

READ_BYTES = 4_096


async def arriving_text(descriptor: int) -> AsyncIterator[str]:
    """Yield UTF-8 text as soon as it can be read. What is no UTF-8 becomes U+FFFD.

    The thread that reads is a daemon: nothing waits for input that never comes.
    """
    pieces: asyncio.Queue[bytes] = asyncio.Queue()
    arguments = (descriptor, asyncio.get_running_loop(), pieces)
    threading.Thread(target=_read, args=arguments, name="voicewire input", daemon=True).start()
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while piece := await pieces.get():
        if text := decoder.decode(piece):
            yield text
    if rest := decoder.decode(b"", final=True):
        yield rest


def _read(descriptor: int, loop: asyncio.AbstractEventLoop, pieces: asyncio.Queue[bytes]) -> None:
    piece = b"..."
    while piece and not loop.is_closed():
        try:
            piece = os.read(descriptor, READ_BYTES)
        except OSError:  # the terminal is gone
            piece = b""
        try:
            loop.call_soon_threadsafe(pieces.put_nowait, piece)
        except RuntimeError:  # the loop is closed
            return


# Program -> arguments that make it play from standard input.
PLAYERS = {
    "aplay": "-q -t raw -f S16_LE -r {rate} -c 1 -",
    "paplay": "--raw --format=s16le --rate={rate} --channels=1",
    "ffplay": "-nodisp -autoexit -loglevel error -f s16le -ar {rate} -i -",
}
# Formats by the suffix of a file.
FORMATS = {
    ".wav": AudioFormat(encoding=Encoding.WAV),
    ".mp3": AudioFormat(encoding=Encoding.MP3, bitrate=64_000),
    ".opus": AudioFormat(encoding=Encoding.OGG_OPUS),
    ".flac": AudioFormat(encoding=Encoding.FLAC),
    ".pcm": AudioFormat(encoding=Encoding.PCM_S16LE),
}
STANDARD_OUTPUT = Path("-")


def output_path(name: str) -> Path:
    """Parse the value of ``-o``. Raises ``ArgumentTypeError`` for a suffix without a format."""
    path = Path(name)
    if path != STANDARD_OUTPUT and path.suffix.lower() not in FORMATS:
        known = ", ".join(FORMATS)
        raise argparse.ArgumentTypeError(f"{name}: the suffix must be one of {known}, is {path.suffix!r}")
    return path


class Output(Protocol):
    async def write(self, pcm: bytes) -> None: ...

    async def finish(self) -> None:
        """End the audio after all of it was written."""
        ...

    async def abort(self) -> None:
        """Stop: a player falls silent, a file keeps the audio so far."""
        ...


def find_player() -> str | None:
    return next((path for name in PLAYERS if (path := shutil.which(name))), None)


async def open_output(path: Path | None, sample_rate: int, plays: bool = False) -> Output:
    """Open the output of the speech: the file, standard output for ``-``, or a player; with ``plays`` both."""
    if path is not None and not plays:
        return _open_file(path, sample_rate)
    player = await AudioPlayer.start(find_player() or next(iter(PLAYERS)), sample_rate)
    return player if path is None else BothOutputs(_open_file(path, sample_rate), player)


def _open_file(path: Path, sample_rate: int) -> Output:
    return StandardOutput(sample_rate) if path == STANDARD_OUTPUT else AudioFile(path, sample_rate)


class BothOutputs:
    """Writes to a file, then to a player. A file is whole even if the player ends early."""

    def __init__(self, file: Output, player: Output) -> None:
        self._file, self._player = file, player

    async def write(self, pcm: bytes) -> None:
        await self._file.write(pcm)
        await self._player.write(pcm)

    async def finish(self) -> None:
        await self._file.finish()
        await self._player.finish()

    async def abort(self) -> None:
        await self._file.abort()
        await self._player.abort()


class AudioFile:
    """Writes a file in the format of its suffix.

    Begins with the first speech: without any there is no file, and one that was there stays as it is. The length in a
    header is right once the file is closed.
    """

    def __init__(self, path: Path, sample_rate: int) -> None:
        self._path = path
        self._format = replace(FORMATS[path.suffix.lower()], sample_rate=sample_rate)
        self._encoder = stream_encoder(self._format)
        self._num_samples = 0
        self._file: BinaryIO | None = None

    async def write(self, pcm: bytes) -> None:
        if self._file is None:
            self._file = self._path.open("w+b")
        self._file.write(self._encoder.push(s16le_to_pcm(pcm)))
        self._num_samples += len(pcm) // BYTES_PER_SAMPLE

    async def finish(self) -> None:
        if self._file is None:
            return
        with self._file as file:
            file.write(self._encoder.finish() + file_trailer(self._format))
            file.seek(0)
            header = finalize_header(file.read(HEADER_BYTES), self._format, self._num_samples)
            file.seek(0)
            file.write(header)

    async def abort(self) -> None:
        if self._file is not None and not self._file.closed:
            await self.finish()


class StandardOutput:
    """Writes WAV whose header leaves the length open, as the speech arrives."""

    def __init__(self, sample_rate: int) -> None:
        self._encoder = stream_encoder(replace(FORMATS[".wav"], sample_rate=sample_rate))
        self._file = os.fdopen(os.dup(sys.stdout.fileno()), "wb")

    async def write(self, pcm: bytes) -> None:
        # In a thread: a slow reader must not block the event loop, which answers the server and Ctrl-C.
        await asyncio.to_thread(self._write, self._encoder.push(s16le_to_pcm(pcm)))

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()

    async def finish(self) -> None:
        self._file.close()

    async def abort(self) -> None:
        self._file.close()


class AudioPlayer:
    """Made by ``AudioPlayer.start``."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        self._process = process
        self._stdin = process.stdin

    @classmethod
    async def start(cls, path: str, sample_rate: int) -> AudioPlayer:
        arguments = PLAYERS[Path(path).name].format(rate=sample_rate).split()
        # in a group of its own, so that Ctrl-C does not reach the player
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
