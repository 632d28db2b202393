"""Which family a checkpoint folder belongs to, and how it becomes a talker stage and a decode stage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from engine.api import CheckpointReport
from engine.config import EngineConfig
from engine.errors import CheckpointError

if TYPE_CHECKING:
    import torch

    from engine.models.base import Stages


def load_model(folder: Path, config: EngineConfig, device: torch.device, dtype: torch.dtype) -> Stages:
    """Raises ``CheckpointError`` for a folder of no family known here."""
    family = _model_type(folder)
    if family == "qwen3_tts":
        from engine.models.qwen3_tts.load import load_stages

        return load_stages(folder, config, device, dtype)
    raise _unknown_family(folder, family)


def inspect_model(folder: Path) -> CheckpointReport:
    """What the folder holds, all of it checked and none of it loaded. Raises ``CheckpointError``."""
    family = _model_type(folder)
    if family == "qwen3_tts":
        from engine.models.qwen3_tts.inspect import inspect

        return inspect(folder)
    raise _unknown_family(folder, family)


def _unknown_family(folder: Path, family: object) -> CheckpointError:
    return CheckpointError(f"{folder / 'config.json'}: model_type is {family!r}; known: qwen3_tts")


def _model_type(folder: Path) -> object:
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no config.json; it is no checkpoint folder") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{folder / 'config.json'} cannot be read as JSON: {error}") from None
    return values.get("model_type") if isinstance(values, dict) else None
