"""The asyncio side: implements ``engine.api`` over a loop in a thread. Imports torch only when it starts."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine.api import (
    CheckpointReport,
    ClonedVoice,
    EngineDead,
    EngineInfo,
    EngineStats,
    InvalidRequest,
    ReferenceAudio,
    SpeechEngine,
    SpeechRequest,
)
from engine.config import EngineConfig
from engine.encoding import VoiceEncodingThread
from engine.ipc import Command, PrefetchVoice
from engine.runtime.queue_limits import QueueLimits
from engine.runtime.request import Emitted
from engine.streams import EngineStream, StreamTable
from engine.validation import check_request, check_sample

if TYPE_CHECKING:
    from engine.load import LoadedCheckpoint
    from engine.loop import EngineLoop

log = logging.getLogger(__name__)

RESTART_PAUSE_S = 1.0
# There a step costs much the same for one row as for some, and a frame lasts so long.
CPU_LEAD_TICK_S = 0.08
# There it has stock in hand when the server, on the same cores, has packets that are due.
CPU_NICENESS = 5
FIRST_GPU = Path("/dev/nvidia0")
EMBEDDED_VOICE = Path(__file__).parent / "voices" / "embedded"


class LocalEngine:
    """``load`` runs once, off the event loop; each loop gets an engine made of it.

    When the loop dies, every request fails with ``engine_dead`` at once and a fresh loop starts on the same weights.
    """

    def __init__(
        self,
        load: Callable[[], LoadedCheckpoint],
        config: EngineConfig,
    ) -> None:
        self._load, self._config, self._queue_limits = load, config, QueueLimits.from_config(config)
        self._loaded: LoadedCheckpoint | None = None
        self._encoding: VoiceEncodingThread | None = None
        self._loop: EngineLoop | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._asyncio_loop: asyncio.AbstractEventLoop | None = None
        self._streams = StreamTable(self._send)
        self._closed = False
        self.num_restarts = 0

    @property
    def info(self) -> EngineInfo:
        if self._loaded is None:
            raise EngineDead("the engine has not started")
        return self._loaded.info

    @property
    def is_alive(self) -> bool:
        return self._loop is not None

    async def start(self) -> None:
        self._asyncio_loop = asyncio.get_running_loop()
        self._loaded = await asyncio.to_thread(self._load)
        if self._loaded.encode_voice is not None:
            self._encoding = VoiceEncodingThread(self._loaded.encode_voice)
        await self._start_loop()

    async def _start_loop(self) -> None:
        from engine.loop import EngineLoop

        assert self._loaded is not None
        loop = EngineLoop(self._loaded.make_engine, self._deliver, self._on_loop_exit)
        try:
            await asyncio.to_thread(loop.start)
        except asyncio.CancelledError:
            loop.stop()
            raise
        self._loop = loop

    def submit(self, request: SpeechRequest, wake: Callable[[], None] | None = None) -> EngineStream:
        if self._loop is None:
            raise EngineDead("the engine loop is not running")
        check_request(request, self.info, self._config.max_text_chars)
        return self._streams.submit(request, self._queue_limits, wake)

    async def encode_voice(self, sample: ReferenceAudio) -> ClonedVoice:
        check_sample(sample, self.info)
        if self._loop is None or self._encoding is None:
            raise EngineDead("the engine loop is not running")
        try:
            return await asyncio.wrap_future(self._encoding.submit(sample))
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not self._closed or (caller is not None and caller.cancelling()):
                raise
            raise EngineDead("the engine was closed") from None

    def prefetch_voices(self, voices: Sequence[str]) -> None:
        known = {voice.name.lower() for voice in self.info.voices}
        for voice in voices:
            if voice.lower() in known:
                self._send(PrefetchVoice(voice))

    def stats(self) -> EngineStats:
        if self._loop is None:
            raise EngineDead("the engine loop is not running")
        return self._loop.stats()

    async def aclose(self) -> None:
        self._closed = True
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait([self._restarting])
        loop, self._loop = self._loop, None
        closing = self._streams.cancel_all()
        if loop is not None:
            loop.stop()
            await asyncio.to_thread(loop.join)
        if self._encoding is not None:
            await asyncio.to_thread(self._encoding.close)
        for stream in closing:
            stream.mark_released()

    def _send(self, command: Command) -> None:
        if self._loop is not None:
            self._loop.send(command)

    def _deliver(self, events: list[Emitted]) -> None:
        """Called on the engine's thread."""
        assert self._asyncio_loop is not None
        self._asyncio_loop.call_soon_threadsafe(self._streams.dispatch, events)

    def _on_loop_exit(self, error: BaseException) -> None:
        """Called on the engine's thread."""
        assert self._asyncio_loop is not None
        self._asyncio_loop.call_soon_threadsafe(self._replace_loop, f"{type(error).__name__}: {error}")

    def _replace_loop(self, cause: str) -> None:
        if self._loop is None or self._closed:
            return
        self._loop = None
        self._streams.fail_all(cause)
        self.num_restarts += 1
        self._restarting = asyncio.create_task(self._restart(), name="engine restart")

    async def _restart(self) -> None:
        while True:
            try:
                await self._start_loop()
            except Exception:
                log.exception("engine restart failed")
                await asyncio.sleep(RESTART_PAUSE_S)
            else:
                return


