"""The decode stage over graphs: frames go from the talker's ring to PCM without passing the host.

A round is launched before the frames it decodes are known on the host: rows of the step in flight are promised one
frame each. What comes of a promise that is not kept (the row stopped) is dropped when the round is collected.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.cache.block_pool import BlockPool
from engine.decode.batcher import ANY, CALL_FRAMES, plan_calls
from engine.graphs.buffers import Done
from engine.graphs.capture import GraphSet, buckets_up_to, fitting
from engine.models.base import Decoded, Reference
from engine.transfer import to_device

NUM_RESULTS = 8
"""Sets of host buffers for rounds in flight."""


LEAST_ROUND_FRAMES = 64
ROUND_SHARE = 1.25
"""Frames of one round, for each slot in use: a little more than a step makes."""


def spread(calls: Mapping[int, Sequence[int]], slack_s: Mapping[int, float], max_frames: int) -> dict[int, list[int]]:
    """As much of ``calls`` (frames a row -> slots) as makes ``max_frames``, those with least slack first.

    Slots that began together gather together: without this all would decode many frames in one step, and none in the
    next, and whoever waits for a first frame would wait for all of theirs.
    """
    ranked = sorted((slack_s.get(slot, 0.0), slot, count) for count, slots in calls.items() for slot in slots)
    chosen: dict[int, list[int]] = {}
    for slack, slot, count in ranked:
        if max_frames <= 0 and slack > 0.0:
            break
        chosen.setdefault(count, []).append(slot)
        max_frames -= count
    return chosen


class DecodeProgram(Protocol):
    """What the stage asks of a family: static buffers and a computation over them (``codec_program``)."""

    device: torch.device
    max_rows: int
    frame_samples: int
    ring: Tensor
    slots: Tensor
    sources: Tensor
    starts: Tensor
    first: Tensor
    pcm: Tensor
    finite: Tensor
    past: Tensor
    state: Tensor

    def rows_of(self, num_frames: int) -> int: ...
    def run(self, num_rows: int, num_frames: int) -> None: ...


@dataclass(slots=True)
class SlotUse:
    """Frames of one slot's present holder; ``life`` tells holders apart."""

    life: int
    num_primed: int = 0
    num_fed: int = 0
    num_launched: int = 0
    num_emitted: int = 0
    promised: bool = False

    @property
    def num_waiting(self) -> int:
        return self.num_fed + int(self.promised) - self.num_launched


@dataclass(slots=True)
class Call:
    """One launched call: (slot, life, first frame) a row."""

    rows: list[tuple[int, int, int]]
    num_frames: int
    results: HostResults
    done: Done


class HostResults:
    """Where one call's inputs leave the host and its PCM arrives."""

    def __init__(self, program: DecodeProgram) -> None:
        is_cuda = program.device.type == "cuda"
        self.places = torch.zeros(4, program.max_rows, dtype=torch.int64, pin_memory=is_cuda)
        self.pcm = torch.zeros(program.pcm.shape, dtype=torch.float32, pin_memory=is_cuda)
        self.finite = torch.zeros(program.max_rows, dtype=torch.bool, pin_memory=is_cuda)


