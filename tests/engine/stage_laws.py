"""The laws of a decode stage whose slots are joined, fed, stepped, finalized and released in any order."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.models.base import DecodedAudio


class DecodeStageLaws(RuleBasedStateMachine):
    """A subclass begins with ``begin_with``, and adds the rules ``reserve`` (with ``join``), ``feed`` and ``step``."""

    stage: Any
    # By slot, since it was reserved.
    fed: dict[int, list[Any]]
    heard: dict[int, list[DecodedAudio]]

    def begin_with(self, stage: Any) -> None:
        self.stage, self.fed, self.heard = stage, {}, {}
        self.final: set[int] = set()
        self.num_quarantined = 0

    def join(self) -> int | None:
        slot: int | None = self.stage.reserve()
        if slot is not None:
            self.fed[slot], self.heard[slot] = [], []
        return slot

    def feed_open_slot(self, data: st.DataObject, frames: Sequence[Any]) -> None:
        slot = data.draw(st.sampled_from(sorted(set(self.fed) - self.final)))
        for codes in frames:
            self.stage.feed(slot, codes)
        self.fed[slot] += frames

    def take(self, chunks: list[DecodedAudio]) -> None:
        assert len({chunk.slot for chunk in chunks}) == len(chunks)
        for chunk in chunks:
            assert chunk.error is None
            self.heard[chunk.slot].append(chunk)

    @abstractmethod
    def compare(self, slot: int) -> None:
        """Check that a slot said what it would say alone."""

    @precondition(lambda self: self.fed)
    @rule(data=st.data())
    def finalize(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.fed)))
        self.stage.finalize(slot)
        self.final.add(slot)

    @precondition(lambda self: self.final)
    @rule(data=st.data())
    def drain_and_release(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.final)))
        while self.stage.num_pending(slot):
            self.take(self.stage.step({slot: 9.9}))
        self.slots_and_samples_balance()
        self.compare(slot)
        self.release(slot)

    @precondition(lambda self: self.fed)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.release(data.draw(st.sampled_from(sorted(self.fed))))

    def release(self, slot: int) -> None:
        self.stage.release(slot)
        self.final.discard(slot)
        self.num_quarantined += 1
        del self.fed[slot], self.heard[slot]

    @rule()
    def settle(self) -> None:
        self.stage.release_quarantined()
        self.num_quarantined = 0

    @invariant()
    def slots_and_samples_balance(self) -> None:
        if not hasattr(self, "stage"):
            return
        assert self.stage.slots.num_free + len(self.fed) + self.num_quarantined == self.stage.slots.num_slots
        for slot, frames in self.fed.items():
            num_heard = sum(len(chunk.pcm) for chunk in self.heard[slot])
            assert num_heard == self.stage.frame_samples * (len(frames) - self.stage.num_pending(slot))

    def teardown(self) -> None:
        for slot in getattr(self, "fed", ()):
            self.compare(slot)