def create_engine(
    model: Path | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    process: bool | None = None,
    **settings: Any,
) -> SpeechEngine:
    """An engine over the checkpoint folder ``model``, a model of the hub by OWNER/NAME[@REVISION], or the embedded
    voice; call ``start`` to load it.

    ``device``: auto, cpu, cuda or cuda:N. ``dtype``: auto (fp32 on CPU, bf16 on CUDA), float32 or bfloat16.
    ``process``: whether the loop gets a process of its own; by default on CUDA, where a busy Python thread beside it
    would cost milliseconds of lock waits per step. ``settings`` are fields of ``EngineConfig``. Raises
    ``InvalidRequest`` for a setting that is unknown or out of range.
    """
    if _cuda_is_visible(device) if process is None else process:
        return share_engine(model, device=device, dtype=dtype, **settings)[0]
    config = _engine_config(settings, device)
    folder = model or EMBEDDED_VOICE

    def load() -> LoadedCheckpoint:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        from engine.load import load_engine

        return load_engine(folder, config, device, dtype, is_embedded=model is None)

    return LocalEngine(load, config)


def share_engine(
    model: Path | None = None, *, device: str = "auto", dtype: str = "auto", **settings: Any
) -> tuple[SpeechEngine, Path]:
    """As ``create_engine``, always with a process of its own; also gives the address that ``connect_engine`` takes."""
    from engine.remote_engine import EngineProcess, RemoteEngine

    config = _engine_config(settings, device)
    child = EngineProcess(model or EMBEDDED_VOICE, config, device, dtype, is_embedded=model is None)
    return RemoteEngine(child.socket, child), child.socket


def connect_engine(address: Path) -> SpeechEngine:
    """The engine that another process keeps running; call ``start`` to connect."""
    from engine.remote_engine import RemoteEngine

    return RemoteEngine(address)


def inspect_checkpoint(model: Path) -> CheckpointReport:
    """What a folder holds, or a model of the hub: every file, key and tensor checked, no weight read.

    Raises ``CheckpointError``.
    """
    from engine.models.registry import inspect_model
    from engine.weights.hub import resolve_folder

    return inspect_model(resolve_folder(model))


def _engine_config(settings: dict[str, Any], device: str) -> EngineConfig:
    unknown = sorted(set(settings) - set(EngineConfig.__struct_fields__))
    if unknown:
        raise InvalidRequest(f"unknown engine setting {unknown[0]!r}", unknown[0])
    usual = {} if _cuda_is_visible(device) else {"lead_step_interval_s": CPU_LEAD_TICK_S, "process_nice": CPU_NICENESS}
    try:
        return msgspec.convert(usual | settings, EngineConfig)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"engine settings: {error}") from None


def _cuda_is_visible(device: str) -> bool:
    """As far as can be told before PyTorch is loaded."""
    return device.startswith("cuda") or (device == "auto" and FIRST_GPU.exists() and not _all_gpus_are_hidden())


def _all_gpus_are_hidden() -> bool:
    """CUDA sees the GPUs of the list that come before the first name which is none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    first = None if visible is None else visible.partition(",")[0].strip()
    return first is not None and not (first.isdecimal() or first.startswith(("GPU-", "MIG-")))
