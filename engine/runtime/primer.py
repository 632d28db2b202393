"""Prime the decoder of slots that continue a recording: its frames are decoded first, and their audio is discarded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from engine.models.base import VoiceReference

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
