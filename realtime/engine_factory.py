"""Where a command gets the engine from: the one place of this package that knows how one is made."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from engine.api import CheckpointReport, SpeechEngine

MODEL_HELP = "checkpoint folder, or OWNER/NAME of a model on the hub (default: the voice that comes with voicewire)"


def add_model_argument(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    parser.add_argument("--model", type=Path, metavar="FOLDER", default=default, help=MODEL_HELP)


def make_engine(model: Path | None, **settings: Any) -> SpeechEngine:
    """An engine, not yet started; ``None`` takes the embedded voice."""
    from engine.launch import create_engine  # brings torch

    return create_engine(model, **settings)


def share_engine(model: Path | None, **settings: Any) -> tuple[SpeechEngine, Path]:
    """An engine in a process of its own, not yet started, and the address at which other processes reach it. Its folder
    is there from ``start`` to ``aclose``."""
    from engine.launch import share_engine as make_shared_engine

    return make_shared_engine(model, **settings)


def connect_engine(address: Path) -> SpeechEngine:
    """An engine that another process keeps running, not yet connected."""
    from engine.launch import connect_engine as make_connected_engine

    return make_connected_engine(address)


def inspect_checkpoint(model: Path) -> CheckpointReport:
    """What a folder, or a model of the hub, holds; nothing is loaded. Raises ``CheckpointError``."""
    from engine.launch import inspect_checkpoint as inspect

    return inspect(model)


@asynccontextmanager
async def running_engine(model: Path | None) -> AsyncIterator[SpeechEngine]:
    """An engine in this process, started; ``None`` takes the embedded voice. Raises ``CheckpointError``."""
    engine = make_engine(model, lazy_graph_capture=True)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.aclose()
