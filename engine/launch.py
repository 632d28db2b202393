"""Makes engines: on a thread, in a child process, or behind an address. Imports torch only when one starts."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine.address import EngineAddress, TlsFiles
from engine.api import (
    CheckpointReport,
    EngineInfo,
    EngineStats,
    InvalidRequest,
    SpeechEngine,
)
from engine.child import EngineProcess
from engine.client import EngineClient
from engine.config import EngineConfig
from engine.config import check_options as check_options
from engine.endpoint import READ_AHEAD_BYTES, Connection
from engine.host import EngineHost
from engine.pool import EnginePool
from engine.remote_pool import AddressSource, RemotePool
from engine.silent import SilentEngine
from engine.standalone import run_engine

if TYPE_CHECKING:
    from engine.load import LoadedCheckpoint

# There a step costs much the same for one row as for some, and a frame lasts so long.
CPU_LEAD_TICK_S = 0.08
# There it has stock in hand when the server, on the same cores, has packets that are due.
CPU_NICENESS = 5
# Settings with a default that follows the memory of a GPU.
SIZES = ("max_batch_size", "max_running_requests", "max_prefill_positions")
DEVICES = Path("/dev")
EMBEDDED_VOICE = Path(__file__).parent / "voices" / "embedded"


class EngineThread:
    """The engine on a thread of this process, behind one end of a socket pair.

    ``load`` runs once, off the event loop. When the loop dies, ``connect`` makes a fresh one on the same weights.
    """

    def __init__(self, load: Callable[[], LoadedCheckpoint], config: EngineConfig) -> None:
        self._load, self.config = load, config
        self._loaded: LoadedCheckpoint | None = None
        self._host: EngineHost | None = None
        self.end_reason = "the engine was closed"
        self.is_remote = False

    def __str__(self) -> str:
        return "a thread of this process"

    async def connect(self) -> Connection:
        if self._host is not None:
            await asyncio.to_thread(self._host.stop)
        if self._loaded is None:
            self._loaded = await asyncio.to_thread(self._load)
        make_engine, encode_voice = self._loaded.make_engine, self._loaded.encode_voice
        self._host = host = EngineHost(make_engine, self._loaded.info, self._loaded.config, encode_voice, self._on_exit)
        await asyncio.to_thread(host.start)
        near, far = socket.socketpair()
        host.attach(far)
        return await asyncio.open_unix_connection(sock=near, limit=READ_AHEAD_BYTES)

    def _on_exit(self, error: BaseException) -> None:
        """Called on the engine's thread."""
        self.end_reason = f"{type(error).__name__}: {error}"

    async def stop(self) -> None:
        host, self._host, self._loaded = self._host, None, None
        if host is not None:
            await asyncio.to_thread(host.stop)

    def current_stats(self) -> EngineStats | None:
        return self._host.loop.stats() if self._host is not None else None


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

    ``device``: auto, cpu, cuda or cuda:N, or several with commas between them: one engine for each. ``dtype``: auto
    (fp32 on CPU, bf16 on CUDA), float32 or bfloat16.
    ``process``: whether the loop gets a process of its own; by default on CUDA, where a busy Python thread beside it
    would cost milliseconds of lock waits per step. ``settings`` are fields of ``EngineConfig``. Raises
    ``InvalidRequest`` for a setting that is unknown or out of range.
    """
    if "," in device and process is False:
        raise InvalidRequest(f"device is {device!r}; several engines need a process each", "process")
    if "," in device or (cuda_is_visible(device) if process is None else process):
        return share_engine(model, device=device, dtype=dtype, **settings)[0]
    config = _engine_config(settings, device)
    folder = model or EMBEDDED_VOICE

    def load() -> LoadedCheckpoint:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        from engine.load import load_engine

        return load_engine(folder, config, device, dtype, is_embedded=model is None)

    return EngineClient(EngineThread(load, config))


def share_engine(
    model: Path | None = None, *, device: str = "auto", dtype: str = "auto", **settings: Any
) -> tuple[SpeechEngine, str]:
    """Create an engine in its own process for each device, and their addresses for ``connect_engine``."""
    children = [
        EngineProcess(model or EMBEDDED_VOICE, _engine_config(settings, name), name, dtype, is_embedded=model is None)
        for name in map(str.strip, device.split(","))
    ]
    clients = [EngineClient(child) for child in children]
    engine = EnginePool(clients) if len(clients) > 1 else clients[0]
    return engine, ",".join(str(child.address) for child in children)


def connect_engine(
    addresses: str, certificate: str | None = None, key: str | None = None, ca: str | None = None
) -> SpeechEngine:
    """The engines that other processes keep running; call ``start`` to wait for the first.

    ``addresses`` are those of ``AddressSource``, the others PEM files for TLS. Raises ``InvalidRequest``.
    """
    tls = TlsFiles.from_settings(certificate, key, ca)
    return RemotePool(AddressSource(addresses, tls), tls)


def create_silent_engine(info: EngineInfo) -> SpeechEngine:
    """Return an engine that answers with silence, behind the client of other engines; not yet started."""
    return EnginePool([EngineClient(SilentEngine(info))])


def serve_engine(
    model: Path | None,
    listen: str,
    on_ready: Callable[[str], None],
    *,
    tls_files: tuple[str | None, str | None, str | None] = (None, None, None),
    drain_timeout_s: float = 30.0,
    device: str = "auto",
    dtype: str = "auto",
    process: bool | None = None,
    **settings: Any,
) -> None:
    """Run one engine at the address ``listen`` until a signal; ``on_ready`` gets the address.

    ``tls_files`` are certificate, key and CA. ``process`` has no meaning here. Raises ``EngineError`` or ``OSError``.
    """
    if "," in device:
        raise InvalidRequest(f"device is {device!r}; start an engine for each device", "device")
    folder = {"folder": model or EMBEDDED_VOICE, "device": device, "dtype": dtype, "is_embedded": model is None}
    address, tls = EngineAddress.parse(listen), TlsFiles.from_settings(*tls_files)
    config = _engine_config(settings, device)
    run_engine(folder, config, address, tls, drain_timeout_s, lambda address: on_ready(str(address)))


def inspect_checkpoint(model: Path) -> CheckpointReport:
    """Inspect a folder or a model of the hub: every file, key and tensor is checked, no weight read.

    Raises ``CheckpointError``.
    """
    from engine.load import inspect_model
    from engine.weights.hub import resolve_folder

    return inspect_model(resolve_folder(model))


def _engine_config(settings: dict[str, Any], device: str) -> EngineConfig:
    unknown = sorted(set(settings) - set(EngineConfig.__struct_fields__))
    if unknown:
        raise InvalidRequest(f"unknown engine setting {unknown[0]!r}", unknown[0])
    usual: dict[str, Any] = {"lead_step_interval_s": CPU_LEAD_TICK_S, "process_nice": CPU_NICENESS}
    if cuda_is_visible(device):
        usual = {"sizes_by_memory": [name for name in SIZES if name not in settings]}
    try:
        return msgspec.convert(usual | settings, EngineConfig)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"engine settings: {error}") from None


def cuda_is_visible(device: str) -> bool:
    """Return whether CUDA seems present, without loading PyTorch."""
    has_device = any(DEVICES.glob("nvidia[0-9]*"))
    return device.startswith("cuda") or (device == "auto" and has_device and not _all_gpus_are_hidden())


def _all_gpus_are_hidden() -> bool:
    """CUDA sees the GPUs of the list that come before the first name which is none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    first = None if visible is None else visible.partition(",")[0].strip()
    return first is not None and not (first.isdecimal() or first.startswith(("GPU-", "MIG-")))
