"""The continuous-batching loop body: collect, schedule, run, decode, emit, retire.

    read commands | collect frame n-1 | read commands | schedule n | run frame n | decode | hand over

A runner over graphs works ahead: it is given frame n, and over a ring the stage its decoding, before the host has seen
frame n, so that scheduling, text and hand-over run beside the device. An eager runner returns frame n at once.

Owned by one thread; it knows no clock but the one it is given, no asyncio and no sockets. What leaves it are events
tagged with the epoch of their request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from math import inf
from typing import NamedTuple

import torch

from engine.api import EngineStats, FinishReason, SpeechChunk, SpeechRequest
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.memory.block_pool import BlockPool, PrefixCache
from engine.memory.budget import free_bytes
from engine.memory.kv_cache import PagedKV
from engine.models.base import (
    AwaitText,
    ControlOutcome,
    DecodedAudio,
    DecodeStage,
    FailedOutcome,
    FrameOutcome,
    SpeechModel,
    StopOutcome,
)
from engine.process import freeze_gc
from engine.runtime.call_planner import CALL_ROWS
from engine.runtime.codec_runners import GraphCodec
from engine.runtime.codec_stage import CodecStage
from engine.runtime.decoding import CallDecoding, Decoding, RoundDecoding
from engine.runtime.request import Request, RequestPhase, ScheduledWork, StepBatch
from engine.runtime.request_manager import RequestManager
from engine.runtime.runner import GraphRunner, ModelRunner, Result, StepTimings
from engine.runtime.scheduler import Scheduler
from engine.runtime.step_model import StepTimeTable
from engine.runtime.warm_up import capture_graphs, measure_step_times

STALL_RETRY_S = 0.01
MAX_WARM_UP_S = 2.0
# Part of the time that a frame is expected to take in which the host looks for commands. Then it waits for the device,
# whose end it notices sooner that way.
COMMANDS_SHARE = 0.85
# Between two looks for commands and at the device.
COMMANDS_INTERVAL_S = 0.0002
# A frame is expected to take as long as the shortest of its kind, and a little more after each that took longer.
FRAME_GROWTH = 1.02
# Commands between two frames, by number and time: gateways that send without end delay a step, and do not stop it.
# 1,200 listeners send fewer in a step.
MAX_COMMANDS = 2_000
MAX_COMMANDS_S = 0.02
CPU_KV_BYTES = 512 * 2**20
# Left free on CUDA for the workspace of the graphs.
RESERVED_BYTES = 6_144 * 2**20
# Size of the pool for each running request; 80 s of speech take about 1,100.
POSITIONS_PER_REQUEST = 1_024
MAX_CACHED_PREFIX_POSITIONS = 2_048


def kv_bytes(config: EngineConfig, device: torch.device) -> int:
    """Return the configured size; else a default on the CPU, and the free memory less a reserve on CUDA."""
    if config.kv_memory_mb is not None:
        return config.kv_memory_mb * 2**20
    if device.type != "cuda":
        return CPU_KV_BYTES
    free = free_bytes(device)
    if config.memory_gb is not None:
        return free - min(free // 2, RESERVED_BYTES)
    return max(CPU_KV_BYTES, free - RESERVED_BYTES)


def wanted_blocks(model: SpeechModel, config: EngineConfig) -> int:
    """Return the number of blocks for the average use of all requests, at least the most of one."""
    return max(config.max_running_requests * POSITIONS_PER_REQUEST, model.max_positions) // config.block_size


def blocks_allowed(model: SpeechModel, config: EngineConfig, dtype: torch.dtype, device: torch.device) -> int:
    """Return the number of blocks that are wanted, within the memory."""
    by_memory = kv_bytes(config, device) // PagedKV.block_bytes(model.kv_shape, config.block_size, dtype)
    return max(1, min(by_memory, wanted_blocks(model, config)))


class FrameKind(NamedTuple):
    """Frames of one kind take about as long on the device."""

    # Of the number of rows.
    num_bits: int
    has_prompts: bool
    is_beside_decoding: bool


class Engine:
    """Owns the stages, the memory and the requests, and steps them."""

    def __init__(
        self,
        model: SpeechModel,
        stage: DecodeStage,
        config: EngineConfig,
        make_runner: Callable[[PagedKV, PrefixCache], ModelRunner] | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        device = device or torch.device("cpu")
        self.model, self.stage, self.config = model, stage, config
        self.pool = BlockPool(config.num_blocks or blocks_allowed(model, config, dtype, device))
        self.kv = PagedKV(model.kv_shape, self.pool.num_blocks, config.block_size, dtype, device)
        self.prefixes = PrefixCache(self.kv, config.max_cached_prefixes, MAX_CACHED_PREFIX_POSITIONS)
        if make_runner is None:
            self.runner = ModelRunner(model, self.kv, self.prefixes, config)
        else:
            self.runner = make_runner(self.kv, self.prefixes)
        self.scheduler = Scheduler(model, stage, self.pool, self.prefixes, config)
        capacity = min(self.runner.max_positions, self.pool.num_blocks * config.block_size)
        self.requests = RequestManager(model, self.scheduler, config, capacity, stage.sample_rate, clock)
        self.times = StepTimings()
        self.decoding: Decoding
        if isinstance(stage, CodecStage) and isinstance(stage.codec, GraphCodec):
            self.decoding = CallDecoding(stage, stage.codec, self)
            self.scheduler.burst_model = self.scheduler.step_model
        else:
            self.decoding = RoundDecoding(stage, self)
        # Called within a step when there are events with audio that is due; the engine's loop takes them.
        self.hand_over: Callable[[], None] = lambda: None
        # Called within a step, until it is False: carries out one command, if one is there. It is read beside the
        # device, before the rows are chosen, and between small rounds of decoding.
        self.read_command: Callable[[], bool] = lambda: False
        # Called within a step while the device works and no command is there.
        self.sleep: Callable[[float], None] = time.sleep
        # Of built-in voices, by lower-case name.
        self._prefix_keys: dict[str, Hashable] = {}
        # The batch in flight, and the time since it was run.
        self._flown: tuple[StepBatch, float] | None = None
        # When the frame in flight was launched; how long a frame of each kind is expected to take.
        self._launched_s, self._frame_kind = 0.0, FrameKind(0, False, False)
        self._frame_s: dict[FrameKind, float] = {}
        # The last step got nowhere, for rows at their lead held the blocks: no use in another before this time.
        self.retry_s = 0.0

    def choose_device(self) -> None:
        """Kernels go to the device that is current on their thread."""
        if self.runner.device.type == "cuda":
            torch.cuda.set_device(self.runner.device)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Prepare the calling thread for ``run_step``: once for all steps, for it takes 55 to 65 us after a pause."""
        self.choose_device()
        with torch.inference_mode():
            yield

    @torch.inference_mode()
    def prefetch(self, voice: str) -> None:
        """Compute the voice's prefix ahead of its first request; without effect when blocks are short."""
        name = voice.lower()
        if self.prefixes.num_positions(self._prefix_keys.get(name)):
            return
        self.choose_device()
        try:
            spec = SpeechRequest(request_id="prefetch", voice=voice)
            request = self.requests.new_request(spec, epoch=-1, seed=0)
            inputs = self.model.next_input(request.row)
        except Exception:  # the requests for this voice report it
            return
        self._prefix_keys[name] = request.prefix_key
        if request.prefix_key is None or self.prefixes.num_positions(request.prefix_key):
            return
        if isinstance(inputs, AwaitText) or not self.scheduler.allocate_or_preempt(request, len(inputs.inputs)):
            return
        request.row.inputs += inputs.inputs
        work = ScheduledWork(request, len(inputs.inputs), sample=False)
        self.runner.run(StepBatch(prefills=[work]), self.times)
        self.pool.free(request.block_table)
        self.release_blocks()

    # -- the loop body -------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One round over every request that can run, on any thread."""
        with self.computing():
            self.run_step()

    def run_step(self) -> None:
        """The same on a thread that is ``computing``."""
        start = self.requests.clock()
        if self.config.commands_beside_device:
            self.read_beside_device()
        results = self.collect()
        self.record_flown(self.requests.clock() - start)
        self.process_results(results)
        num_chunks = self.decoding.emit_completed()
        # A request that came while the host waited for the device is in the next frame, and not in the one after it.
        read_s = self.requests.clock()
        self.read_commands()
        scheduled_s = self.requests.clock()
        # The time of commands is not the step's.
        start += scheduled_s - read_s
        batch = self.scheduler.schedule(scheduled_s)
        batch.record_sampling(scheduled_s)
        # A resumed row is restored once its codes are forced, when it goes on.
        parked = [request for request in self.scheduler.parked if request.resumption is None]
        self.requests.process_scheduled()
        num_chunks += self.decoding.emit_completed()
        run_s = self.requests.clock()
        self.process_results(self.runner.run(batch, self.times))
        if len(batch):
            self._launched_s = self.requests.clock()
            self._frame_kind = FrameKind(len(batch).bit_length(), bool(batch.prefills), self.decoding.in_flight)
        talker_s = self.requests.clock() - start
        num_chunks += self.decoding.decode(batch)
        self.prepare_rows(parked)
        self.retire_finished()
        made_progress = bool(len(batch) or results or num_chunks) or self.releases_or_decodes
        self.retry_s = 0.0 if made_progress else self.requests.clock() + STALL_RETRY_S
        self.release_finished()
        end = self.requests.clock()
        if self.runner.in_flight:
            self._flown = batch, end - run_s
        else:
            self.record_talker(batch, talker_s)
        self.record_step(batch, end - start)

    def read_commands(self) -> None:
        """Carry out the commands that are there, up to a number and a time."""
        until_s = self.requests.clock() + MAX_COMMANDS_S
        for _ in range(MAX_COMMANDS):
            if not self.read_command() or self.requests.clock() > until_s:
                return

    def read_beside_device(self) -> None:
        """Carry out commands until the device is done with the frame in flight: the step takes that long anyway, and
        what is done is not kept waiting. The device would wait for what came meanwhile and was not carried out."""
        until_s, is_prepared = self._launched_s + COMMANDS_SHARE * self._frame_s.get(self._frame_kind, 0.0), False
        while not self.runner.is_done:
            if self.read_command():
                is_prepared = False
                continue
            if not is_prepared:
                self.prepare_newcomers()
                is_prepared = True
                continue
            left_s = until_s - self.requests.clock()
            if left_s <= 0.0:
                return
            start = time.perf_counter()
            self.sleep(min(left_s, COMMANDS_INTERVAL_S))
            self.times.wait_s += time.perf_counter() - start

    def prepare_newcomers(self) -> None:
        """Do for requests that wait for their first step what the device would wait for in it."""
        newcomers = self.scheduler.prepare(self.requests.clock())
        self.prepare_rows(takewhile(lambda _: not self.runner.is_done, newcomers))
        self.runner.prefixes.flush()

    def prepare_rows(self, requests: Iterable[Request]) -> None:
        for request in requests:
            with suppress(Exception):  # its step reports it
                self.runner.prepare(request)

    def collect(self) -> list[Result]:
        """Return the results of the frame in flight, and note how long it took if the host waited for it."""
        is_waiting = not self.runner.is_done
        results = list(self.runner.collect(self.times))
        if is_waiting:
            spent_s, expected_s = self.requests.clock() - self._launched_s, self._frame_s.get(self._frame_kind, inf)
            self._frame_s[self._frame_kind] = min(spent_s, FRAME_GROWTH * expected_s)
        return results

    def process_results(self, results: Iterable[Result]) -> None:
        """Sampled frames go to the decode stage; a row that stopped or failed leaves the talker stage."""
        if not (results := list(results)):
            return
        self.decoding.feed(
            (request, outcome.codes) for request, outcome in results if isinstance(outcome, FrameOutcome)
        )
        for request, outcome in results:
            match outcome:
                case FrameOutcome(codes):
                    if request.phase is not RequestPhase.DONE:  # else it could not be fed
                        self.count_frame(request, codes[0])
                case ControlOutcome():
                    pass
                case StopOutcome(at_limit):
                    self.drain_decoder(request, FinishReason.LENGTH if at_limit else FinishReason.STOP)
                case FailedOutcome(message):
                    self.requests.fail(request, EngineError(message))

    def count_frame(self, request: Request, code0: int) -> None:
        request.num_frames += 1
        request.num_pending_frames += 1
        if request.first_frame_s is None:
            request.first_frame_s = self.requests.clock()
        if request.loop.push(code0):
            self.drain_decoder(request, FinishReason.LOOP)
        elif request.num_frames >= request.frame_cap:
            self.drain_decoder(request, FinishReason.LENGTH)

    def drain_decoder(self, request: Request, reason: FinishReason) -> None:
        """Nothing more to sample; what is sampled is still decoded and sent."""
        if request.phase is RequestPhase.RUNNING:
            request.finish_reason = reason
            self.scheduler.retire_talker(request)
            self.stage.finalize(request.held_slot)

    def emit(self, chunks: Iterable[DecodedAudio]) -> None:
        for chunk in chunks:
            request = self.scheduler.by_slot.get(chunk.slot)
            if request is None:
                continue  # it failed by an earlier one of these
            if chunk.error:
                self.requests.fail(request, EngineError(chunk.error))
            else:
                self.emit_chunk(request, chunk)

    def emit_chunk(self, request: Request, chunk: DecodedAudio) -> None:
        now, pcm = self.requests.clock(), chunk.pcm
        request.num_pending_frames = self.stage.num_pending(request.held_slot)
        if request.resumption is not None:
            pcm = request.resumption.skip_received(pcm)
            if not len(pcm):
                return
        start, timings = request.clock.num_emitted, None
        if request.first_chunk_s is None:
            request.first_chunk_s = now
            timings = request.timings()
        last = request.phase is RequestPhase.DRAINING and request.num_pending_frames == 0
        request.clock.emit(len(pcm), now)
        codes = self.pop_codes(request)
        event = SpeechChunk(request.spec.request_id, start, pcm, last=last, codes=codes, timings=timings)
        request.last_sent = last
        self.requests.events.append((request.epoch, event))
        request.num_chunks += 1
        if request.silence.push(pcm, armed=request.row.text.closed and not request.row.text.num_waiting):
            self.drain_decoder(request, FinishReason.SILENCE)

    def pop_codes(self, request: Request) -> bytes:
        """Codes that another engine would need to go on behind this chunk, and that were not sent before."""
        codes, start = request.row.sampled_codes, request.num_codes_sent
        end = len(codes)
        if self.stage.chunk_frames == 1:
            end = request.clock.num_emitted // self.stage.frame_samples * self.model.codes_per_step
        request.num_codes_sent = max(start, min(end, len(codes)))
        return codes[start:end].tobytes()

    def retire_finished(self) -> None:
        """Requests whose last frame has left end here."""
        for request in list(self.scheduler.running):
            if request.phase is RequestPhase.DRAINING and self.stage.num_pending(request.held_slot) == 0:
                self.requests.finish(request, request.finish_reason or FinishReason.STOP)

    def release_finished(self) -> None:
        """The step has passed: what was freed during it, or since the last one, can be lent again."""
        self.release_blocks()
        self.stage.release_quarantined()
        self.requests.report_released()
        if not self.requests.active:
            self.check_nothing_held()

    def release_blocks(self) -> None:
        if settled := self.pool.release_quarantined():
            self.kv.clear(settled)

    def check_nothing_held(self) -> None:
        """Check that an idle engine holds nothing. Raises ``AssertionError``."""
        if self.pool.num_held or self.stage.slots.num_free != self.stage.slots.num_slots or self.scheduler.running:
            slots = self.stage.slots.num_slots - self.stage.slots.num_free
            raise AssertionError(f"idle, yet {self.pool.num_held} blocks and {slots} slots are held")

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Capture every graph, unless each is captured on first use, and generate dummy frames: first uses are slow,
        and a device fault shows before the first request.

        Two frames for one row, then for more and more rows with longer texts, until it drags on.
        """
        self.choose_device()
        # Of decoding first: its kernels take longest to compile.
        graph_keys = [*self.decoding.graph_keys, *self.runner.graph_keys]
        if graph_keys and not self.config.lazy_graph_capture:
            capture_graphs(graph_keys)
        start = time.perf_counter()
        for num_rows in CALL_ROWS:
            self.warm_up_batch(num_rows)
            if self.config.lazy_graph_capture or time.perf_counter() - start > MAX_WARM_UP_S:
                break
        self.requests.events.clear()
        self.requests.num_finished = 0
        self.times.reset()
        self.scheduler.burst_model.calibrate(None)
        self.scheduler.step_model.calibrate(self.measure_step_times())
        if self.runner.device.type == "cuda":
            freeze_gc()

    def measure_step_times(self) -> StepTimeTable | None:
        """Times of steps by rows; None unless both stages run over captured graphs."""
        runner, decoding = self.runner, self.decoding
        if self.config.lazy_graph_capture or not isinstance(runner, GraphRunner):
            return None
        return measure_step_times(runner, decoding.codec) if isinstance(decoding, CallDecoding) else None

    def warm_up_batch(self, num_rows: int) -> None:
        spec = SpeechRequest(request_id="warm-up", text="a " * 3 * num_rows, text_closed=True, max_frames=2)
        for epoch in range(min(num_rows, self.config.max_running_requests)):
            self.requests.submit(spec, epoch)
        while self.has_work:
            self.step()
        for epoch in list(self.requests.active):  # the memory is too short for all of them
            self.requests.cancel(epoch)
        self.release_finished()

    # -- for the engine's loop -----------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Return whether a step now could do anything."""
        now = self.requests.clock()
        if self.requests.released or self.stage.busy or self.runner.in_flight:
            return True
        if now < self.retry_s:
            return False
        return self.scheduler.next_admitted() is not None or any(
            self.scheduler.can_run(request, now) for request in self.scheduler.running
        )

    def next_wake_s(self) -> float | None:
        """Return when ``has_work`` may turn true by itself; None when only a command can do that."""
        now = self.requests.clock()
        return self.retry_s if now < self.retry_s else self.scheduler.next_wake_s(now)

    def close(self) -> None:
        """No step follows."""
        self.decoding.close()

    @property
    def releases_or_decodes(self) -> bool:
        """Return whether later steps will free memory, or end decode calls."""
        return bool(self.stage.busy or self.requests.released or self.pool.num_quarantined)

    def record_flown(self, wait_s: float) -> None:
        """Learn the time of the batch that was in flight: that of its step, and of the wait for it."""
        if self._flown is not None:
            batch, step_s = self._flown
            self.record_talker(batch, step_s + wait_s)
        self._flown = None

    def record_talker(self, batch: StepBatch, seconds: float) -> None:
        """Learn the talker's part of a step, where bursts have a model of their own."""
        if self.scheduler.burst_model is not self.scheduler.step_model:
            self.scheduler.burst_model.note_step(batch, seconds)

    def record_step(self, batch: StepBatch, seconds: float) -> None:
        self.times.total_s += seconds
        self.times.last_s = seconds
        self.times.num_steps += 1
        self.times.num_rows += len(batch)
        self.scheduler.step_model.note_step(batch, seconds)

    def stats(self) -> EngineStats:
        running = self.scheduler.running
        return EngineStats(
            num_waiting=self.scheduler.num_lacking_blocks,
            num_waiting_burst=self.scheduler.num_burst_without_room,
            num_running=len(running),
            num_parked=sum(request.parked for request in running),
            num_steps=self.times.num_steps,
            blocks_free=self.pool.num_free,
            blocks_total=self.pool.num_blocks,
            slots_free=self.stage.slots.num_free,
            slots_total=self.stage.slots.num_slots,
            step_ms=1000 * self.times.last_s,
            num_preemptions=self.scheduler.num_preemptions,
            num_finished=self.requests.num_finished,
            num_bounded=getattr(self.stage, "num_bounded", 0),
        )
