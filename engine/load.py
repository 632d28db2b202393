"""A checkpoint folder on a device, as a maker of engines."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import torch

from engine.api import EngineInfo
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import InvalidRequest
from engine.models.base import DecodeStage, SpeechModel
from engine.models.registry import load_model

CPU_THREADS = 1
"""Two spinning OpenMP threads beside a busy neighbour took a step from 43 to 2,270 ms; one thread 73."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise InvalidRequest(f"device is {name!r}; known: auto, cpu, cuda, cuda:N", "device")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InvalidRequest(f"device is {name!r}, but {torch.cuda.device_count()} CUDA devices can be used", "device")
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in DTYPES:
        raise InvalidRequest(f"dtype is {name!r}; known: auto, {', '.join(DTYPES)}", "dtype")
    return DTYPES[name]


def load_engine(
    folder: Path, config: EngineConfig, device_name: str, dtype_name: str, is_embedded: bool
) -> tuple[EngineInfo, Callable[[], Engine]]:
    """Raises ``CheckpointError`` or, for a device or dtype that cannot be had, ``InvalidRequest``."""
    device = choose_device(device_name)
    dtype = choose_dtype(dtype_name, device)
    if device.type == "cpu":
        torch.set_num_threads(CPU_THREADS)
    model, make_stage = load_model(folder, config, device, dtype)

    def make_engine() -> Engine:
        engine = Engine(model, make_stage(), config, dtype=dtype, device=device)
        engine.warm_up()
        return engine

    return describe(model, make_stage(), config, normalize_text=is_embedded), make_engine


def describe(model: SpeechModel, stage: DecodeStage, config: EngineConfig, normalize_text: bool) -> EngineInfo:
    return EngineInfo(
        model=model.name,
        sample_rate=stage.sample_rate,
        frame_samples=stage.frame_samples,
        voices=model.voices,
        languages=model.languages,
        max_text_tokens=min(model.max_positions, config.max_frames),
        normalize_text=normalize_text,
    )
