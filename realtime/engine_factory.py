"""Creates engines for commands and gateways; the only module that imports ``engine.launch``."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from engine.api import CheckpointReport, SpeechEngine
from realtime.config import ServerConfig, merge_tables

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


def make_engine(model: Path | None, **settings: Any) -> SpeechEngine:
    """Create an engine, not yet started; ``None`` selects the embedded voice."""
    from engine.launch import create_engine  # imports torch

    return create_engine(model, **settings)


def share_engine(model: Path | None, **settings: Any) -> tuple[SpeechEngine, tuple[Path, ...]]:
    """Create an engine in its own process for each device, not yet started, and the addresses for other processes.
    Their folders exist from ``start`` to ``aclose``."""
    from engine.launch import share_engine as make_shared_engine

    return make_shared_engine(model, **settings)


def connect_engine(addresses: Sequence[Path]) -> SpeechEngine:
    """Create a client of another process's engines, not yet connected."""
    from engine.launch import connect_engine as make_connected_engine

    return make_connected_engine(addresses)


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
