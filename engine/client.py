"""The asyncio side: implements ``engine.api`` over a loop in a thread. Imports torch only when it starts."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.api import (
    CheckpointError,
    EngineDead,
    EngineInfo,
    EngineOverloaded,
    EngineStats,
    Finished,
    FinishReason,
    InvalidRequest,
    SpeechChunk,
    SpeechEvent,
    SpeechRequest,
)
from engine.commands import Cancel, Command, EndInput, Prefetch, PushText, ReportPlayback, Submit
from engine.config import EngineConfig
from engine.validation import check_request

if TYPE_CHECKING:
    from engine.engine import Emitted, Engine
    from engine.loop import EngineLoop

EMBEDDED_VOICE = Path(__file__).parent / "voices" / "embedded"
OVERLOAD_RETRY_MS = 1000


class LocalStream:
    """One request; its events arrive on the event loop and are fenced here the moment it is cancelled."""

    def __init__(self, request_id: str, epoch: int, send: Callable[[Command], None]) -> None:
        self._request_id = request_id
        self._epoch = epoch
        self._send = send
        self._events: deque[SpeechEvent] = deque()
        self._arrived = asyncio.Event()
        self._released = asyncio.Event()
        self._num_samples = 0
        self._closed = False
        self._ended = False

    @property
    def request_id(self) -> str:
        return self._request_id

    def push_text(self, text: str) -> None:
        if self._closed and not self._ended:
            raise InvalidRequest("text cannot follow the end of the text", "text")
        if not self._ended:
            self._send(PushText(self._epoch, text))

    def end_input(self) -> None:
        if not self._closed and not self._ended:
            self._send(EndInput(self._epoch))
        self._closed = True

    def report_playback(self, played_samples: int) -> None:
        if not self._ended:
            self._send(ReportPlayback(self._epoch, played_samples))

    def cancel(self) -> None:
        if self._ended:
            return
        self._events.clear()
        self.take(Finished(self._request_id, FinishReason.CANCELLED, num_samples=self._num_samples))
        self._send(Cancel(self._epoch))

    async def released(self) -> None:
        await self._released.wait()

    async def __aiter__(self) -> AsyncIterator[SpeechEvent]:
        while True:
            while not self._events:
                self._arrived.clear()
                await self._arrived.wait()
            event = self._events.popleft()
            yield event
            if isinstance(event, Finished):
                return

    def take(self, event: SpeechEvent) -> None:
        """An event for the reader; whatever follows the terminal one is dropped."""
        if self._ended:
            return
        if isinstance(event, SpeechChunk):
            self._num_samples = event.start_sample + len(event.pcm)
        self._ended = isinstance(event, Finished)
        self._events.append(event)
        self._arrived.set()

    def release(self) -> None:
        self._released.set()


class LocalEngine:
    """``load`` runs once, off the event loop, and makes what ``make_engine`` builds each loop from.

    When the loop dies, every request fails with ``engine_dead`` at once and a fresh loop starts on the same weights.
    """

    def __init__(
        self,
        load: Callable[[], tuple[EngineInfo, Callable[[], Engine]]],
        config: EngineConfig,
    ) -> None:
        self._load, self._config = load, config
        self._info: EngineInfo | None = None
        self._make_engine: Callable[[], Engine] | None = None
        self._loop: EngineLoop | None = None
        self._asyncio_loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[int, LocalStream] = {}
        self._epochs = itertools.count(1)
        self.num_restarts = 0

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineDead("the engine has not started")
        return self._info

    @property
    def alive(self) -> bool:
        return self._loop is not None

    async def start(self) -> None:
        self._asyncio_loop = asyncio.get_running_loop()
        self._info, self._make_engine = await asyncio.to_thread(self._load)
        self._start_loop()

    def _start_loop(self) -> None:
        from engine.loop import EngineLoop

        assert self._make_engine is not None
        self._loop = EngineLoop(self._make_engine(), self._deliver, self._died)
        self._loop.start()

    def submit(self, request: SpeechRequest) -> LocalStream:
        if self._loop is None:
            raise EngineDead("the engine loop is not running")
        check_request(request, self.info, self._config.max_text_chars)
        capacity = self._config.max_requests + self._config.max_waiting
        if len(self._streams) >= capacity:
            raise EngineOverloaded(f"{len(self._streams)} requests are active; the limit is {capacity}", OVERLOAD_RETRY_MS)
        epoch = next(self._epochs)
        stream = LocalStream(request.request_id, epoch, self._send)
        if request.text_closed:
            stream.end_input()
        self._streams[epoch] = stream
        self._send(Submit(epoch, request))
        return stream

    def prefetch_voices(self, voices: Sequence[str]) -> None:
        known = {voice.name.lower() for voice in self.info.voices}
        for voice in voices:
            if voice.lower() in known:
                self._send(Prefetch(voice))

    def stats(self) -> EngineStats:
        if self._loop is None:
            raise EngineDead("the engine loop is not running")
        return self._loop.stats()

    async def aclose(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.stop()
            await asyncio.to_thread(loop.join)
        self._fail_all("the engine was closed")

    def _send(self, command: Command) -> None:
        if self._loop is not None:
            self._loop.send(command)

    def _deliver(self, events: list[Emitted]) -> None:
        """Called on the engine's thread."""
        assert self._asyncio_loop is not None
        self._asyncio_loop.call_soon_threadsafe(self._dispatch, events)

    def _dispatch(self, events: list[Emitted]) -> None:
        from engine.engine import Released

        for epoch, event in events:
            stream = self._streams.get(epoch)
            if stream is None:
                continue
            if isinstance(event, Released):
                del self._streams[epoch]
                stream.release()
            else:
                stream.take(event)

    def _died(self, error: BaseException) -> None:
        """Called on the engine's thread."""
        assert self._asyncio_loop is not None
        self._asyncio_loop.call_soon_threadsafe(self._restart, f"{type(error).__name__}: {error}")

    def _restart(self, message: str) -> None:
        if self._loop is None:
            return
        self._loop = None
        self._fail_all(message)
        self.num_restarts += 1
        self._start_loop()

    def _fail_all(self, message: str) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.take(Finished(stream.request_id, FinishReason.ERROR, code=EngineDead.code, message=message))
            stream.release()


def create_engine(model: Path | None = None, *, device: str = "auto", dtype: str = "auto", **settings: Any) -> LocalEngine:
    """An engine over the checkpoint folder ``model``, or the embedded voice; call ``start`` to load it.

    ``device``: auto, cpu, cuda or cuda:N. ``dtype``: auto (fp32 on CPU, bf16 on CUDA), float32 or bfloat16.
    ``settings`` are fields of ``EngineConfig``. Raises ``InvalidRequest`` for a setting out of range.
    """
    unknown = sorted(set(settings) - set(EngineConfig.__struct_fields__))
    if unknown:
        raise InvalidRequest(f"unknown engine setting {unknown[0]!r}", unknown[0])
    config = EngineConfig(**settings)
    folder = model or EMBEDDED_VOICE

    def load() -> tuple[EngineInfo, Callable[[], Engine]]:
        if not folder.is_dir():
            raise CheckpointError(f"{folder} is no folder; give a Qwen3-TTS checkpoint folder")
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        from engine.load import load_engine

        return load_engine(folder, config, device, dtype, is_embedded=model is None)

    return LocalEngine(load, config)
