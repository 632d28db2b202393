"""``engine.api`` over a connection to an engine: on a thread, in a child process, or kept running by another process.

When the connection breaks, the client connects again, and its requests go on where they were. They fail with
``engine_dead`` if there is no engine within ``RESUME_TIMEOUT_S``, or if it dies once more before their next audio.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence

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
from engine.endpoint import EngineEndpoint
from engine.errors import OVERLOAD_RETRY_MS, ErrorInfo
from engine.ipc import (
    LENGTH,
    MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    STATS_EVERY_S,
    CancelEncodeVoice,
    CancelRequest,
    Command,
    DrainMessage,
    EncodeVoice,
    EventsMessage,
    HelloMessage,
    IpcError,
    Message,
    PrefetchVoice,
    StatsMessage,
    VoiceEncoded,
    decode_message,
    encode,
    message_size,
    unpack_events,
)
from engine.streams import EngineStream, StreamTable
from engine.validation import check_sample

log = logging.getLogger(__name__)

# Doubled with each attempt that fails.
RECONNECT_DELAY_S = 0.05
MAX_RECONNECT_DELAY_S = 1.0
# Listeners of requests without an engine have long run out of audio; by default a session gives up then, too.
RESUME_TIMEOUT_S = 30.0
# Reports of an engine of another machine that may be missed before it counts as dead.
MAX_MISSED_REPORTS = 3
# Time for the first message of an engine.
HELLO_TIMEOUT_S = 5.0


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
        # Runs while the engine has to report.
        self._report_timer: asyncio.TimerHandle | None = None
        self._num_missed_reports = 0
        self._last_failure = ""
        # Runs while requests wait for the engine to come back.
        self._resume_timer: asyncio.TimerHandle | None = None
        self.num_restarts = 0
        self._num_submitted_since_stats = 0
        # Whether the engine has announced its end.
        self.is_draining = False
        # Whether it is to get no more requests, for another reason.
        self.is_leaving = False
        # Called after the connection broke, after it came back, and when the engine begins to drain.
        self.on_connection_change: Callable[[], None] = lambda: None
        # Raises an error for an engine that must not be used.
        self.check_hello: Callable[[HelloMessage], None] = lambda hello: None

    @property
    def info(self) -> EngineInfo:
        if self._hello is None:
            raise EngineDead("the engine has not started")
        return self._hello.info

    @property
    def is_alive(self) -> bool:
        return self._writer is not None

    @property
    def is_available(self) -> bool:
        """Return whether new requests may go to this engine."""
        return self.is_alive and not self.is_draining and not self.is_leaving

    @property
    def is_idle(self) -> bool:
        return not self._streams and not self._encodings

    @property
    def num_free_places(self) -> int:
        """Decoder slots that no request holds or waits for, by the last report and what was submitted since; before
        a report, how many requests this client has, negative."""
        if self._stats is None:
            return -len(self._streams)
        num_waiting = self._stats.num_waiting + self._stats.num_waiting_burst
        return self._stats.slots_free - num_waiting - self._num_submitted_since_stats

    async def start(self) -> None:
        """Connect; raises an error if that fails."""
        try:
            reader = await self._connect()
        except BaseException:
            await self._endpoint.stop()
            raise
        self._keeper = asyncio.create_task(self._run_connection(reader), name="engine connection")

    def open(self) -> None:
        """Connect as soon as the engine is there; ``on_connection_change`` tells when."""
        self._keeper = asyncio.create_task(self._run_connection(None), name="engine connection")

    async def _connect(self) -> asyncio.StreamReader:
        reader, writer = await self._endpoint.connect()
        try:
            self._hello = await self._read_hello(reader)
        except BaseException:
            writer.close()
            raise
        self._writer = writer
        if self._endpoint.is_remote:
            self._num_missed_reports = 0
            self._expect_report()
        return reader

    async def _read_hello(self, reader: asyncio.StreamReader) -> HelloMessage:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                hello = decode_message(await read_message(reader))
        except TimeoutError:
            raise EngineDead(f"the engine sent nothing within {HELLO_TIMEOUT_S:g} s") from None
        if not isinstance(hello, HelloMessage):
            raise EngineDead(f"the engine began with {type(hello).__name__}")
        if hello.version != PROTOCOL_VERSION:
            raise EngineDead(f"the engine has protocol version {hello.version}; this gateway has {PROTOCOL_VERSION}")
        self.check_hello(hello)
        return hello

    async def _run_connection(self, reader: asyncio.StreamReader | None) -> None:
        """Read until the connection breaks, come back, and go on with the requests."""
        while True:
            if reader is None:
                reader = await self._reconnect()
                self._resume_streams()
            try:
                while True:
                    await self._dispatch(decode_message(await read_message(reader)), reader)
                    self._num_missed_reports = 0
            except (OSError, asyncio.IncompleteReadError):
                self._on_disconnect()
            except Exception:
                log.exception("engine sent an invalid message")
                self._on_disconnect()
            reader = None

    def _expect_report(self) -> None:
        """Count intervals without a message. A blocked event loop counts none, because it reads none either."""
        if self._num_missed_reports >= MAX_MISSED_REPORTS and self._writer is not None:
            log.warning("the engine at %s is silent: its connection is closed", self._endpoint)
            self._writer.transport.abort()
            return
        self._num_missed_reports += 1
        self._report_timer = asyncio.get_running_loop().call_later(STATS_EVERY_S, self._expect_report)

    def _stop_report_timer(self) -> None:
        if self._report_timer is not None:
            self._report_timer.cancel()
            self._report_timer = None

    def _on_disconnect(self) -> None:
        self._stop_report_timer()
        if self._writer is not None:
            self._writer.close()
        self._drop_engine()
        self._streams.interrupt(self._endpoint.end_reason)
        self._resume_timer = asyncio.get_running_loop().call_later(RESUME_TIMEOUT_S, self._end_resume)
        self._fail_encodings()
        self.on_connection_change()

    def _drop_engine(self) -> None:
        self._writer = self._stats = None
        self.is_draining = False

    def _resume_streams(self) -> None:
        self._stop_resume_timer()
        if len(self._streams):
            log.warning("the engine is back: %d requests go on", len(self._streams))
        self._streams.resume(self.info.sample_rate)
        self.on_connection_change()

    def pop_stream(self) -> EngineStream | None:
        """Give up a request that has not ended, so that another client can ``adopt`` it."""
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
        """End the encodings that wait for an answer of this connection."""
        for future in self._encodings.values():
            if not future.done():
                future.set_exception(EngineDead(self._endpoint.end_reason))

    async def _reconnect(self) -> asyncio.StreamReader:
        delay_s, was_connected = RECONNECT_DELAY_S, self._hello is not None
        while True:
            try:
                reader = await self._connect()
            except Exception as error:
                self._log_failure(f"{type(error).__name__}: {error}")
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, MAX_RECONNECT_DELAY_S)
            else:
                self._last_failure = ""
                self.num_restarts += was_connected
                return reader

    def _log_failure(self, reason: str) -> None:
        """Log the same failure once."""
        level = logging.DEBUG if reason == self._last_failure else logging.ERROR
        self._last_failure = reason
        log.log(level, "no connection to the engine at %s: %s", self._endpoint, reason)

    async def _dispatch(self, message: Message, reader: asyncio.StreamReader) -> None:
        match message:
            case EventsMessage():
                if message.num_pcm_bytes > MAX_MESSAGE_BYTES:
                    raise IpcError(f"PCM has {message.num_pcm_bytes} bytes; the limit is {MAX_MESSAGE_BYTES}")
                self._streams.dispatch(unpack_events(message, await reader.readexactly(message.num_pcm_bytes)))
            case StatsMessage(stats):
                self._stats, self._num_submitted_since_stats = stats, 0
            case DrainMessage():
                self.is_draining = True
                self.on_connection_change()
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
        may_wait = request.continues_reply and self._resume_timer is not None
        if self._writer is None and not may_wait:
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
        """From another process at most ``ipc.STATS_EVERY_S`` old."""
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
        self._stop_report_timer()
        self._stop_resume_timer()
        self._fail_encodings()
        closing = self._streams.cancel_all()
        if self._writer is not None:
            self._writer.close()
        self._drop_engine()
        await self._endpoint.stop()
        for stream in closing:
            stream.mark_released()

    def _send(self, command: Command) -> None:
        if self._writer is not None:
            self._writer.write(encode(command))
        elif isinstance(command, CancelRequest):
            self._streams.release(command.epoch)


async def read_message(reader: asyncio.StreamReader) -> bytes:
    """One message. Raises ``IncompleteReadError`` at the end of the stream, ``IpcError`` if it is too long."""
    return await reader.readexactly(message_size(await reader.readexactly(LENGTH.size)))


def encoding_failure(info: ErrorInfo) -> EngineError:
    match info.code:
        case EngineOverloaded.code:
            return EngineOverloaded(info.message, info.retry_after_ms or OVERLOAD_RETRY_MS)
        case InvalidRequest.code:
            return InvalidRequest(info.message, info.param)
        case _:
            return EngineError(info.message)
