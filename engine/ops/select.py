"""Which operations the graphs run."""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from engine.ops.reference_ops import ReferenceOps


def select_ops(config: EngineConfig, device: torch.device) -> ReferenceOps:
    """Fused kernels on CUDA, where Triton is there, unless settings say otherwise."""
    if device.type != "cuda" or not config.triton_kernels:
        return ReferenceOps()
    try:
        from engine.ops.triton_ops import TritonOps
    except ImportError:
        return ReferenceOps()
    return TritonOps(disabled=config.disabled_kernels)
