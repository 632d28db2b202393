"""The decode stage over graphs: frames go from the talker's ring to PCM without passing the host.

A round is launched before the frames it decodes are known on the host: rows of the step in flight are promised one
frame each. What comes of a promise that is not kept (the row stopped) is dropped when the round is collected.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.models.base import DecodedAudio, DecodeProgramProtocol, VoiceReference
from engine.program.buffers import to_device
from engine.program.capture import GraphSet, bucket_for, buckets_up_to
from engine.program.decode_executor import DecodeExecutor, PendingWork
from engine.program.slots import SlotTable
from engine.runtime.call_planner import (
    CALL_FRAMES,
    GATHER_FRAMES,
    NO_PREFERENCE,
    Numbers,
    Seconds,
    limit_round,
    plan_round,
    split_arrays_into_calls,
)

NOT_FINITE = "the decoder's output is not finite"
# Sets of host buffers for calls in flight: two rounds of a crowd. To make one more stops the device.
NUM_RESULTS = 16
MIN_ROUND_FRAMES = 64
# Frames of one round, for each slot in use: a little more than a step makes.
ROUND_SHARE = 1.25


@dataclass(slots=True)
class DecodeCall:
    """One launched call: slot, generation and first frame of each row."""

    slots: Numbers
    generations: Numbers
    firsts: Numbers
    num_frames: int
    # How long the first of its listeners can wait.
    slack_s: float
    results: DecodeHostBuffers
    done: PendingWork


class DecodeHostBuffers:
    """Buffers of one call: its inputs on the host, and its PCM.

    ``places``: slot, row and column of the ring, frames decoded before.
    """

    def __init__(self, program: DecodeProgramProtocol) -> None:
        is_cuda = program.device.type == "cuda"
        self.indices = torch.zeros(4, program.max_rows, dtype=torch.int64, pin_memory=is_cuda)
        self.pcm = torch.zeros(program.pcm.shape, dtype=torch.float32, pin_memory=is_cuda)
        self.finite = torch.zeros(program.max_rows, dtype=torch.bool, pin_memory=is_cuda)


class GraphDecodeStage:
    """``step`` is a whole round; a pipelined engine calls ``launch`` and, a step later, ``collect``."""

    chunk_frames = 1

    def __init__(
        self,
        program: DecodeProgramProtocol,
        graphs: GraphSet,
        lane: DecodeExecutor,
        num_slots: int,
        sample_rate: int,
        gather_slack_s: float,
        max_cached_references: int = 32,
    ) -> None:
        self.program, self.graphs, self.lane = program, graphs, lane
        self.sample_rate, self.frame_samples = sample_rate, program.frame_samples
        self.gather_slack_s = gather_slack_s
        self.slots = SlotTable(num_slots)
        # Frames of each slot's present holder.
        self.num_primed, self.num_fed, self.num_launched, self.num_emitted = (
            self.slots.new_array(np.int64) for _ in range(4)
        )
        self.speculated, self.final = (self.slots.new_array(np.bool_) for _ in range(2))
        self.buckets = {frames: buckets_up_to(program.rows_of(frames)) for frames in reversed(CALL_FRAMES)}
        self.calls: deque[DecodeCall] = deque()
        self.free_buffers = [DecodeHostBuffers(program) for _ in range(NUM_RESULTS)]
        # Touched by the lane's work alone.
        self.references: OrderedDict[Hashable, tuple[Tensor, Tensor]] = OrderedDict()
        self.max_cached_references = max_cached_references
        # Of slots of which nothing has been decoded since.
        self.primings: dict[int, PendingWork] = {}
        # Some that could have been decoded in the last round were not.
        self.has_deferred = False

    def reserve(self) -> int | None:
        return self.slots.reserve()

    @property
    def num_waiting(self) -> Numbers:
        return self.num_fed + self.speculated - self.num_launched

    def feed(self, slot: int, codes: Sequence[int]) -> None:
        """The codes are in the ring already; they are given for the count alone."""
        self.feed_batch([slot])

    def feed_batch(self, slots: Sequence[int]) -> None:
        """One frame of each of these different slots."""
        self.num_fed[slots] += 1
        self.speculated[slots] = False

    def speculate(self, slots: Sequence[int]) -> None:
        """The step in flight makes a frame of each of these slots, unless its row stops."""
        self.speculated[slots] = True

    def finalize(self, slot: int) -> None:
        self.final[slot] = True
        self.speculated[slot] = False

    def num_pending(self, slot: int) -> int:
        return int(self.num_fed[slot] - self.num_emitted[slot])

    @property
    def busy(self) -> bool:
        """Frames that gather do not count: their listeners have lead, and time or more frames will bring them on."""
        return bool(self.calls) or self.has_deferred or bool((self.final & (self.num_waiting > 0)).any())

    def release(self, slot: int) -> None:
        self.primings.pop(slot, None)
        self.slots.release(slot)

    def release_quarantined(self) -> None:
        self.slots.release_quarantined()

    # -- rounds --------------------------------------------------------------------------------------------------

    def step(
        self, slack_s: Mapping[int, float], wanted_frames: Mapping[int, int] = NO_PREFERENCE
    ) -> list[DecodedAudio]:
        slack, wanted = np.zeros(self.slots.num_slots + 1), np.full(self.slots.num_slots + 1, GATHER_FRAMES)
        slack[list(slack_s)] = list(slack_s.values())
        wanted[list(wanted_frames)] = list(wanted_frames.values())
        return self.collect(self.launch(slack, wanted))

    def launch(self, slack_s: Seconds, wanted_frames: Numbers) -> int:
        """Queue one round on the device, given what ``step`` is, by slot; how many calls are out now."""
        waiting = self.num_waiting
        slots, counts = plan_round(waiting, slack_s, wanted_frames, self.final, self.gather_slack_s)
        can_be_put_off = waiting[slots] < self.program.ring.shape[1] // 2  # else the ring would run over its frames
        most = max(MIN_ROUND_FRAMES, round(ROUND_SHARE * (self.slots.num_slots - self.slots.num_free)))
        num_due = len(slots)
        slots, counts = limit_round(slots, counts, np.where(can_be_put_off, slack_s[slots], 0.0), most)
        self.has_deferred = len(slots) < num_due
        self.lane.wait_for_codes()
        for own, count in split_arrays_into_calls(slots, counts, slack_s, self.program.rows_of):
            self._launch_call(own, count, float(slack_s[own].min()))
        return len(self.calls)

    def _launch_call(self, slots: Numbers, count: int, slack_s: float) -> None:
        if not self.free_buffers:
            self.free_buffers.append(DecodeHostBuffers(self.program))
        results = self.free_buffers.pop()
        firsts = self.num_launched[slots]
        ring_length = self.program.ring.shape[1]
        places = slots, slots, firsts % ring_length, self.num_primed[slots] + firsts
        results.indices.numpy()[:, : len(slots)] = places
        self.num_launched[slots] += count

        def decode() -> None:
            self._run(results.indices, len(slots), count)
            self._download(results, len(slots), count)

        self.calls.append(
            DecodeCall(slots, self.slots.generations[slots], firsts, count, slack_s, results, self.lane.run(decode))
        )

    def _run(self, places: Tensor, num_rows: int, num_frames: int) -> None:
        """Upload what lies on the host, pad with the dummy slot, replay."""
        program = self.program
        bucket = self.bucket(num_rows, num_frames)
        places[:, num_rows:bucket] = 0
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

    def _download(self, results: DecodeHostBuffers, num_rows: int, num_frames: int) -> None:
        program = self.program
        samples = num_rows * num_frames * program.frame_samples
        results.pcm[:samples].copy_(program.pcm[:samples], non_blocking=True)
        results.finite[:num_rows].copy_(program.finite[:num_rows], non_blocking=True)

    @property
    def is_done(self) -> bool:
        """The oldest call can be collected without a wait."""
        return bool(self.calls) and self.calls[0].done.is_done

    def collect(self, num_calls: int) -> list[DecodedAudio]:
        """The PCM of the oldest ``num_calls`` calls, once they have passed."""
        found: list[DecodedAudio] = []
        for _ in range(num_calls):
            call = self.calls.popleft()
            call.done.wait()
            found += self._decoded(call)
            self.free_buffers.append(call.results)
        return found

    def _decoded(self, call: DecodeCall) -> list[DecodedAudio]:
        """Return the chunks of a call, without those of released slots and of calls that were not needed.

        Each chunk is a copy of its own: a reader that is slow with one must not keep those of all.
        """
        size, slots = self.frame_samples, call.slots
        counts = np.minimum(call.num_frames, self.num_fed[slots] - call.firsts)
        counts[self.slots.generations[slots] != call.generations] = 0
        kept = counts > 0
        self.num_emitted[slots[kept]] += counts[kept]
        pcm = call.results.pcm[: len(slots) * call.num_frames * size].numpy().reshape(len(slots), -1)
        finite = call.results.finite.numpy()[: len(slots)].tolist()
        return [
            DecodedAudio(slot, pcm[i, : count * size].copy(), error=self._error(slot, finite[i]))
            for i, (slot, count) in enumerate(zip(slots.tolist(), counts.tolist(), strict=True))
            if count > 0
        ]

    def _error(self, slot: int, is_finite: bool) -> str | None:
        """Return the error of a call's row, also of the priming of its slot."""
        try:
            if priming := self.primings.pop(slot, None):
                priming.wait()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None if is_finite else NOT_FINITE

    # -- what a slot has heard before ----------------------------------------------------------------------------

    def prime(self, slot: int, reference: VoiceReference) -> None:
        """Queue the reference's frames, or what is kept of having decoded them. What that raises in another thread is
        told with the slot's first chunk."""
        self.num_primed[slot] = len(reference.frames)
        self.primings[slot] = self.lane.run(lambda: self._prime(slot, reference))

    def _prime(self, slot: int, reference: VoiceReference) -> None:
        program, kept = self.program, self.references.get(reference.key)
        if kept is None:
            self._prime_frames(slot, reference.frames)
            kept = program.state[slot].clone(), program.past[:, slot].clone()
            self.references[reference.key] = kept
        else:
            program.state[slot], program.past[:, slot] = kept
        self.references.move_to_end(reference.key)
        while len(self.references) > self.max_cached_references:
            self.references.popitem(last=False)

    def _prime_frames(self, slot: int, frames: Sequence[Sequence[int]]) -> None:
        """Queue them through the last row of the ring, which no slot uses; nothing waits for the device."""
        program, source = self.program, self.program.ring.shape[0] - 1
        parts = calls_of(len(frames))
        codes = to_device([list(frame) for frame in frames], torch.int64, program.device)
        places = torch.zeros(len(parts), 4, self.bucket(1, CALL_FRAMES[0]), dtype=torch.int64)
        places[:, 0, 0], places[:, 1, 0] = slot, source
        places[:, 3, 0] = torch.tensor([start for start, _ in parts])
        for (start, count), mine in zip(parts, to_device(places, torch.int64, program.device), strict=True):
            program.ring[source, :count] = codes[start : start + count]
            self._run(mine, 1, count)


def calls_of(num_frames: int) -> list[tuple[int, int]]:
    """First frame and size of each of the fewest calls that decode ``num_frames`` frames one after the other."""
    parts: list[tuple[int, int]] = []
    start = 0
    for size in CALL_FRAMES:
        while num_frames - start >= size:
            parts.append((start, size))
            start += size
    return parts