class GraphDecode:
    """``step`` is a whole round; a pipelined engine calls ``launch`` and, a step later, ``collect``."""

    chunk_frames = 1

    def __init__(
        self,
        program: DecodeProgram,
        graphs: GraphSet,
        num_slots: int,
        sample_rate: int,
        gather_slack_s: float,
        max_kept_references: int = 32,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        self.program, self.graphs, self.stream = program, graphs, stream
        self.sample_rate, self.frame_samples = sample_rate, program.frame_samples
        self.gather_slack_s = gather_slack_s
        self.pool = BlockPool(num_slots)
        self.buckets = {frames: buckets_up_to(program.rows_of(frames)) for frames in reversed(CALL_FRAMES)}
        self.uses: dict[int, SlotUse] = {}
        self.final: set[int] = set()
        self.calls: deque[Call] = deque()
        self.spare = [HostResults(program) for _ in range(NUM_RESULTS)]
        self.references: OrderedDict[Hashable, tuple[Tensor, Tensor]] = OrderedDict()
        self.max_kept_references = max_kept_references
        self.num_lives = 0

    @property
    def num_slots(self) -> int:
        return self.pool.num_blocks

    @property
    def num_free(self) -> int:
        return self.pool.num_free

    def reserve(self) -> int | None:
        slots = self.pool.allocate(1)
        if slots is None:
            return None
        self.num_lives += 1
        self.uses[slots[0]] = SlotUse(self.num_lives)
        return slots[0]

    def feed(self, slot: int, codes: Sequence[int]) -> None:
        """The codes are in the ring already; they are given for the count alone."""
        use = self.uses[slot]
        use.num_fed += 1
        use.promised = False

    def promise(self, slot: int) -> None:
        """The step in flight makes a frame of this slot, unless its row stops."""
        self.uses[slot].promised = True

    def finalize(self, slot: int) -> None:
        self.final.add(slot)
        self.uses[slot].promised = False

    def num_pending(self, slot: int) -> int:
        use = self.uses[slot]
        return use.num_fed - use.num_emitted

    @property
    def busy(self) -> bool:
        return bool(self.calls) or any(use.num_waiting > 0 for use in self.uses.values())

    def release(self, slot: int) -> None:
        del self.uses[slot]
        self.final.discard(slot)
        self.pool.free([slot])

    def settle(self) -> None:
        self.pool.settle()

    # -- rounds --------------------------------------------------------------------------------------------------

    def step(self, slack_s: Mapping[int, float], wanted_frames: Mapping[int, int] = ANY) -> list[Decoded]:
        return self.collect(self.launch(slack_s, wanted_frames))

    def launch(self, slack_s: Mapping[int, float], wanted_frames: Mapping[int, int] = ANY) -> int:
        """Queue one round on the device; how many calls of earlier rounds and of this one are out now."""
        waiting = {slot: use.num_waiting for slot, use in self.uses.items() if use.num_waiting > 0}
        calls = plan_calls(waiting, slack_s, self.gather_slack_s, self.final, wanted_frames)
        calls = spread(calls, slack_s, max(LEAST_ROUND_FRAMES, round(ROUND_SHARE * len(self.uses))))
        frames_made = Done(self.program.device)
        with torch.cuda.stream(self.stream):
            frames_made.hold()
            for count, slots in sorted(calls.items()):
                most = self.program.rows_of(count)
                for start in range(0, len(slots), most):
                    self._launch_call(slots[start : start + most], count)
        return len(self.calls)

    def _launch_call(self, slots: Sequence[int], count: int) -> None:
        if not self.spare:
            self.spare.append(HostResults(self.program))
        results = self.spare.pop()
        ring_length = self.program.ring.shape[1]
        rows = []
        places = results.places.numpy()
        for i, slot in enumerate(slots):
            use = self.uses[slot]
            rows.append((slot, use.life, use.num_launched))
            places[:, i] = slot, slot, use.num_launched % ring_length, use.num_primed + use.num_launched
            use.num_launched += count
        self._run(results, len(slots), count)
        self._download(results, len(slots), count)
        self.calls.append(Call(rows, count, results, Done(self.program.device)))

    def _run(self, results: HostResults, num_rows: int, num_frames: int) -> None:
        """Upload, pad with the dummy slot, replay."""
        program = self.program
        bucket = self.bucket(num_rows, num_frames)
        results.places[:, num_rows:bucket] = 0
        for device_side, mine in zip(
            (program.slots, program.sources, program.starts, program.first), results.places, strict=True
        ):
            device_side[:bucket].copy_(mine[:bucket], non_blocking=True)
        self.graphs.replay(bucket, num_frames)

    def bucket(self, num_rows: int, num_frames: int) -> int:
        return fitting(self.buckets[num_frames], num_rows)

    @property
    def call_shapes(self) -> list[tuple[int, int]]:
        """(rows, frames) of every call there can be."""
        return [(rows, frames) for frames, buckets in self.buckets.items() for rows in buckets]

    def _download(self, results: HostResults, num_rows: int, num_frames: int) -> None:
        program = self.program
        samples = num_rows * num_frames * program.frame_samples
        results.pcm[:samples].copy_(program.pcm[:samples], non_blocking=True)
        results.finite[:num_rows].copy_(program.finite[:num_rows], non_blocking=True)

    def collect(self, num_calls: int) -> list[Decoded]:
        """The PCM of the oldest ``num_calls`` calls, once they have passed."""
        found: list[Decoded] = []
        for _ in range(num_calls):
            call = self.calls.popleft()
            call.done.wait()
            found += self._decoded(call)
            self.spare.append(call.results)
        return found

    def _decoded(self, call: Call) -> list[Decoded]:
        samples = call.num_frames * self.frame_samples
        pcm = call.results.pcm[: len(call.rows) * samples].numpy().reshape(-1, samples).copy()
        finite = call.results.finite[: len(call.rows)].tolist()
        found = []
        for i, (slot, life, first) in enumerate(call.rows):
            use = self.uses.get(slot)
            if use is None or use.life != life:
                continue
            count = min(call.num_frames, use.num_fed - first)
            if count <= 0:
                continue
            use.num_emitted += count
            error = None if finite[i] else "the decoder's output is not finite"
            found.append(Decoded(slot, pcm[i, : count * self.frame_samples], error=error))
        return found

    # -- what a slot has heard before ----------------------------------------------------------------------------

    def prime(self, slot: int, reference: Reference) -> None:
        """Queue the reference's frames, or what is kept of having decoded them."""
        self.uses[slot].num_primed = len(reference.frames)
        with torch.cuda.stream(self.stream):
            kept = self.references.get(reference.key)
            if kept is None:
                self._hear(slot, reference.frames)
                kept = self.program.state[slot].clone(), self.program.past[:, slot].clone()
                self.references[reference.key] = kept
            else:
                self.program.state[slot] = kept[0]
                self.program.past[:, slot] = kept[1]
        self.references.move_to_end(reference.key)
        while len(self.references) > self.max_kept_references:
            self.references.popitem(last=False)

    def _hear(self, slot: int, frames: Sequence[Sequence[int]]) -> None:
        """Through the last row of the ring, which is nobody's."""
        program, source = self.program, self.program.ring.shape[0] - 1
        if not self.spare:
            self.spare.append(HostResults(program))
        done = 0
        while done < len(frames):
            count = next(size for size in (8, 4, 2, 1) if size <= len(frames) - done)
            codes = to_device([list(frame) for frame in frames[done : done + count]], torch.int64, program.device)
            program.ring[source, :count] = codes
            results = self.spare[-1]
            Done(program.device).wait()
            results.places[:, 0] = torch.tensor([slot, source, 0, done])
            self._run(results, 1, count)
            done += count
