"""Small things from host to device without waiting for the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def to_device(values: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A list or array as a tensor; on CUDA in the current stream's order, through pinned memory."""
    host = torch.tensor(np.asarray(values), dtype=dtype)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host
