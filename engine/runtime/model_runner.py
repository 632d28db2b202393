"""One batch through the talker stage: block tables to tensors, forward, sample. A failing row fails alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.memory.kv_cache import PagedContext, PagedKV
from engine.memory.prefix_cache import PrefixCache
from engine.models.base import FailedOutcome, Outcome, SpeechModel
from engine.program.isolate import isolate
from engine.runtime.request import Request, ScheduledWork, StepBatch

Result = tuple[Request, Outcome]


class ModelRunner:
    def __init__(self, model: SpeechModel, kv: PagedKV, prefixes: PrefixCache, config: EngineConfig) -> None:
        self.model, self.kv, self.prefixes, self.config = model, kv, prefixes, config
        self.device = kv.data.device

    def run(self, batch: StepBatch, times: StepTimings) -> list[Result]:
        """Outcomes of every row that was sampled or failed; rows that only prefilled have none."""
        start = time.perf_counter()
        failed: list[Result] = []
        on_failed = add_failure(failed)
        hidden = [pair for work in batch.prefills for pair in isolate(self.forward, [work], on_failed)]
        hidden += isolate(self.forward, batch.steps, on_failed)
        times.talker_s += time.perf_counter() - start
        due = [(work, row) for work, row in hidden if work.sample]
        for work, _ in hidden:
            self.run_work(work)
        start = time.perf_counter()
        outcomes = isolate(self.sample, due, lambda pair, error: on_failed(pair[0], error))
        times.predictor_s += time.perf_counter() - start
        return [*outcomes, *failed]

    def run_work(self, work: ScheduledWork) -> None:
        row = work.request.row
        row.num_computed += work.count
        row.sample_pending = row.sample_pending and not work.sample
        if row.num_computed == row.num_prefix and work.request.prefix_key is not None:
            self.prefixes.store(work.request.prefix_key, work.request.block_table, row.num_prefix)

    def forward(self, works: Sequence[ScheduledWork]) -> list[tuple[ScheduledWork, Tensor]]:
        """Works of one count -> the hidden state [H] of each one's last input."""
        if not works:
            return []
        count = works[0].count
        rows = [work.request.row for work in works]
        inputs = [row.inputs[row.num_computed : row.num_computed + count] for row in rows]
        tables = [work.request.block_table for work in works]
        starts = [row.num_computed for row in rows]
        num_padding = max((self.config.fixed_batch_rows or 0) - len(works), 0) if count == 1 else 0
        hidden = self.model.forward(
            rows + rows[:1] * num_padding,
            inputs + inputs[:1] * num_padding,
            *self.context(tables + [[self.kv.scratch_block]] * num_padding, starts + [0] * num_padding, count),
        )
        return list(zip(works, hidden[:, -1], strict=False))

    def context(self, tables: list[list[int]], starts: list[int], count: int) -> tuple[Tensor, PagedContext]:
        """Positions [B, count] and the attention over the blocks; short tables are padded with block 0."""
        width = max(*map(len, tables), self.config.fixed_block_table_width or 1)
        padded = torch.tensor([[*table, *[0] * (width - len(table))] for table in tables], device=self.device)
        positions = torch.tensor(starts, device=self.device)[:, None] + torch.arange(count, device=self.device)
        return positions, PagedContext(self.kv, padded, positions)

    def sample(self, due: Sequence[tuple[ScheduledWork, Tensor]]) -> list[Result]:
        if not due:
            return []
        hidden = torch.stack([row for _, row in due])
        num_padding = max((self.config.fixed_batch_rows or 0) - len(due), 0)
        if num_padding:
            hidden = torch.nn.functional.pad(hidden, (0, 0, 0, num_padding))
        requests = [work.request for work, _ in due]
        return list(zip(requests, self.model.sample([r.row for r in requests], hidden), strict=True))


def add_failure(failed: list[Result]) -> Callable[[ScheduledWork, Exception], None]:
    """Puts a work that raised into ``failed``."""
    return lambda work, error: failed.append((work.request, FailedOutcome(f"{type(error).__name__}: {error}")))


@dataclass(slots=True)
class StepTimings:
    """Seconds, added up over steps; ``host_s`` is what the others leave of the whole."""

    talker_s: float = 0.0
    # Code-0 draw, predictor passes and their draws.
    predictor_s: float = 0.0
    decode_s: float = 0.0
    # Preparing and queueing a step of the graphs.
    launch_s: float = 0.0
    # Waiting for the device to finish one.
    wait_s: float = 0.0
    total_s: float = 0.0
    num_steps: int = 0
    num_rows: int = 0
    last_s: float = 0.0

    @property
    def host_s(self) -> float:
        return self.total_s - self.talker_s - self.predictor_s - self.decode_s - self.launch_s - self.wait_s

    def reset(self) -> None:
        for item in fields(self):
            setattr(self, item.name, item.default)
