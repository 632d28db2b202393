"""PCM on its way to the host, without anybody waiting for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.graphs.buffers import Done
from engine.models.base import Pcm
from engine.models.cosyvoice3.flow_blocks import StreamRow


class Landed(NamedTuple):
    row: StreamRow
    pcm: Pcm
    is_finite: bool


@dataclass(slots=True)
class Flight:
    """Of each row so many samples, in order."""

    rows: list[StreamRow]
    num_samples: list[int]
    pcm: Tensor
    finite: Tensor
    done: Done


class PcmFlights:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.flights: deque[Flight] = deque()

    def __bool__(self) -> bool:
        return bool(self.flights)

    def send(self, rows: list[StreamRow], pcm: Sequence[Tensor], finite: Sequence[Tensor]) -> None:
        """pcm [n] and a flag for each row; in the current stream's order."""
        sizes = [len(samples) for samples in pcm]
        landing = self.to_host(torch.cat(list(pcm))), self.to_host(torch.stack(list(finite)))
        self.flights.append(Flight(rows, sizes, *landing, Done(self.device)))

    def to_host(self, values: Tensor) -> Tensor:
        if self.device.type != "cuda":
            return values
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        return host.copy_(values, non_blocking=True)

    def landed(self) -> Iterator[Landed]:
        """What has passed, in order, up to a row that comes again."""
        seen: set[int] = set()
        while self.flights and self.flights[0].done.passed:
            slots = {row.slot for row in self.flights[0].rows}
            if seen & slots:
                return
            seen |= slots
            flight = self.flights.popleft()
            pieces = np.split(flight.pcm.numpy(), np.cumsum(flight.num_samples)[:-1])
            for row, pcm, is_finite in zip(flight.rows, pieces, flight.finite.tolist(), strict=True):
                yield Landed(row, pcm.copy(), is_finite)
