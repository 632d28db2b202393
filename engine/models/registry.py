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

    from engine.models.base import Family


# Its own ``config.json`` is empty.
COSYVOICE3_FILE = "cosyvoice3.yaml"


def load_family(
    folder: Path,
    config: EngineConfig,
    device: torch.device,
    dtype: torch.dtype,
    decode_device: torch.device | None = None,
) -> Family:
    """Load a folder by its family. Raises ``CheckpointError`` for an unknown one."""
    family = _family(folder)
    if family == "cosyvoice3":
        from engine.models.cosyvoice3.load import load_family as load_cosyvoice3

        return load_cosyvoice3(folder, config, device, dtype)
    from engine.models.qwen3_tts.load import load_family as load_qwen3_tts

    return load_qwen3_tts(folder, config, device, dtype, decode_device)


def inspect_model(folder: Path) -> CheckpointReport:
    """Inspect a folder: all of it is checked and nothing loaded. Raises ``CheckpointError``."""
    family = _family(folder)
    if family == "cosyvoice3":
        from engine.models.cosyvoice3.load import inspect as inspect_cosyvoice3

        return inspect_cosyvoice3(folder)
    from engine.models.qwen3_tts.load import inspect as inspect_qwen3_tts

    return inspect_qwen3_tts(folder)


def _family(folder: Path) -> str:
    if (folder / COSYVOICE3_FILE).exists():
        return "cosyvoice3"
    found = _model_type(folder)
    if found != "qwen3_tts":
        known = f"qwen3_tts, and cosyvoice3 by its {COSYVOICE3_FILE}"
        raise CheckpointError(f"{folder / 'config.json'}: model_type is {found!r}; known: {known}")
    return "qwen3_tts"


def _model_type(folder: Path) -> object:
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no config.json; it is no checkpoint folder") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{folder / 'config.json'} cannot be read as JSON: {error}") from None
    return values.get("model_type") if isinstance(values, dict) else None
