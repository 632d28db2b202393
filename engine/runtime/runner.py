"""The talker stage: one batch through forward pass and sampling, eagerly or over graphs. A failing row fails alone."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, compress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.memory.block_pool import PrefixCache
from engine.memory.kv_cache import PagedContext, PagedKV
from engine.models.base import FailedOutcome, FrameProgramProtocol, Outcome, SpeechModel
from engine.program.buffers import DeviceEvent
from engine.program.capture import GraphSet, bucket_for, buckets_up_to
from engine.program.isolate import isolate
from engine.runtime.request import Request, RequestPhase, ScheduledWork, StepBatch

log = logging.getLogger(__name__)

Result = tuple[Request, Outcome]
# With more rows the inputs of a step rarely fit into one prefill: a limit of 256 gained nothing for 220.
MAX_PREFILLED_ROWS = 128
# A graph and the numbers that it is captured for.
GraphKey = tuple[GraphSet, tuple[int, ...]]


class ModelRunner:
    def __init__(self, model: SpeechModel, kv: PagedKV, prefixes: PrefixCache, config: EngineConfig) -> None:
        self.model, self.kv, self.prefixes, self.config = model, kv, prefixes, config
        self.device = kv.data.device

    def run(self, batch: StepBatch, times: StepTimings) -> list[Result]:
        """Outcomes of every row that was sampled or failed; rows that only prefilled have none."""
        start = time.perf_counter()
        self.prefixes.flush()
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

    def collect(self, times: StepTimings) -> list[Result]:
        """Outcomes of the step in flight: none, for ``run`` has returned them."""
        return []

    @property
    def in_flight(self) -> bool:
        return False

    @property
    def is_done(self) -> bool:
        """``collect`` need not wait."""
        return True

    @property
    def max_positions(self) -> int:
        """Positions that one request can have."""
        return self.model.max_positions

    @property
    def graph_keys(self) -> list[GraphKey]:
        return []

    def prepare(self, request: Request) -> None:
        """Do ahead of a request's first step what can be done then."""

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


def is_prompt(work: ScheduledWork) -> bool:
    """Return whether more is computed than the one input that is sampled from."""
    return work.count > int(work.sample)


def due_items(work: ScheduledWork) -> list[Any]:
    """The inputs of a row that are computed."""
    start = work.request.row.num_computed
    return work.request.row.inputs[start : start + work.count]


@dataclass(slots=True)
class StepTimings:
    """Seconds, added up over steps; ``host_s`` is what the others leave of the whole."""

    talker_s: float = 0.0
    # Sampling of code 0, predictor passes and their sampling.
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


@dataclass(slots=True)
class InFlightStep:
    """A step on its way: who is in it, and when it has passed."""

    requests: Sequence[Request]
    event: DeviceEvent


class BlockTables:
    """Each slot's block table as the graphs read it, kept up to date as it grows."""

    def __init__(self, num_slots: int, width: int) -> None:
        self.rows = np.zeros((num_slots + 1, width), dtype=np.int32)
        self._known: list[tuple[list[int] | None, int]] = [(None, 0)] * (num_slots + 1)

    def update(self, slot: int, table: list[int]) -> None:
        known, length = self._known[slot]
        if known is table and length == len(table):
            return
        start = length if known is table else 0
        self.rows[slot, start : len(table)] = table[start:]
        self.rows[slot, len(table) :] = 0
        self._known[slot] = (table, len(table))


