"""Which operations the graphs run."""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from engine.kernels.plain import PlainOps


def choose_ops(config: EngineConfig, device: torch.device) -> PlainOps:
    """Fused kernels on CUDA, where Triton is there, unless settings say otherwise."""
    if device.type != "cuda" or not config.fused_kernels:
        return PlainOps()
    try:
        from engine.kernels.fused import FusedOps
    except ImportError:
        return PlainOps()
    return FusedOps(off=config.plain_kernels)
