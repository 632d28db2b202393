"""What crosses between host and device each step, in buffers that never move: a graph holds their addresses.

On CUDA the host side is pinned and copies run in stream order; on the CPU the two sides are the same memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

NUMPY = {torch.int32: np.int32, torch.int64: np.int64, torch.float32: np.float32, torch.bool: np.bool_}


class Buffers:
    """Named arrays of ``num_rows`` rows: ``host`` to write or read, ``device`` for the graphs."""

    def __init__(
        self, num_rows: int, fields: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], device: torch.device
    ) -> None:
        is_cuda = device.type == "cuda"
        self._sides: dict[str, tuple[Tensor, Tensor]] = {}
        for name, (dtype, shape) in fields.items():
            mine = torch.zeros(num_rows, *shape, dtype=dtype, pin_memory=is_cuda)
            self._sides[name] = mine, torch.zeros_like(mine, device=device) if is_cuda else mine
        self.host: dict[str, npt.NDArray[np.generic]] = {n: mine.numpy() for n, (mine, _) in self._sides.items()}
        self.device: dict[str, Tensor] = {n: theirs for n, (_, theirs) in self._sides.items()}

    def upload(self, num_rows: int) -> None:
        """The first ``num_rows`` of every array to the device, in the current stream's order."""
        for mine, theirs in self._sides.values():
            if mine is not theirs:
                theirs[:num_rows].copy_(mine[:num_rows], non_blocking=True)

    def download(self, num_rows: int) -> None:
        for mine, theirs in self._sides.values():
            if mine is not theirs:
                mine[:num_rows].copy_(theirs[:num_rows], non_blocking=True)


class Done:
    """When the work queued so far on the current stream has passed; at once on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event() if device.type == "cuda" else None
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()

    def hold(self) -> None:
        """Let the current stream wait for it, and the host not."""
        if self._event is not None:
            self._event.wait()


def to_device(values: object, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A list as a tensor, without waiting for the device."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)
