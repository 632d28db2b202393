"""The exact decode stage: every slot carries its decoder's state, so that streaming equals offline, seam-free."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from engine.models.base import DecodedAudio, VoiceReference
from engine.program.isolate import isolate
from engine.program.slots import SlotTable
from engine.runtime.call_planner import NO_PREFERENCE, all_calls, padded_rows, plan_calls, split_into_calls

DUMMY_SLOT = 0
NO_PCM = np.zeros(0, dtype=np.float32)


class PendingFrames:
    """Frames fed and not yet decoded, by slot; checks every code before it can reach an embedding."""

    def __init__(self, num_codes: int) -> None:
        self.num_codes = num_codes
        self.frames: dict[int, list[Sequence[int]]] = {}
        self.final: set[int] = set()

    def open(self, slot: int) -> None:
        self.frames[slot] = []

    def feed(self, slot: int, codes: Sequence[int]) -> None:
        bad = [code for code in codes if not 0 <= code < self.num_codes]
        if bad:
            raise ValueError(f"code {bad[0]} is outside the codebook of {self.num_codes}")
        self.frames[slot].append(codes)

    @property
    def has_frames(self) -> bool:
        return any(self.frames.values())

    def counts(self) -> dict[int, int]:
        return {slot: len(frames) for slot, frames in self.frames.items()}

    def peek(self, slots: Sequence[int], count: int) -> list[list[Sequence[int]]]:
        return [self.frames[slot][:count] for slot in slots]

    def drop(self, slots: Sequence[int], count: int) -> None:
        for slot in slots:
            del self.frames[slot][:count]

    def close(self, slot: int) -> None:
        del self.frames[slot]
        self.final.discard(slot)


def to_decoded(slots: Sequence[int], pcm: Tensor) -> list[DecodedAudio]:
    """One entry a slot; a row that is not finite fails alone."""
    finite = torch.isfinite(pcm).all(-1).tolist()
    samples = pcm.float().cpu().numpy()
    return [
        DecodedAudio(slot, samples[i], error=None if finite[i] else "the decoder's output is not finite")
        for i, slot in enumerate(slots)
    ]


def failed_audio(slot: int, error: Exception) -> DecodedAudio:
    return DecodedAudio(slot, NO_PCM, error=f"{type(error).__name__}: {error}")


def decode_isolated(
    decode: Callable[[Sequence[int], int], list[DecodedAudio]], slots: Sequence[int], count: int
) -> list[DecodedAudio]:
    """``decode`` for all slots; those that raise alone, too, carry the error."""
    failed: list[DecodedAudio] = []
    found = isolate(
        lambda some: decode(some, count), slots, lambda slot, error: failed.append(failed_audio(slot, error))
    )
    return [*found, *failed]


class StreamingDecodeStage:
    """``num_slots`` streams of carried state, in calls of few shapes; slot 0 is the dummy that fills them up."""

    chunk_frames = 1

    def __init__(
        self, codec: torch.nn.Module, num_slots: int, gather_slack_s: float, max_cached_references: int = 32
    ) -> None:
        self.codec = codec
        self.sample_rate: int = codec.config.sample_rate
        self.frame_samples: int = codec.config.frame_samples
        self.gather_slack_s = gather_slack_s
        self.slots = SlotTable(num_slots)
        self.state = codec.new_state(num_slots + 1)
        self.pending = PendingFrames(codec.config.codebook_size)
        self.primer = DecoderPrimer(self._prime_frames, self._save, self._load, max_cached_references)

    @torch.inference_mode()
    def warm_up(self, max_s: float) -> None:
        """Decode dummy frames in every shape that a call can have, as far as the time allows."""
        end_s = time.perf_counter() + max_s
        for num_rows, num_frames in all_calls():
            frame = [0] * self.codec.config.num_quantizers
            self._advance_state([DUMMY_SLOT] * num_rows, [[frame] * num_frames] * num_rows)
            if time.perf_counter() > end_s:
                return

    def reserve(self) -> int | None:
        slot = self.slots.reserve()
        if slot is None:
            return None
        self.state.values[slot] = 0
        self.state.num_frames[slot] = 0
        self.pending.open(slot)
        return slot

    def prime(self, slot: int, reference: VoiceReference) -> None:
        self.primer.begin(slot, reference)

    def feed(self, slot: int, codes: Sequence[int]) -> None:
        self.pending.feed(slot, codes)

    def finalize(self, slot: int) -> None:
        self.pending.final.add(slot)

    def num_pending(self, slot: int) -> int:
        return len(self.pending.frames[slot])

    @property
    def busy(self) -> bool:
        return self.pending.has_frames or self.primer.busy

    def step(
        self, slack_s: Mapping[int, float], wanted_frames: Mapping[int, int] = NO_PREFERENCE
    ) -> list[DecodedAudio]:
        found = self._step_primer() if self.primer.busy else []
        counts = {slot: n for slot, n in self.pending.counts().items() if not self.primer.is_priming(slot)}
        for out in found:
            del counts[out.slot]
        calls = plan_calls(counts, slack_s, self.gather_slack_s, self.pending.final, wanted_frames)
        runs = [(run, count) for count, slots in calls.items() for run in split_into_calls(slots, count)]
        for run, count in runs:
            found += decode_isolated(self._decode, run, count)
        return found

    def _step_primer(self) -> list[DecodedAudio]:
        slot = self.primer.oldest
        try:
            self.primer.step()
        except Exception as error:
            self.primer.cancel(slot)
            return [failed_audio(slot, error)]
        return []

    def _decode(self, slots: Sequence[int], count: int) -> list[DecodedAudio]:
        pcm = self._advance_state(slots, self.pending.peek(slots, count))
        self.pending.drop(slots, count)
        return to_decoded(slots, pcm)

    def _advance_state(self, slots: Sequence[int], frames: Sequence[Sequence[Sequence[int]]]) -> Tensor:
        """frames [rows][count][codebooks] -> PCM; the slots' state follows."""
        num_padding = padded_rows(len(slots)) - len(slots)
        device = self.state.values.device
        codes = torch.tensor([*frames, *[frames[0]] * num_padding], device=device).transpose(1, 2)
        index = torch.tensor([*slots, *[DUMMY_SLOT] * num_padding], device=device)
        state = type(self.state)(self.state.values.index_select(0, index), self.state.num_frames[index])
        pcm: Tensor = self.codec(codes, state)
        self.state.values.index_copy_(0, index, state.values)
        self.state.num_frames[index] = state.num_frames
        return pcm[: len(slots)]

    def _prime_frames(self, slot: int, frames: list[list[int]]) -> None:
        self._advance_state([slot], [frames])

    def _save(self, slot: int) -> tuple[Tensor, Tensor]:
        return self.state.values[slot].clone(), self.state.num_frames[slot].clone()

    def _load(self, slot: int, kept: tuple[Tensor, Tensor]) -> None:
        self.state.values[slot], self.state.num_frames[slot] = kept

    def release(self, slot: int) -> None:
        self.primer.cancel(slot)
        self.pending.close(slot)
        self.slots.release(slot)

    def release_quarantined(self) -> None:
        self.slots.release_quarantined()


