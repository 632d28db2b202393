"""PCM on its way to the host, without anybody waiting for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.models.base import Pcm
from engine.models.cosyvoice3.flow_blocks import StreamSequence
from engine.program.buffers import DeviceEvent


class CompletedTransfer(NamedTuple):
    row: StreamSequence
    pcm: Pcm
    is_finite: bool


@dataclass(slots=True)
class PendingTransfer:
    """Copy the given number of samples of each row, in order."""

    rows: list[StreamSequence]
    num_samples: list[int]
    pcm: Tensor
    finite: Tensor
    done: DeviceEvent


class PcmTransfers:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.flights: deque[PendingTransfer] = deque()

    def __bool__(self) -> bool:
        return bool(self.flights)

    def send(self, rows: list[StreamSequence], pcm: Sequence[Tensor], finite: Sequence[Tensor]) -> None:
        """pcm [n] and a flag for each row; in the current stream's order."""
        sizes = [len(samples) for samples in pcm]
        landing = self.to_host(torch.cat(list(pcm))), self.to_host(torch.stack(list(finite)))
        self.flights.append(PendingTransfer(rows, sizes, *landing, DeviceEvent(self.device)))

    def to_host(self, values: Tensor) -> Tensor:
        if self.device.type != "cuda":
            return values
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        return host.copy_(values, non_blocking=True)

    def collect(self) -> Iterator[CompletedTransfer]:
        """What has passed, in order, up to a row that comes again."""
        seen: set[int] = set()
        while self.flights and self.flights[0].done.is_done:
            slots = {row.slot for row in self.flights[0].rows}
            if seen & slots:
                return
            seen |= slots
            flight = self.flights.popleft()
            pieces = np.split(flight.pcm.numpy(), np.cumsum(flight.num_samples)[:-1])
            for row, pcm, is_finite in zip(flight.rows, pieces, flight.finite.tolist(), strict=True):
                yield CompletedTransfer(row, pcm.copy(), is_finite)
