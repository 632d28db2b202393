"""``engine.api`` over a connection to an engine: on a thread, in a child process, or kept running by another process.

When the connection breaks, the client connects again, and its requests go on where they were. They fail with
``engine_dead`` if there is no engine within ``RESUME_TIMEOUT_S``, or if it dies once more before their next audio.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from engine.api import (
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
from engine.errors import OVERLOAD_RETRY_MS, ErrorInfo
from engine.ipc import (
    LENGTH,
    CancelEncodeVoice,
    CancelRequest,
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
from engine.streams import EngineStream, StreamTable
from engine.validation import check_sample

log = logging.getLogger(__name__)

# Doubled with each attempt that fails.
RECONNECT_DELAY_S = 0.05
MAX_RECONNECT_DELAY_S = 1.0
# Listeners of requests without an engine have long run out of audio.
RESUME_TIMEOUT_S = 30.0
# A step of a thousand rows is many small reads otherwise.
READ_AHEAD_BYTES = 4 * 2**20


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class EngineEndpoint(Protocol):
    """Transport to an engine."""

    # Why requests failed when the connection broke.
    end_reason: str

    async def connect(self) -> Connection:
        """Start the engine again if this endpoint owns it, and connect to it."""
        ...

    async def stop(self) -> None:
        """End what ``connect`` started."""
        ...

    def current_stats(self) -> EngineStats | None:
        """The engine's statistics now, or ``None`` where only its reports are known."""
        ...


class UnixSocket:
    """An engine that another process keeps running."""

    end_reason = "the engine process ended"

    def __init__(self, path: Path) -> None:
        self.socket = path

    async def connect(self) -> Connection:
        return await asyncio.open_unix_connection(str(self.socket), limit=READ_AHEAD_BYTES)

    async def stop(self) -> None:
        """Leave the engine running."""

    def current_stats(self) -> EngineStats | None:
        return None


class EngineClient:
    """One client of the engine behind ``endpoint``."""

    def __init__(self, endpoint: EngineEndpoint) -> None:
        self._endpoint = endpoint
        self._streams = StreamTable(self._send)
        self._encodings: dict[int, asyncio.Future[ClonedVoice]] = {}
        self._numbers = itertools.count(1)
        self._hello: HelloMessage | None = None
        self._stats: EngineStats | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._keeper: asyncio.Task[None] | None = None
        # Runs while requests wait for the engine to come back.
        self._resume_timer: asyncio.TimerHandle | None = None
        self.num_restarts = 0
        self._num_submitted_since_stats = 0
        # Called after the connection broke and after it came back.
        self.on_connection_change: Callable[[], None] = lambda: None

    @property
    def info(self) -> EngineInfo:
        if self._hello is None:
            raise EngineDead("the engine has not started")
        return self._hello.info

    @property
    def is_alive(self) -> bool:
        return self._writer is not None

    @property
    def num_free_places(self) -> int:
        """Decoder slots that no request holds or waits for, by the last report and what was submitted since; before
        a report, how many requests this client has, negative."""
        if self._stats is None:
            return -len(self._streams)
        num_waiting = self._stats.num_waiting + self._stats.num_waiting_burst
        return self._stats.slots_free - num_waiting - self._num_submitted_since_stats

    async def start(self) -> None:
        try:
            reader = await self._connect()
        except BaseException:
            await self._endpoint.stop()
            raise
        self._keeper = asyncio.create_task(self._run_connection(reader), name="engine connection")

    async def _connect(self) -> asyncio.StreamReader:
        reader, writer = await self._endpoint.connect()
        try:
            hello = decode_message(await read_message(reader))
            if not isinstance(hello, HelloMessage):
                raise EngineDead(f"the engine began with {type(hello).__name__}")
        except BaseException:
            writer.close()
            raise
        self._hello, self._writer = hello, writer
        return reader

    async def _run_connection(self, reader: asyncio.StreamReader) -> None:
        """Read until the connection breaks, come back, and go on with the requests."""
        while True:
            try:
                while True:
                    await self._dispatch(decode_message(await read_message(reader)), reader)
            except (OSError, asyncio.IncompleteReadError):
                self._on_disconnect()
            except Exception:
                log.exception("engine sent an invalid message")
                self._on_disconnect()
            reader = await self._reconnect()
            self._resume_streams()

    def _on_disconnect(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = self._stats = None
        self._streams.interrupt(self._endpoint.end_reason)
        self._resume_timer = asyncio.get_running_loop().call_later(RESUME_TIMEOUT_S, self._end_resume)
        self._fail_encodings()
        self.on_connection_change()

    def _resume_streams(self) -> None:
        self._stop_resume_timer()
        if len(self._streams):
            log.warning("the engine is back: %d requests go on", len(self._streams))
        self._streams.resume(self.info.sample_rate)
        self.on_connection_change()

    def pop_stream(self) -> EngineStream | None:
        """Give up a request, so that another client can ``adopt`` it."""
        return self._streams.pop()

    def adopt(self, stream: EngineStream) -> None:
        """Go on with a request of another engine."""
        self._num_submitted_since_stats += 1
        self._streams.adopt(stream, self.info.sample_rate)

    def _end_resume(self) -> None:
        self._resume_timer = None
        self._streams.fail_all(self._endpoint.end_reason)

    def _stop_resume_timer(self) -> None:
        if self._resume_timer is not None:
            self._resume_timer.cancel()
            self._resume_timer = None

    def _fail_encodings(self) -> None:
        for future in self._encodings.values():
            if not future.done():
                future.set_exception(EngineDead(self._endpoint.end_reason))

    async def _reconnect(self) -> asyncio.StreamReader:
        delay_s = RECONNECT_DELAY_S
        while True:
            try:
                reader = await self._connect()
            except Exception as error:
                log.error("engine restart failed: %s: %s", type(error).__name__, error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, MAX_RECONNECT_DELAY_S)
            else:
                self.num_restarts += 1
                return reader

    async def _dispatch(self, message: Message, reader: asyncio.StreamReader) -> None:
        match message:
            case EventsMessage():
                self._streams.dispatch(unpack_events(message, await reader.readexactly(message.num_pcm_bytes)))
            case StatsMessage(stats):
                self._stats, self._num_submitted_since_stats = stats, 0
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
        continues_reply = request.segment > 0 and self._resume_timer is not None
        if self._writer is None and not continues_reply:
            raise EngineDead("the engine is not running")
        self._num_submitted_since_stats += 1
        return self._streams.submit(request, wake)

    async def encode_voice(self, sample: ReferenceAudio) -> ClonedVoice:
        check_sample(sample, self.info)
        if self._writer is None:
            raise EngineDead("the engine is not running")
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
        """From another process at most ``host.STATS_EVERY_S`` old."""
        if self._writer is None:
            raise EngineDead("the engine is not running")
        stats = self._endpoint.current_stats() or self._stats
        if stats is None:
            raise EngineDead("the engine has not reported yet")
        return stats

    async def aclose(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        self._stop_resume_timer()
        self._fail_encodings()
        closing = self._streams.cancel_all()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        await self._endpoint.stop()
        for stream in closing:
            stream.mark_released()

    def _send(self, command: Command) -> None:
        if self._writer is not None:
            self._writer.write(encode(command))
        elif isinstance(command, CancelRequest):
            self._streams.release(command.epoch)


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
