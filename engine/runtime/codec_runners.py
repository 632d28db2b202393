"""How the calls of a decode stage run: at once in plain torch, or over captured graphs beside the frames."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.memory.lru_cache import LruCache
from engine.models.base import DecodeProgramProtocol, Pcm, VoiceReference
from engine.program.buffers import to_device
from engine.program.capture import GraphSet, bucket_for, buckets_up_to
from engine.program.decode_executor import DecodeExecutor, PendingWork
from engine.program.isolate import isolate
from engine.runtime.call_planner import CALL_FRAMES, MAX_CALL_FRAMES_TOTAL, Numbers, all_calls, padded_rows
from engine.runtime.codec_stage import CodecStage, RunningCall

DUMMY_SLOT = 0
# Of one recording in one round, so that running rows never wait for all of it.
SLICE_FRAMES = 32
# Slots that decode known frames in one round, the oldest first: many clients of a dead gateway come at once.
MAX_REPLAYS = 2
# Sets of host buffers for calls in flight: two rounds of a crowd. To make one more stops the device.
NUM_RESULTS = 16


def describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


# -- without graphs ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class FinishedCall:
    pcm: Pcm
    is_done = True

    def collect(self) -> tuple[Pcm, npt.NDArray[np.bool_]]:
        return self.pcm, np.asarray(np.isfinite(self.pcm).all(-1))


@dataclass(slots=True)
class PrimingJob:
    reference: VoiceReference
    num_done: int = 0


class EagerCodec:
    """Decodes with the codec's module, in calls of few shapes; slot 0 is the dummy that fills them up."""

    max_waiting_frames: int | None = None

    def __init__(self, module: torch.nn.Module, num_slots: int, max_cached_references: int) -> None:
        self.module = module
        self.frame_samples: int = module.config.frame_samples
        self.num_codes: int = module.config.codebook_size
        self.state = module.new_state(num_slots + 1)
        # By slot, fed and not yet decoded.
        self.frames: dict[int, list[Sequence[int]]] = {}
        self.jobs: dict[int, PrimingJob] = {}
        self.errors: dict[int, str] = {}
        # By slot, frames of a replay that were not decoded yet.
        self.replays: dict[int, int] = {}
        # Decoder states behind the last references.
        self.references: LruCache[tuple[Tensor, Tensor]] = LruCache(max_cached_references)

    @torch.inference_mode()
    def warm_up(self, max_s: float) -> None:
        """Decode dummy frames in every shape that a call can have, as far as the time allows."""
        end_s = time.perf_counter() + max_s
        for num_rows, num_frames in all_calls():
            frame = [0] * self.module.config.num_quantizers
            self.advance([DUMMY_SLOT] * num_rows, [[frame] * num_frames] * num_rows)
            if time.perf_counter() > end_s:
                return

    def rows_of(self, num_frames: int) -> int:
        return max(1, MAX_CALL_FRAMES_TOTAL // num_frames)

    def open(self, slot: int) -> None:
        self.state.values[slot] = 0
        self.state.num_frames[slot] = 0
        self.frames[slot] = []

    def close(self, slot: int) -> None:
        del self.frames[slot]
        self.jobs.pop(slot, None)
        self.errors.pop(slot, None)
        self.replays.pop(slot, None)

    def push(self, slot: int, codes: Sequence[int]) -> None:
        bad = [code for code in codes if not 0 <= code < self.num_codes]
        if bad:
            raise ValueError(f"code {bad[0]} is outside the codebook of {self.num_codes}")
        self.frames[slot].append(codes)

    def replay(self, slot: int, first: int, frames: Sequence[Sequence[int]]) -> Sequence[tuple[int, RunningCall]]:
        for codes in frames:
            self.push(slot, codes)
        if frames:
            self.replays[slot] = len(frames)
        return ()

    def launch(self, slots: Numbers, firsts: Numbers, num_frames: int) -> FinishedCall:
        """Decode at once; a slot that raises fails alone."""
        pcm = np.zeros((len(slots), num_frames * self.frame_samples), np.float32)
        places = {slot: row for row, slot in enumerate(slots.tolist())}

        def decode(some: Sequence[int]) -> list[None]:
            found = self.advance(some, [self.frames[slot][:num_frames] for slot in some])
            pcm[[places[slot] for slot in some]] = found.float().cpu().numpy()
            for slot in some:
                del self.frames[slot][:num_frames]
                if (num_left := self.replays.pop(slot, 0) - num_frames) > 0:
                    self.replays = {slot: num_left} | self.replays
            return []

        isolate(decode, list(places), self._fail)
        return FinishedCall(pcm)

    def _fail(self, slot: int, error: Exception) -> None:
        self.errors[slot] = describe(error)

    def slot_error(self, slot: int) -> str | None:
        return self.errors.pop(slot, None)

    def advance(self, slots: Sequence[int], frames: Sequence[Sequence[Sequence[int]]]) -> Tensor:
        """frames [rows][count][codebooks] -> PCM; the slots' state follows."""
        num_padding = padded_rows(len(slots)) - len(slots)
        device = self.state.values.device
        codes = torch.tensor([*frames, *[frames[0]] * num_padding], device=device).transpose(1, 2)
        index = torch.tensor([*slots, *[DUMMY_SLOT] * num_padding], device=device)
        state = type(self.state)(self.state.values.index_select(0, index), self.state.num_frames[index])
        pcm: Tensor = self.module(codes, state)
        self.state.values.index_copy_(0, index, state.values)
        self.state.num_frames[index] = state.num_frames
        return pcm[: len(slots)]

    @property
    def is_priming(self) -> bool:
        return bool(self.jobs)

    def prime(self, slot: int, reference: VoiceReference, num_emitted: int = 0) -> None:
        if not self._restore(slot, reference.key):
            self.jobs[slot] = PrimingJob(reference)

    def begin_round(self) -> list[int]:
        """Decode one slice of the oldest reference."""
        if self.jobs:
            slot, job = next(iter(self.jobs.items()))
            isolate(lambda _: self._advance_job(slot, job), [slot], self._fail)
            if slot in self.errors or job.num_done == len(job.reference.frames):
                del self.jobs[slot]
        return [*self.jobs, *list(self.replays)[MAX_REPLAYS:]]

    def _advance_job(self, slot: int, job: PrimingJob) -> list[None]:
        reference = job.reference
        if job.num_done == 0 and self._restore(slot, reference.key):
            job.num_done = len(reference.frames)
            return []
        frames = reference.frames[job.num_done : job.num_done + SLICE_FRAMES]
        self.advance([slot], [[list(codes) for codes in frames]])
        job.num_done += len(frames)
        if job.num_done == len(reference.frames) and reference.key is not None:
            state = self.state.values[slot].clone(), self.state.num_frames[slot].clone()
            self.references.put(reference.key, state)
        return []

    def _restore(self, slot: int, key: Hashable) -> bool:
        kept = self.references.get(key)
        if kept is not None:
            self.state.values[slot], self.state.num_frames[slot] = kept
        return kept is not None


def make_eager_stage(
    module: torch.nn.Module, num_slots: int, gather_slack_s: float, max_cached_references: int = 32
) -> CodecStage:
    codec = EagerCodec(module, num_slots, max_cached_references)
    return CodecStage(codec, num_slots, module.config.sample_rate, gather_slack_s)


# -- over graphs -------------------------------------------------------------------------------------------------


class DecodeHostBuffers:
    """Buffers of one call: its inputs on the host, and its PCM.

    ``indices``: slot, row and column of the ring, frames decoded before.
    """

    def __init__(self, program: DecodeProgramProtocol, num_samples: int | None = None) -> None:
        """``num_samples`` of PCM, by default as many as a call can have."""
        is_cuda = program.device.type == "cuda"
        pcm_shape = program.pcm.shape if num_samples is None else (num_samples,)
        self.indices = torch.zeros(4, program.max_rows, dtype=torch.int64, pin_memory=is_cuda)
        self.pcm = torch.zeros(pcm_shape, dtype=torch.float32, pin_memory=is_cuda)
        self.finite = torch.zeros(program.max_rows, dtype=torch.bool, pin_memory=is_cuda)
        # The same memory: what a tensor is asked for while a listener waits takes 10 us after a pause.
        self.index_array, self.pcm_array = self.indices.numpy(), self.pcm.numpy()
        self.finite_array = self.finite.numpy()


@dataclass(slots=True)
class GraphCall:
    """A call in flight; its buffers go back to ``free`` when it is collected."""

    num_rows: int
    num_samples: int
    results: DecodeHostBuffers
    done: PendingWork
    free: list[DecodeHostBuffers]

    @property
    def is_done(self) -> bool:
        return self.done.is_done

    def collect(self) -> tuple[Pcm, npt.NDArray[np.bool_]]:
        self.done.wait()
        self.free.append(self.results)
        pcm = self.results.pcm_array[: self.num_rows * self.num_samples].reshape(self.num_rows, -1)
        return pcm, self.results.finite_array[: self.num_rows]


class GraphCodec:
    """Decodes over graphs: frames go from the talker's ring to PCM without passing the host."""

    # A reference is queued on the device at once.
    is_priming = False

    def __init__(
        self,
        program: DecodeProgramProtocol,
        graphs: GraphSet,
        lane: DecodeExecutor,
        num_slots: int,
        max_cached_references: int = 32,
    ) -> None:
        self.program, self.graphs, self.lane = program, graphs, lane
        self.frame_samples = program.frame_samples
        # Beyond half of the ring its frames would be overwritten.
        self.max_waiting_frames: int | None = program.ring.shape[1] // 2
        self.num_primed = np.zeros(num_slots + 1, np.int64)
        self.buckets = {frames: buckets_up_to(program.rows_of(frames)) for frames in reversed(CALL_FRAMES)}
        self.free_buffers = [DecodeHostBuffers(program) for _ in range(NUM_RESULTS)]
        # Decoder states behind the last references; touched by the lane's work alone.
        self.references: LruCache[tuple[Tensor, Tensor]] = LruCache(max_cached_references)
        # Of slots of which nothing has been decoded since.
        self.primings: dict[int, PendingWork] = {}

    def rows_of(self, num_frames: int) -> int:
        return self.program.rows_of(num_frames)

    @property
    def max_reference_bytes(self) -> int:
        """Bytes of the decoder states behind as many references as are cached, and a new one before it evicts."""
        program = self.program
        return (self.references.max_entries + 1) * (program.state[0].nbytes + program.past[:, 0].nbytes)

    def open(self, slot: int) -> None:
        self.num_primed[slot] = 0

    def close(self, slot: int) -> None:
        self.primings.pop(slot, None)

    def push(self, slot: int, codes: Sequence[int]) -> None:
        """Nothing to do: the codes are in the ring already."""

    def replay(self, slot: int, first: int, frames: Sequence[Sequence[int]]) -> Sequence[tuple[int, RunningCall]]:
        """Queue calls of up to ``SLICE_FRAMES`` frames, whose PCM waits in buffers of their own."""
        starts = range(0, len(frames), SLICE_FRAMES)
        return [self._replay_slice(slot, first + start, frames[start : start + SLICE_FRAMES]) for start in starts]

    def _replay_slice(self, slot: int, first: int, frames: Sequence[Sequence[int]]) -> tuple[int, RunningCall]:
        num_past, num_samples = int(self.num_primed[slot]) + first, len(frames) * self.frame_samples
        results = DecodeHostBuffers(self.program, num_samples)

        def decode() -> None:
            self._run_frames(slot, num_past, frames, results)

        return len(frames), GraphCall(1, num_samples, results, self.lane.run(decode), [])

    def begin_round(self) -> list[int]:
        self.lane.wait_for_codes()
        return []

    def launch(self, slots: Numbers, firsts: Numbers, num_frames: int) -> GraphCall:
        if not self.free_buffers:
            self.free_buffers.append(DecodeHostBuffers(self.program))
        results, num_rows = self.free_buffers.pop(), len(slots)
        num_samples = num_frames * self.frame_samples
        places = slots, slots, firsts % self.program.ring.shape[1], self.num_primed[slots] + firsts
        results.index_array[:, :num_rows] = places

        def decode() -> None:
            self._run(results.indices, num_rows, num_frames)
            self._download(results, num_rows, num_rows * num_samples)

        return GraphCall(num_rows, num_samples, results, self.lane.run(decode), self.free_buffers)

    def _run(self, places: Tensor, num_rows: int, num_frames: int) -> None:
        """Upload what lies on the host, pad with the dummy slot, replay."""
        program = self.program
        bucket = self.bucket(num_rows, num_frames)
        places[:, num_rows:bucket] = DUMMY_SLOT
        for device_side, mine in zip(
            (program.slots, program.sources, program.starts, program.first), places, strict=True
        ):
            device_side[:bucket].copy_(mine[:bucket], non_blocking=True)
        self.graphs.replay(bucket, num_frames)

    def bucket(self, num_rows: int, num_frames: int) -> int:
        return bucket_for(self.buckets[num_frames], num_rows)

    @property
    def call_shapes(self) -> list[tuple[int, int]]:
        """(rows, frames) of every call there can be."""
        return [(rows, frames) for frames, buckets in self.buckets.items() for rows in buckets]

    def _download(self, results: DecodeHostBuffers, num_rows: int, num_samples: int) -> None:
        results.pcm[:num_samples].copy_(self.program.pcm[:num_samples], non_blocking=True)
        results.finite[:num_rows].copy_(self.program.finite[:num_rows], non_blocking=True)

    def slot_error(self, slot: int) -> str | None:
        try:
            if priming := self.primings.pop(slot, None):
                priming.wait()
        except Exception as error:
            return describe(error)
        return None

    def prime(self, slot: int, reference: VoiceReference, num_emitted: int = 0) -> None:
        # ``launch`` counts the slot's own frames from its first.
        self.num_primed[slot] = len(reference.frames) - num_emitted
        self.primings[slot] = self.lane.run(lambda: self._prime(slot, reference))

    def _prime(self, slot: int, reference: VoiceReference) -> None:
        program, kept = self.program, self.references.get(reference.key)
        if kept is None:
            self._run_frames(slot, 0, reference.frames)
            if reference.key is not None:
                self.references.put(reference.key, (program.state[slot].clone(), program.past[:, slot].clone()))
        else:
            program.state[slot], program.past[:, slot] = kept

    def _run_frames(
        self, slot: int, num_past: int, frames: Sequence[Sequence[int]], results: DecodeHostBuffers | None = None
    ) -> None:
        """Queue them through the last row of the ring, which no slot uses; nothing waits for the device.

        ``results`` receive their PCM."""
        program, source = self.program, self.program.ring.shape[0] - 1
        parts = calls_of(len(frames))
        codes = to_device([list(frame) for frame in frames], torch.int64, program.device)
        places = torch.zeros(len(parts), 4, self.bucket(1, CALL_FRAMES[0]), dtype=torch.int64)
        places[:, 0, 0], places[:, 1, 0] = slot, source
        places[:, 3, 0] = torch.tensor([num_past + start for start, _ in parts])
        for (start, count), mine in zip(parts, to_device(places, torch.int64, program.device), strict=True):
            program.ring[source, :count] = codes[start : start + count]
            self._run(mine, 1, count)
            if results is not None:
                first, end = start * self.frame_samples, (start + count) * self.frame_samples
                results.pcm[first:end].copy_(program.pcm[: end - first], non_blocking=True)
                # What is not finite stays in the slot's state: the last flag is enough.
                results.finite[:1].copy_(program.finite[:1], non_blocking=True)


def calls_of(num_frames: int) -> list[tuple[int, int]]:
    """First frame and size of each of the fewest calls that decode ``num_frames`` frames one after the other."""
    parts: list[tuple[int, int]] = []
    start = 0
    for size in CALL_FRAMES:
        while num_frames - start >= size:
            parts.append((start, size))
            start += size
    return parts