# Of one recording in one step, so that running rows never wait for all of it.
SLICE_FRAMES = 32

State = TypeVar("State")


@dataclass(slots=True)
class PrimingJob:
    reference: VoiceReference
    num_done: int = 0


class DecoderPrimer(Generic[State]):
    """``hear(slot, frames)`` moves a slot on; ``save`` copies what it has come to, and ``load`` puts a copy back.

    The state behind each of the last ``max_kept`` recordings is kept.
    """

    def __init__(
        self,
        advance: Callable[[int, list[list[int]]], None],
        save: Callable[[int], State],
        load: Callable[[int, State], None],
        max_cached: int,
    ) -> None:
        self._hear, self._save, self._load, self._max_kept = advance, save, load, max_cached
        self._kept: OrderedDict[Hashable, State] = OrderedDict()
        self._jobs: dict[int, PrimingJob] = {}

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    @property
    def num_cached(self) -> int:
        return len(self._kept)

    def begin(self, slot: int, reference: VoiceReference) -> None:
        if not self._restore(slot, reference.key):
            self._jobs[slot] = PrimingJob(reference)

    def is_priming(self, slot: int) -> bool:
        return slot in self._jobs

    def cancel(self, slot: int) -> None:
        self._jobs.pop(slot, None)

    def step(self) -> None:
        """One slice of the oldest job; what it raises is the fault of ``oldest``."""
        slot = self.oldest
        job = self._jobs[slot]
        if job.num_done == 0 and self._restore(slot, job.reference.key):
            self.cancel(slot)
            return
        frames = job.reference.frames[job.num_done : job.num_done + SLICE_FRAMES]
        self._hear(slot, [list(codes) for codes in frames])
        job.num_done += len(frames)
        if job.num_done == len(job.reference.frames):
            self._cache(slot, job.reference.key)
            self.cancel(slot)

    @property
    def oldest(self) -> int:
        return next(iter(self._jobs))

    def _restore(self, slot: int, key: Hashable) -> bool:
        state = self._kept.get(key)
        if state is None:
            return False
        self._kept.move_to_end(key)
        self._load(slot, state)
        return True

    def _cache(self, slot: int, key: Hashable) -> None:
        if self._max_kept == 0:
            return
        self._kept[key] = self._save(slot)
        while len(self._kept) > self._max_kept:
            self._kept.popitem(last=False)
