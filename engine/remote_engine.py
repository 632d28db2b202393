"""``engine.api`` over an engine in another process: one that this process starts and watches, or one that is there.

When the connection breaks, every request fails with ``engine_dead`` at once; a watched process is started again.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.api import (
    CheckpointError,
    ClonedVoice,
    EngineDead,
    EngineError,
    EngineInfo,
    EngineOverloaded,
    EngineStats,
    InvalidRequest,
    ReferenceAudio,
    SpeechRequest,
)
from engine.config import EngineConfig
from engine.errors import OVERLOAD_RETRY_MS, ErrorInfo
from engine.ipc import (
    LENGTH,
    PROGRESS,
    READY,
    CancelEncodeVoice,
    Command,
    EncodeVoice,
    EventsMessage,
    HelloMessage,
    Message,
    PrefetchVoice,
    StatsMessage,
    VoiceEncoded,
    decode_message,
    encode,
    unpack_events,
)
from engine.process import RunDirectory
from engine.streams import EngineStream, StreamTable
from engine.validation import check_request, check_sample

log = logging.getLogger(__name__)

RECONNECT_DELAY_S = 1.0
# A step of a thousand rows is many small reads otherwise.
READ_AHEAD_BYTES = 4 * 2**20
SHUTDOWN_TIMEOUT_S = 10.0


def host_command(settings: Mapping[str, Any]) -> list[str]:
    """``-P`` keeps the current folder, and whatever lies in it, out of the imports."""
    return [sys.executable, "-P", "-m", "engine.host", json.dumps(settings)]


def host_environment() -> dict[str, str]:
    """Command with this ``engine`` package first on the path, installed or in a source tree."""
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


class EngineProcess:
    """The child that runs ``engine.host``; it ends when this end of its standard input closes."""

    def __init__(self, folder: Path, config: EngineConfig, device: str, dtype: str, is_embedded: bool) -> None:
        self._folder = RunDirectory()
        self.socket = self._folder.path / "engine.sock"
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

    async def start(self) -> None:
        """Returns once the checkpoint is loaded and the socket is open; one that still runs is ended first.

        Raises ``CheckpointError`` when it fails.
        """
        await self._end()
        self._folder.make()
        self.socket.unlink(missing_ok=True)
        self._process = await asyncio.create_subprocess_exec(
            *self.command,
            env=host_environment(),
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
            await asyncio.wait_for(process.wait(), SHUTDOWN_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()


class RemoteEngine:
    """Give ``process`` to own the engine behind ``socket``, or none to share one that another process runs."""

    def __init__(self, socket: Path, process: EngineProcess | None = None) -> None:
        self._socket, self._process = socket, process
        self._streams = StreamTable(self._send)
        self._encodings: dict[int, asyncio.Future[ClonedVoice]] = {}
        self._numbers = itertools.count(1)
        self._hello: HelloMessage | None = None
        self._stats: EngineStats | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._keeper: asyncio.Task[None] | None = None
        self.num_restarts = 0

    @property
    def info(self) -> EngineInfo:
        if self._hello is None:
            raise EngineDead("the engine has not started")
        return self._hello.info

    @property
    def is_alive(self) -> bool:
        return self._writer is not None

    async def start(self) -> None:
        try:
            if self._process is not None:
                await self._process.start()
            reader = await self._connect()
        except BaseException:
            if self._process is not None:
                await self._process.stop()
            raise
        self._keeper = asyncio.create_task(self._run_connection(reader), name="engine connection")

    async def _connect(self) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_unix_connection(str(self._socket), limit=READ_AHEAD_BYTES)
        hello = decode_message(await read_message(reader))
        if not isinstance(hello, HelloMessage):
            raise EngineDead(f"the engine began with {type(hello).__name__}")
        self._hello, self._writer = hello, writer
        return reader

    async def _run_connection(self, reader: asyncio.StreamReader) -> None:
        """Read until the connection breaks, fail what was under way, and come back."""
        while True:
            try:
                while True:
                    await self._dispatch(decode_message(await read_message(reader)), reader)
            except (OSError, asyncio.IncompleteReadError):
                self._on_disconnect()
            except Exception:
                log.exception("engine process sent an invalid message")
                self._on_disconnect()
            reader = await self._reconnect()

    def _on_disconnect(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = self._stats = None
        self._streams.fail_all("the engine process ended")
        self._fail_encodings()

    def _fail_encodings(self) -> None:
        for future in self._encodings.values():
            if not future.done():
                future.set_exception(EngineDead("the engine process ended"))

    async def _reconnect(self) -> asyncio.StreamReader:
        while True:
            try:
                if self._process is not None:
                    await self._process.start()
                reader = await self._connect()
            except Exception as error:
                log.error("engine process restart failed: %s: %s", type(error).__name__, error)
                await asyncio.sleep(RECONNECT_DELAY_S)
            else:
                self.num_restarts += 1
                return reader

    async def _dispatch(self, message: Message, reader: asyncio.StreamReader) -> None:
        match message:
            case EventsMessage():
                self._streams.dispatch(unpack_events(message, await reader.readexactly(message.num_pcm_bytes)))
            case StatsMessage(stats):
                self._stats = stats
            case VoiceEncoded():
                self._resolve_encoding(message)

    def _resolve_encoding(self, answer: VoiceEncoded) -> None:
        future = self._encodings.get(answer.number)
        if future is None or future.done():
            return
        if answer.voice is not None:
            future.set_result(answer.voice)
        elif answer.error is not None:
            future.set_exception(encoding_failure(answer.error))

    def submit(self, request: SpeechRequest, wake: Callable[[], None] | None = None) -> EngineStream:
        if self._writer is None or self._hello is None:
            raise EngineDead("the engine process is not running")
        check_request(request, self.info, self._hello.max_text_chars)
        return self._streams.submit(request, self._hello.queue_limits, wake)

    async def encode_voice(self, sample: ReferenceAudio) -> ClonedVoice:
        check_sample(sample, self.info)
        if self._writer is None:
            raise EngineDead("the engine process is not running")
        number = next(self._numbers)
        future = self._encodings[number] = asyncio.get_running_loop().create_future()
        self._send(EncodeVoice(number, sample))
        try:
            return await future
        except asyncio.CancelledError:
            self._send(CancelEncodeVoice(number))
            raise
        finally:
            del self._encodings[number]

    def prefetch_voices(self, voices: Sequence[str]) -> None:
        known = {voice.name.lower() for voice in self.info.voices}
        for voice in voices:
            if voice.lower() in known:
                self._send(PrefetchVoice(voice))

    def stats(self) -> EngineStats:
        """At most ``host.STATS_EVERY_S`` old."""
        if self._stats is None:
            raise EngineDead("the engine process has not reported yet")
        return self._stats

    async def aclose(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        self._fail_encodings()
        closing = self._streams.cancel_all()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._process is not None:
            await self._process.stop()
        for stream in closing:
            stream.mark_released()

    def _send(self, command: Command) -> None:
        if self._writer is not None:
            self._writer.write(encode(command))


async def read_message(reader: asyncio.StreamReader) -> bytes:
    """One message. Raises ``IncompleteReadError`` at the end of the stream."""
    (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    return await reader.readexactly(size)


def encoding_failure(info: ErrorInfo) -> EngineError:
    match info.code:
        case EngineOverloaded.code:
            return EngineOverloaded(info.message, info.retry_after_ms or OVERLOAD_RETRY_MS)
        case InvalidRequest.code:
            return InvalidRequest(info.message, info.param)
        case _:
            return EngineError(info.message)
