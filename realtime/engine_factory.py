"""Creates engines for commands and gateways; the only module that imports ``engine.launch``."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from engine.api import CheckpointReport, EngineInfo, SpeechEngine
from realtime.config import ServerConfig, merge_tables
from realtime.config_sections import EngineSettings

MODEL_HELP = "checkpoint folder, or OWNER/NAME of a model on the hub (default: the voice that comes with voicewire)"


def add_model_argument(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    parser.add_argument("--model", type=Path, metavar="FOLDER", default=default, help=MODEL_HELP)


def engine_options(config: ServerConfig) -> dict[str, Any]:
    """Return the options of ``config``, with those for debugging. Raises ``InvalidRequest`` for a constant."""
    from engine.launch import check_options

    check_options(config.engine.options)
    options = merge_tables(config.engine.options, config.debug.engine)
    assert isinstance(options, dict)
    return options


def has_gpu_engine(config: ServerConfig) -> bool:
    """Return whether the server starts an engine process on a GPU, as far as is known before PyTorch is loaded."""
    from engine.launch import cuda_is_visible

    options = config.engine.options
    is_process = not config.engine.addresses and options.get("process") is not False
    return is_process and cuda_is_visible(str(options.get("device", "auto")))


def make_engine(model: Path | None, **settings: Any) -> SpeechEngine:
    """Create an engine, not yet started; ``None`` selects the embedded voice."""
    from engine.launch import create_engine  # imports torch

    return create_engine(model, **settings)


def make_server_engine(config: ServerConfig) -> SpeechEngine:
    """Create the engine of a server, or a client of the engines at ``engine.addresses``; not yet started."""
    if config.engine.addresses:
        return connect_engine(config.engine.addresses, config.engine)
    return make_engine(_model_folder(config), **{"process": True} | engine_options(config))


def share_engine(config: ServerConfig) -> tuple[SpeechEngine, str]:
    """Create an engine in its own process for each device, not yet started, and the addresses for other processes."""
    from engine.launch import share_engine as make_shared_engine

    options = engine_options(config)
    options.pop("process", None)
    return make_shared_engine(_model_folder(config), **options)


def connect_engine(addresses: str, settings: EngineSettings) -> SpeechEngine:
    """Create a client of other processes' engines, not yet connected. Raises ``InvalidRequest``."""
    from engine.launch import connect_engine as make_connected_engine

    return make_connected_engine(addresses, settings.tls_certificate, settings.tls_key, settings.tls_ca)


def make_silent_engine(info: EngineInfo) -> SpeechEngine:
    """Create an engine that answers with silence at once, not yet started."""
    from engine.launch import create_silent_engine

    return create_silent_engine(info)


def serve_engine(config: ServerConfig, listen: str, on_ready: Callable[[str], None]) -> None:
    """Run one engine at the address ``listen`` until a signal. Raises ``EngineError`` or ``OSError``."""
    from engine.launch import serve_engine as run_served_engine

    run_served_engine(
        _model_folder(config),
        listen,
        on_ready,
        tls_files=(config.engine.tls_certificate, config.engine.tls_key, config.engine.tls_ca),
        drain_timeout_s=config.listen.drain_timeout_s,
        **engine_options(config),
    )


def _model_folder(config: ServerConfig) -> Path | None:
    return Path(config.engine.model) if config.engine.model else None


def inspect_checkpoint(model: Path) -> CheckpointReport:
    """Inspect a folder or a model of the hub without loading it. Raises ``CheckpointError``."""
    from engine.launch import inspect_checkpoint as inspect

    return inspect(model)


@asynccontextmanager
async def running_engine(model: Path | None) -> AsyncIterator[SpeechEngine]:
    """Start an engine in this process; ``None`` selects the embedded voice. Raises ``CheckpointError``."""
    engine = make_engine(model, lazy_graph_capture=True)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.aclose()
