"""Buffers between host and device. They never move, because a graph holds their addresses.

On CUDA the host side is pinned and copies run in stream order; on the CPU the two sides are the same memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Fields = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
# Bytes; kernels read whole vectors.
ALIGNMENT = 16


class StaticBuffers:
    """Named arrays of ``num_rows`` rows: ``host`` to write or read, ``device`` for the graphs.

    Those of one number a row lie side by side and cross in one copy, whatever the number of rows.
    """

    def __init__(self, num_rows: int, fields: Fields, device: torch.device) -> None:
        self.is_cuda = device.type == "cuda"
        small = {name: dtype for name, (dtype, shape) in fields.items() if not shape}
        sizes = {name: -(-num_rows * dtype.itemsize // ALIGNMENT) * ALIGNMENT for name, dtype in small.items()}
        arena = self._pair((sum(sizes.values()),), torch.uint8, device)
        self._arena = arena
        self._sides: dict[str, tuple[Tensor, Tensor]] = {}
        offset = 0
        for name, (dtype, shape) in fields.items():
            if shape:
                self._sides[name] = self._pair((num_rows, *shape), dtype, device)
                continue
            end = offset + num_rows * dtype.itemsize
            self._sides[name] = arena[0][offset:end].view(dtype), arena[1][offset:end].view(dtype)
            offset += sizes[name]
        self._large = [sides for name, sides in self._sides.items() if name not in small]
        self.host: dict[str, npt.NDArray[Any]] = {n: mine.numpy() for n, (mine, _) in self._sides.items()}
        self.device: dict[str, Tensor] = {n: theirs for n, (_, theirs) in self._sides.items()}

    def _pair(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        mine = torch.zeros(shape, dtype=dtype, pin_memory=self.is_cuda)
        return mine, torch.zeros_like(mine, device=device) if self.is_cuda else mine

    def upload(self, num_rows: int) -> None:
        """The first ``num_rows`` of every array to the device, in the current stream's order."""
        self._copy(num_rows, mine_to_theirs=True)

    def download(self, num_rows: int) -> None:
        self._copy(num_rows, mine_to_theirs=False)

    def _copy(self, num_rows: int, mine_to_theirs: bool) -> None:
        if not self.is_cuda:
            return
        for mine, theirs in [self._arena, *((a[:num_rows], b[:num_rows]) for a, b in self._large)]:
            if mine_to_theirs:
                theirs.copy_(mine, non_blocking=True)
            else:
                mine.copy_(theirs, non_blocking=True)


class DeviceEvent:
    """Records when the work queued so far on the current stream has finished; at once on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event() if device.type == "cuda" else None
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()

    @property
    def is_done(self) -> bool:
        return self._event is None or self._event.query()

    def make_stream_wait(self) -> None:
        """Let the current stream wait for it, and the host not."""
        if self._event is not None:
            self._event.wait()


def to_device(values: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A list or array as a tensor; on CUDA in the current stream's order, through pinned memory."""
    host = torch.tensor(np.asarray(values), dtype=dtype)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host
