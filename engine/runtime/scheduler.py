"""Selects the rows of the next step and frees blocks for them. Imports no torch and no model family.

Who owns what of a request: WAITING nothing; RUNNING a decoder slot and, unless preempted, KV blocks; DRAINING the
slot alone; DONE nothing. ``release`` is the only way back, whatever the cause.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import chain

from engine.api import FinishReason
from engine.config import EngineConfig
from engine.memory.block_pool import BlockPool, PrefixCache
from engine.models.base import AwaitText, DecodeStage, FrameOutcome, SpeechModel, TalkerInputs
from engine.runtime.admission import DEADLINE_S, FairShares, StepBudget, WaitingQueue, burst_share
from engine.runtime.request import Request, RequestPhase, Resumption, ScheduledWork, ShareKey, StepBatch
from engine.runtime.step_model import StepModel

ROUNDING_S = 1e-9
# A listener with a shorter lead is not kept waiting for the others.
MIN_LEAD_TICKS = 4
# A step with burst rows ends so long before a listener would run dry: time for one more step, and for the way.
STEP_MARGIN_S = 0.15
# Beside paced requests that need no step now, no step with burst rows is foreseen to take longer.
MAX_IDLE_SLACK_S = 1.0
# With more rows a wait of the talker costs more speech than first chunks gain: 8 % of it with 64.
MAX_ROWS_IN_WAIT = 32
# Burst rows leave room for newcomers so long after the last paced request was there.
PACED_MEMORY_S = 10.0


class Scheduler:
    """Chooses the rows of a step; what becomes of them on the way waits in ``parked`` and ``failed``."""

    def __init__(
        self,
        model: SpeechModel,
        stage: DecodeStage,
        pool: BlockPool,
        prefixes: PrefixCache,
        config: EngineConfig,
    ) -> None:
        self.model, self.stage, self.pool, self.prefixes, self.config = model, stage, pool, prefixes, config
        # Requests that ran out of text, once each time.
        self.parked: list[Request] = []
        # Requests whose reference or next input raised; they hold nothing any more.
        self.failed: list[tuple[Request, Exception]] = []
        self.frame_s = stage.frame_samples / stage.sample_rate
        self.chunk_s = stage.chunk_frames * self.frame_s
        self.step_model = StepModel()
        # Of the part of a step that cannot be interrupted: the talker's, where decoding comes behind in small rounds.
        self.burst_model = StepModel()
        self.shares = FairShares()
        self.waiting = WaitingQueue()
        self.running: list[Request] = []
        # The running ones.
        self.by_slot: dict[int, Request] = {}
        self.num_preemptions = 0
        self.num_slots_of: Counter[ShareKey] = Counter()
        self.num_burst_slots = 0
        self.max_burst_slots = burst_share(stage.slots.num_slots)
        # Number of requests that waited when the last step began and got no slot.
        self._num_left = self._num_burst_left = 0
        self._last_paced_s = -math.inf
        # Burst rows leave room for paced ones, which are there or were lately.
        self.spares_paced = False

    def schedule(self, now_s: float) -> StepBatch:
        """Admit, let rows fetch their next input, the most urgent first, find blocks for them."""
        self.admit(now_s)
        self.record_paced(now_s)
        rows = self.runnable_in_order(now_s)
        if self.config.first_chunks_alone and len(self.running) <= MAX_ROWS_IN_WAIT:
            rows = self.without_awaited(rows)
        batch, positions_left, starving = StepBatch(), self.config.max_prefill_positions, None
        max_batch = self.config.max_batch_size
        num_burst, budget = 0, None
        for request in rows:
            if request.is_burst:
                budget = budget or StepBudget(self.burst_model, self.paced_slack_s(now_s), max_batch)
                num_positions = self.num_prefill_positions(request) + self.config.max_prefill_positions - positions_left
                if not budget.fits(len(batch) + 1, num_positions, is_first=num_burst == 0):
                    break
            work = self.plan(request, positions_left, may_grow=starving is None)
            if work:
                batch.add(work)
                positions_left -= work.count if work.count > 1 else 0
                num_burst += request.is_burst
                if len(batch) == max_batch:
                    break
            elif request.lacks_blocks:
                starving = starving or request
        self.shares.record(work.request for work in batch.items if work.request.is_burst)
        if starving:
            self.preempt_for(starving, batch, now_s)
        return batch

    def prepare(self, now_s: float) -> list[Request]:
        """Admit requests, and find the inputs of those that wait for their first step; returns these."""
        self.admit(now_s)
        newcomers = [request for request in self.running if request.is_new]
        if not newcomers or self.is_short_of_blocks:
            return newcomers
        for request in newcomers:
            if self.pool.num_free <= self.config.watermark_blocks:
                break
            is_known = self.prefixes.num_positions(request.prefix_key) > 0
            if not is_known or not self.is_runnable(request, now_s) or not self.restore_prefix(request, may_grow=True):
                continue
            if not request.row.num_due:  # a preempted row has its inputs
                self.fetch_input(request)
        return newcomers

    def without_awaited(self, rows: Iterator[Request]) -> Iterator[Request]:
        """Return the rows; none of them if a step would do no more than delay their first chunks."""
        awaited: list[Request] = []
        for row in rows:
            awaited.append(row)
            if not self.stage.makes_first_chunk(row.held_slot):
                return chain(awaited, rows)
        return iter(())

    def runnable_in_order(self, now_s: float) -> Iterator[Request]:
        """Paced rows by deadline, then burst rows by their groups' shares. Rows that the step has no room for are not
        looked at."""
        for request in sorted((request for request in self.running if not request.is_burst), key=DEADLINE_S):
            if self.is_runnable(request, now_s):
                yield request
        if self.num_burst_slots:
            burst = [request for request in self.running if request.is_burst]
            yield from self.shares.order(request for request in burst if self.is_runnable(request, now_s))

    def num_prefill_positions(self, request: Request) -> int:
        """Prompt positions that the row would compute in this step."""
        row = request.row
        num_known = 0 if row.num_computed else self.prefixes.num_positions(request.prefix_key)
        count = min(row.num_due - num_known, self.config.max_prefill_positions)
        return count if count > 1 else 0

    def paced_slack_s(self, now_s: float) -> float:
        """Return how long a step with burst rows may take without delaying a paced row; ``inf`` where none was there
        lately, and 0 while one of them has text and no audio yet. Without burst rows it is not computed."""
        self.record_paced(now_s)
        if not self.spares_paced or not self.num_burst_slots:
            return math.inf
        slacks = (self.slack_s(request, now_s) for request in self.running if not request.is_burst)
        return min(slacks, default=MAX_IDLE_SLACK_S)

    def record_paced(self, now_s: float) -> None:
        """Note whether paced requests are there."""
        if len(self.running) > self.num_burst_slots or self.waiting.num_paced:
            self._last_paced_s = now_s
        self.spares_paced = now_s - self._last_paced_s <= PACED_MEMORY_S

    def slack_s(self, request: Request, now_s: float) -> float:
        """Return the time until a paced row must be computed in a step without burst rows."""
        if request.waits_for_text:
            return MAX_IDLE_SLACK_S
        if request.clock.dry_at_s is None:
            # One that cannot run may wait for memory that burst rows hold.
            return 0.0 if self.can_run(request, now_s) and not request.lacks_blocks else MAX_IDLE_SLACK_S
        lead_s = (request.spec.lead_ms or 0) / 1000 + self.chunk_s
        # A step that ends before the row may run delays nothing, however short the lead.
        return max(request.clock.lead_s(now_s) - min(STEP_MARGIN_S, lead_s / 2), self.wait_s(request, now_s))

    def plan(self, request: Request, positions_left: int, may_grow: bool) -> ScheduledWork | None:
        """Return the input of a row; None when it has no text, no block, or more to compute than this step takes.

        While a more urgent row lacks blocks, rows may run on those they hold but not take another. Where a long
        prefill is cut depends on the row alone, or its numbers would depend on its neighbours.
        """
        row = request.row
        if self.is_single_position(request):
            return ScheduledWork(request, 1, row.sample_pending)
        request.lacks_blocks = False
        if row.num_computed == 0 and not self.restore_prefix(request, may_grow):
            return None
        num_due = row.num_due
        if num_due == 0:
            if not self.fetch_input(request):
                return None
            num_due = row.num_due
        count = min(num_due, self.config.max_prefill_positions)
        if count > 1 and count > positions_left:
            return None
        if not self.allocate_or_preempt(request, row.num_computed + count, may_grow):
            return None
        return ScheduledWork(request, count, row.sample_pending and count == num_due)

    def is_single_position(self, request: Request) -> bool:
        """Nearly every row of nearly every step: one input, and room for it in a block that it holds."""
        row, num_blocks = request.row, len(request.block_table)
        has_one = len(row.inputs) - row.num_computed == 1
        return has_one and 0 < row.num_computed < num_blocks * self.config.block_size and not request.lacks_blocks

    def next_admitted(self) -> Request | None:
        """The waiting request that gets a slot now: a paced one first, then one of the group that holds fewest."""
        return self.choose_waiting(self.is_short_of_blocks) if self.waiting else None

    def choose_waiting(self, is_short_of_blocks: bool) -> Request | None:
        """Return the next one to admit. A paced request does not wait for blocks that burst rows hold."""
        if not self.waiting or not self.stage.slots.num_free:
            return None
        has_blocks = not self.running or not is_short_of_blocks
        return self.waiting.next(
            self.num_slots_of,
            paced=has_blocks or self.num_burst_slots > 0,
            burst=has_blocks and self.num_burst_slots < self.max_burst_slots,
        )

    @property
    def is_short_of_blocks(self) -> bool:
        """Return whether a row that could run waits for blocks, or no more are free than stay so. It looks at all
        running rows."""
        if self.pool.num_free <= self.config.watermark_blocks:
            return True
        return any(request.lacks_blocks and not request.waits_for_text for request in self.running)

    def admit(self, now_s: float) -> None:
        """Give free slots to waiting requests."""
        is_short = bool(self.waiting) and self.is_short_of_blocks
        while (request := self.choose_waiting(is_short)) is not None and (slot := self.stage.reserve()) is not None:
            self.waiting.remove(request)
            request.slot, request.phase, request.started_s = slot, RequestPhase.RUNNING, now_s
            self.running.append(request)
            self.by_slot[slot] = request
            self.count_slot(request, 1)
            self.prime(request, slot)
        self._num_left, self._num_burst_left = len(self.waiting), self.waiting.num_burst

    def count_slot(self, request: Request, by: int) -> None:
        self.num_burst_slots += by * request.is_burst
        self.num_slots_of[request.share_key] += by
        if not self.num_slots_of[request.share_key]:
            del self.num_slots_of[request.share_key]
        if not self.num_burst_slots:
            self.shares.clear()

    @property
    def num_lacking_blocks(self) -> int:
        """They wait, and not for the next step alone."""
        return min(self._num_left, len(self.waiting))

    @property
    def num_burst_without_room(self) -> int:
        return min(self._num_burst_left, self.waiting.num_burst)

    def prime(self, request: Request, slot: int) -> None:
        """Give the voice's reference codes to the decode stage. A failure ends this request only."""
        if request.row.reference is None or request.resumption is not None:
            return
        try:
            self.stage.prime(slot, request.row.reference)
        except Exception as error:
            self.fail(request, error)

    def fail(self, request: Request, error: Exception) -> None:
        self.release(request)
        self.failed.append((request, error))

    def is_runnable(self, request: Request, now_s: float) -> bool:
        """Return whether it can run and has an input."""
        row = request.row
        return self.can_run(request, now_s) and (len(row.inputs) > row.num_computed or self.fetch_input(request))

    def can_run(self, request: Request, now_s: float) -> bool:
        """Neither without text nor at its lead."""
        if request.phase is not RequestPhase.RUNNING or (request.parked and not request.has_new_text):
            return False
        return request.spec.lead_ms is None or self.wait_s(request, now_s) <= ROUNDING_S

    def wait_s(self, request: Request, now_s: float) -> float:
        """Return the time until one more frame fits into lead and one chunk, rounded up to the tick at which all rows
        at their leads step together; at most 0 when it fits now."""
        lead_ms = request.spec.lead_ms
        if lead_ms is None:
            return 0.0
        generated_s = request.generated_lead_s(now_s, self.frame_s)
        wait_s = generated_s + self.frame_s - (lead_ms / 1000 + self.chunk_s)
        tick_s = self.config.lead_step_interval_s
        if not tick_s or lead_ms / 1000 < MIN_LEAD_TICKS * tick_s:
            return wait_s
        return math.ceil((now_s + wait_s) / tick_s - ROUNDING_S) * tick_s - now_s

    def fetch_input(self, request: Request) -> bool:
        """Ask the model what to feed; False parks the request, or fails it."""
        request.has_new_text, row = False, request.row
        try:
            found = self.model.next_input(row) if request.resumption is None else self.next_inputs(request)
            if request.phase is RequestPhase.DRAINING:
                return False
        except Exception as error:
            self.fail(request, error)
            return False
        if isinstance(found, AwaitText):
            if not request.parked:
                request.parked = True
                self.parked.append(request)
            return False
        request.parked = False
        row.inputs += found.inputs
        row.sample_pending = found.sample
        return True

    def next_inputs(self, request: Request) -> AwaitText | TalkerInputs:
        """Return all inputs of a resumed request up to its last forced code, then what the model asks for.

        One that is complete needs no more of the talker."""
        found, resumption = self.model.next_input(request.row), request.resumption
        if resumption is None or resumption.is_decoding:
            return found
        # A prompt's prefix is computed by itself, so that it can be kept.
        is_complete, inputs = resumption.is_complete, request.row.inputs if resumption.is_complete else []
        while resumption.codes and isinstance(found, TalkerInputs) and (found.sample or inputs or is_complete):
            inputs += found.inputs
            if found.sample:
                self.force(request, resumption)
            found = self.model.next_input(request.row)
        if not resumption.codes:
            self.resume_decoder(request, resumption)
        if is_complete:
            return found if isinstance(found, AwaitText) else TalkerInputs([], sample=False)
        if isinstance(found, AwaitText):
            return TalkerInputs(inputs, sample=False) if inputs else found
        return TalkerInputs([*inputs, *found.inputs], found.sample)

    def force(self, request: Request, resumption: Resumption) -> None:
        outcome = self.model.force(request.row, resumption.codes.popleft())
        if isinstance(outcome, FrameOutcome):
            request.num_frames += 1
            request.loop.push(outcome.codes[0])
            resumption.frames.append(outcome.codes)
            if request.num_frames + (not resumption.is_complete) >= request.frame_cap:
                # The last frame ends the request when it is sampled.
                resumption.codes.clear()

    def resume_decoder(self, request: Request, resumption: Resumption) -> None:
        num_received = resumption.num_samples // self.stage.frame_samples
        slot, reference = request.held_slot, request.row.reference
        num_skipped = self.stage.resume(slot, reference, resumption.frames, num_received)
        resumption.num_samples -= num_skipped * self.stage.frame_samples
        resumption.is_decoding, resumption.frames = True, []
        request.num_pending_frames = self.stage.num_pending(slot)
        if resumption.is_complete:
            request.finish_reason = FinishReason.STOP
            self.retire_talker(request)
            self.stage.finalize(slot)

    def restore_prefix(self, request: Request, may_grow: bool) -> bool:
        """Fill a row that starts, or starts again, from its voice's prefix; False when blocks are short."""
        known = self.prefixes.num_positions(request.prefix_key)
        if not known:
            return True
        if not self.allocate_or_preempt(request, known, may_grow):
            return False
        self.prefixes.restore(request.prefix_key, request.block_table)
        request.row.num_computed = known
        return True

    def blocks_for(self, num_positions: int) -> int:
        return -(-num_positions // self.config.block_size)

    def allocate_or_preempt(self, request: Request, num_positions: int, may_grow: bool = True) -> bool:
        """Grow the block table to hold the positions; False, with none allocated, when blocks are short."""
        missing = self.blocks_for(num_positions) - len(request.block_table)
        if missing <= 0:
            request.lacks_blocks = False
            return True
        blocks = self.pool.allocate(missing) if may_grow else None
        request.lacks_blocks = blocks is None
        request.block_table += blocks or []
        return blocks is not None

    def preempt_for(self, urgent: Request, batch: StepBatch, now_s: float) -> None:
        """Take the blocks of a row that waits for text, else of the row furthest ahead of playback; they serve once
        this step has passed.

        Unless it waits for text it must be well ahead of the urgent one, or they would take turns recomputing each
        other; when nothing at all can run, the least urgent row gives way whatever its lead.
        """
        holders = [r for r in self.running if r.block_table and r.phase is RequestPhase.RUNNING and r is not urgent]
        if not holders or self.pool.num_quarantined:
            return
        victim = max(holders, key=lambda r: (r.waits_for_text, r.priority()))
        ahead_s = victim.clock.lead_s(now_s) - urgent.clock.lead_s(now_s)
        is_less_urgent = victim.priority() > urgent.priority()
        is_behind_paced = victim.is_burst and not urgent.is_burst
        can_wait = is_behind_paced or ahead_s > self.config.preempt_margin_s or not len(batch)
        if victim.waits_for_text or (is_less_urgent and can_wait):
            batch.drop(victim)
            self.preempt(victim)

    def preempt(self, request: Request) -> None:
        """Its keys and values will be computed again from its inputs; codes, noise and decoder state stay."""
        self.pool.free(request.block_table)
        request.block_table = []
        request.row.num_computed = 0
        request.lacks_blocks = True
        self.num_preemptions += 1

    def retire_talker(self, request: Request) -> None:
        """The last frame is sampled: blocks go back at once, the slot stays until the frames are decoded."""
        self.pool.free(request.block_table)
        request.block_table = []
        request.lacks_blocks = False
        request.phase = RequestPhase.DRAINING

    def release(self, request: Request) -> None:
        if request.phase is RequestPhase.WAITING:
            self.waiting.remove(request)
        if request.block_table:
            self.pool.free(request.block_table)
            request.block_table = []
        if request.slot is not None:
            self.stage.release(request.slot)
            self.running.remove(request)
            self.count_slot(request, -1)
            del self.by_slot[request.slot]
            request.slot = None
        request.phase = RequestPhase.DONE

    def next_wake_s(self, now_s: float) -> float | None:
        """Return when the first row that waits at its lead may run again; None when no row waits for the clock."""
        at_lead = [r for r in self.running if r.phase is RequestPhase.RUNNING and not r.waits_for_text]
        waits = [wait_s for request in at_lead if (wait_s := self.wait_s(request, now_s)) > ROUNDING_S]
        return now_s + min(waits) if waits else None