class GraphRunner(ModelRunner):
    """Steps over static buffers. A step's outcomes are collected at the beginning of the next."""

    def __init__(
        self,
        model: SpeechModel,
        kv: PagedKV,
        prefixes: PrefixCache,
        config: EngineConfig,
        program: FrameProgramProtocol,
        frames: GraphSet,
        prefills: GraphSet,
        num_slots: int,
    ) -> None:
        super().__init__(model, kv, prefixes, config)
        self.program, self.frames, self.prefills = program, frames, prefills
        inputs, tokens = program.inputs.host, program.tokens.host
        self.max_rows, self.max_tokens = len(inputs["slot"]), len(tokens["text"])
        self.row_buckets, self.token_buckets = buckets_up_to(self.max_rows), buckets_up_to(self.max_tokens)
        if config.fixed_batch_rows:
            self.token_buckets = self.token_buckets[-1:]
        width = inputs["table"].shape[1]
        self.tables = BlockTables(num_slots, width)
        self.tables.rows[0] = kv.scratch_block
        self._constants: dict[str, np.ndarray[Any, Any]] = {}
        self._holders: list[Request | None] = [None] * (num_slots + 1)
        self._flight: InFlightStep | None = None
        self._tokens_read = DeviceEvent(kv.data.device)
        # Position in the last prefill of the input that each row samples from, by slot; empty if that is elsewhere.
        self._sources: dict[int, int] = {}

    @property
    def frame_buckets(self) -> list[int]:
        """Row counts that steps are padded to."""
        return [rows for rows in self.row_buckets if rows >= (self.config.fixed_batch_rows or 0)]

    @property
    def prefilled_buckets(self) -> list[int]:
        """Row counts of steps that sample from their prefill; none where rows are to be independent of others."""
        if self.config.fixed_batch_rows or not self.config.sample_from_prefill:
            return []
        return [rows for rows in self.row_buckets if rows <= min(MAX_PREFILLED_ROWS, self.max_tokens)]

    @property
    def in_flight(self) -> bool:
        return self._flight is not None

    @property
    def is_done(self) -> bool:
        return self._flight is None or self._flight.event.is_done

    @property
    def max_positions(self) -> int:
        return min(super().max_positions, self.tables.rows.shape[1] * self.config.block_size)

    @property
    def graph_keys(self) -> list[GraphKey]:
        """Largest first: the smaller ones then fit in the memory of the larger."""
        return [
            *((self.frames, (rows,)) for rows in reversed(self.frame_buckets)),
            *((self.frames, (rows, 1)) for rows in reversed(self.prefilled_buckets)),
            *((self.prefills, (tokens,)) for tokens in reversed(self.token_buckets)),
        ]

    def run(self, batch: StepBatch, times: StepTimings) -> list[Result]:
        """Queue the step on the device; returns the rows that could not be. A batch that samples nothing leaves the
        step in flight where it is.
        """
        start = time.perf_counter()
        self.prefixes.flush()
        failed: list[Result] = []
        works, self._sources = batch.items, {}
        due = [work for work in works if is_prompt(work)]
        if not (due and self.run_in_one_pass(works, due)):
            isolate(self.prefill, due, add_failure(failed))
        if failed:
            lost = {id(request) for request, _ in failed}
            works = [work for work in works if id(work.request) not in lost]
        for work in works:
            self.run_work(work)
        staged = self.stage([work for work in works if work.sample], failed)
        if staged:
            self.launch_frame(staged)
        times.launch_s += time.perf_counter() - start
        return failed

    def stage(self, works: Sequence[ScheduledWork], failed: list[Result]) -> list[Request]:
        """Write each request's row of the buffers; one that cannot be written fails alone."""
        staged: list[Request] = []

        def write(some: Sequence[ScheduledWork]) -> list[None]:
            requests = [work.request for work in some]
            for request in requests:
                self.stage_request(request)
            self.program.stage_rows([request.row for request in requests], len(staged))
            staged.extend(requests)
            return []

        isolate(write, works, add_failure(failed))
        return staged

    def launch_frame(self, requests: Sequence[Request]) -> None:
        count = len(requests)
        bucket = bucket_for(self.frame_buckets, count)
        inputs = self.program.inputs.host
        slots = np.zeros(bucket, dtype=np.int64)
        slots[:count] = [request.held_slot for request in requests]
        for name, values in self._constants.items():
            inputs[name][:bucket] = values[slots]
        inputs["slot"][:bucket] = slots
        inputs["table"][:bucket] = self.tables.rows[slots]
        inputs["position"][:count] = [request.row.num_computed - 1 for request in requests]
        for name in ("position", "frame", "text", "goes_on"):
            inputs[name][count:bucket] = 0
        is_prefilled = all(request.held_slot in self._sources for request in requests)
        if is_prefilled:
            inputs["source"][:bucket] = 0
            inputs["source"][:count] = [self._sources[request.held_slot] for request in requests]
        self.program.inputs.upload(bucket)
        self.frames.replay(*((bucket, 1) if is_prefilled else (bucket,)))
        self.program.outputs.download(count)
        self._flight = InFlightStep(requests, DeviceEvent(self.device))

    def prepare(self, request: Request) -> None:
        """Put what stays the same for a request in place."""
        slot = request.held_slot
        if self._holders[slot] is not request:
            self.program.restore_row(slot, request.row)
            for name, value in self.program.constants(request.row).items():
                if name not in self._constants:
                    kind = self.program.inputs.host[name].dtype
                    self._constants[name] = np.zeros(len(self._holders), dtype=kind)
                self._constants[name][slot] = value
            # Once all is written: a row that raised here is tried again.
            self._holders[slot] = request

    def stage_request(self, request: Request) -> None:
        """Put what stays the same for a request in place, and the blocks it has by now."""
        self.prepare(request)
        self.tables.update(request.held_slot, request.block_table)

    def collect(self, times: StepTimings) -> list[Result]:
        """The outcomes of the step in flight, once it has passed; of rows that go on alone."""
        flight, self._flight = self._flight, None
        if flight is None:
            return []
        start = time.perf_counter()
        flight.event.wait()
        times.wait_s += time.perf_counter() - start
        codes = self.program.outputs.host["codes"][: len(flight.requests)]
        alive = [request.phase is RequestPhase.RUNNING for request in flight.requests]
        requests = list(compress(flight.requests, alive))
        out = codes if len(requests) == len(alive) else codes[alive]
        return list(zip(requests, self.program.outcomes([request.row for request in requests], out), strict=True))

    # -- prompts -------------------------------------------------------------------------------------------------

    def can_sample_from_prefill(self, works: Sequence[ScheduledWork], prompts: Sequence[ScheduledWork]) -> bool:
        """Return whether one pass of the talker can take all inputs of the step. Those of prompts may not be ids; the
        one input of a row that goes on can always be staged.
        """
        num_sampled = sum(work.sample for work in works)
        return (
            0 < num_sampled <= max(self.prefilled_buckets, default=0)
            and sum(work.count for work in works) <= self.max_tokens
            and all(self.program.can_stage(due_items(work)) for work in prompts)
        )

    def run_in_one_pass(self, works: Sequence[ScheduledWork], prompts: Sequence[ScheduledWork]) -> bool:
        """Run all inputs of the step in one prefill; return whether that was possible."""
        if not self.can_sample_from_prefill(works, prompts):
            return False
        try:
            self.prefill_and_keep(works)
        except Exception as error:  # a row that fails again on its own reports it
            log.warning("prompts of a step are run alone: %s", type(error).__name__)
            return False
        return True

    def prefill_and_keep(self, works: Sequence[ScheduledWork]) -> None:
        """Keys, values and hidden states of all due inputs."""
        works = sorted(works, key=is_prompt, reverse=True)
        num_prompts = sum(map(is_prompt, works))
        used = self.stage_ids([(work, due_items(work)) for work in works[:num_prompts]])
        self.replay_tokens(self.stage_steps(used, works[num_prompts:]))
        ends = accumulate(work.count for work in works)
        self._sources = {work.request.held_slot: end - 1 for work, end in zip(works, ends, strict=True)}

    def prefill(self, works: Sequence[ScheduledWork]) -> list[None]:
        """Keys and values of all due inputs but one that is sampled: by ids in one graph, others one by one."""
        staged: list[tuple[ScheduledWork, list[Any]]] = []
        for work in works:
            items = due_items(work)
            if work.sample:
                items.pop()
            if not self.program.can_stage(items):
                self.forward([ScheduledWork(work.request, len(items), sample=False)])
            else:
                staged.append((work, items))
        self.replay_tokens(self.stage_ids(staged))
        return [None] * len(works)

    def stage_ids(self, inputs: Sequence[tuple[ScheduledWork, list[Any]]]) -> int:
        """Stage the inputs, and run them as far as they do not fit; the number of those that are staged."""
        used = 0
        for work, items in inputs:
            for start in range(0, len(items), self.max_tokens):
                piece = items[start : start + self.max_tokens]
                if used + len(piece) > self.max_tokens:
                    used = self.replay_tokens(used)
                self.stage_items(used, work.request, work.request.row.num_computed + start, piece)
                used += len(piece)
        return used

    def stage_items(self, used: int, request: Request, position: int, items: Sequence[Any]) -> None:
        if used == 0:
            self._tokens_read.wait()
        tokens, end = self.program.tokens.host, used + len(items)
        tokens["table"][used:end] = 0
        tokens["table"][used:end, : len(request.block_table)] = request.block_table
        tokens["position"][used:end] = np.arange(position, position + len(items))
        self.program.stage_tokens(used, request.row, items)

    def stage_steps(self, used: int, works: Sequence[ScheduledWork]) -> int:
        """Stage one position of each row, column by column; the number of those that are staged."""
        if used == 0:
            self._tokens_read.wait()
        for work in works:
            self.stage_request(work.request)
        rows, slots = [work.request.row for work in works], [work.request.held_slot for work in works]
        tokens, end = self.program.tokens.host, used + len(works)
        tokens["table"][used:end] = self.tables.rows[slots]
        tokens["position"][used:end] = [row.num_computed for row in rows]
        self.program.stage_steps(used, rows, slots)
        return end

    def replay_tokens(self, used: int) -> int:
        """Run what is staged; 0, for nothing is staged any more."""
        if used == 0:
            return 0
        tokens = self.program.tokens
        bucket = bucket_for(self.token_buckets, used)
        for name, values in tokens.host.items():
            values[used:bucket] = self.kv.scratch_block if name == "table" else 0
        tokens.upload(bucket)
        self.prefills.replay(bucket)
        # Behind the graph, which would start later if it were recorded before it.
        self._tokens_read = DeviceEvent(self.device)
        return 0
