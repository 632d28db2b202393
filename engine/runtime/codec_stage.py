"""The engine's own decode stage: slots of a codec's carried state, decoded in rounds of calls.

How calls run is the codec runner's part (``codec_runners``): at once, or ahead of the host over graphs. There a round
is launched before the frames it decodes are known: rows of the step in flight are promised one frame each. What comes
of a promise that is not kept (the row stopped) is dropped when the call is collected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine.memory.block_pool import SlotTable
from engine.models.base import DecodedAudio, Pcm, VoiceReference
from engine.runtime.call_planner import (
    GATHER_FRAMES,
    NO_PREFERENCE,
    Numbers,
    Seconds,
    limit_round,
    plan_round,
    split_into_calls,
)

NOT_FINITE = "the decoder's output is not finite"
MIN_ROUND_FRAMES = 64
# Frames of one round, for each slot in use: a little more than a step makes.
ROUND_SHARE = 1.25


class RunningCall(Protocol):
    """A call that a codec runner has launched."""

    @property
    def is_done(self) -> bool:
        """It can be collected without a wait."""
        ...

    def collect(self) -> tuple[Pcm, npt.NDArray[np.bool_]]:
        """Wait for PCM [rows, samples], valid until the next call is launched, and whether each row is finite."""
        ...


class CodecRunner(Protocol):
    """Runs a codec over the state of slots."""

    frame_samples: int
    # Frames that a slot can have waiting; None where they wait on the host.
    max_waiting_frames: int | None

    def rows_of(self, num_frames: int) -> int:
        """Maximum rows of one call of ``num_frames`` frames."""
        ...

    def open(self, slot: int) -> None:
        """Clear the state of a fresh slot."""
        ...

    def close(self, slot: int) -> None: ...

    def prime(self, slot: int, reference: VoiceReference, num_emitted: int = 0) -> None:
        """Decode the reference's frames, of which the last ``num_emitted`` count as the slot's own."""
        ...

    def push(self, slot: int, codes: Sequence[int]) -> None:
        """Queue one frame. Raises ``ValueError`` for a code outside the codebook."""
        ...

    def replay(self, slot: int, first: int, frames: Sequence[Sequence[int]]) -> Sequence[tuple[int, RunningCall]]:
        """Decode frames that were not sampled here, ``first`` behind others of the slot. Returns calls with their
        numbers of frames, or none where the frames wait like any others."""
        ...

    def begin_round(self) -> list[int]:
        """Prepare a round; returns the slots that take no part in it."""
        ...

    def launch(self, slots: Numbers, firsts: Numbers, num_frames: int) -> RunningCall:
        """Decode ``num_frames`` frames of each slot, of which ``firsts`` have been decoded before."""
        ...

    def slot_error(self, slot: int) -> str | None:
        """Return, once, what failed in priming or decoding a slot."""
        ...

    @property
    def is_priming(self) -> bool:
        """A round now would go on with a reference."""
        ...


@dataclass(slots=True)
class DecodeCall:
    """One launched call: slot, generation and first frame of each row."""

    slots: Numbers
    generations: Numbers
    firsts: Numbers
    num_frames: int
    # How long the first of its listeners can wait.
    slack_s: float
    running: RunningCall
    # A listener waits for its first chunk.
    has_first: bool


class CodecStage:
    """``step`` is a whole round; a pipelined engine calls ``launch`` and, a step later, ``collect``."""

    chunk_frames = 1

    def __init__(self, codec: CodecRunner, num_slots: int, sample_rate: int, gather_slack_s: float) -> None:
        self.codec, self.sample_rate, self.frame_samples = codec, sample_rate, codec.frame_samples
        self.gather_slack_s = gather_slack_s
        self.slots = SlotTable(num_slots)
        # Frames of each slot's present holder.
        self.num_fed, self.num_launched, self.num_emitted = (self.slots.new_array(np.int64) for _ in range(3))
        self.speculated, self.final = (self.slots.new_array(np.bool_) for _ in range(2))
        self.calls: deque[DecodeCall] = deque()
        # Some that could have been decoded in the last round were not.
        self.has_deferred = False

    def reserve(self) -> int | None:
        slot = self.slots.reserve()
        if slot is not None:
            self.codec.open(slot)
        return slot

    def prime(self, slot: int, reference: VoiceReference) -> None:
        """Queue the reference's frames, or what is kept of having decoded them. What that raises comes with the slot's
        first chunk."""
        self.codec.prime(slot, reference)

    def resume(
        self, slot: int, reference: VoiceReference | None, frames: Sequence[Sequence[int]], num_received: int
    ) -> int:
        """Decode the frames again, without keeping the PCM of those received. What that raises comes with the first
        chunk.

        The last few are not enough: a decoder may carry a phase that depends on all of them.
        """
        received, lacking = frames[:num_received], frames[num_received:]
        for counter in (self.num_fed, self.num_launched, self.num_emitted):
            counter[slot] = len(received)
        if not received and reference is not None:
            self.codec.prime(slot, reference)
        elif received:
            past = [*(reference.frames if reference else ()), *received]
            self.codec.prime(slot, VoiceReference(None, past), num_emitted=len(received))
        slots = np.array([slot])
        for num_frames, running in self.codec.replay(slot, len(received), lacking):
            self._add_call(slots, num_frames, 0.0, running)
        self.num_fed[slot] += len(lacking)
        return len(received)

    @property
    def num_waiting(self) -> Numbers:
        return self.num_fed + self.speculated - self.num_launched

    def feed(self, slot: int, codes: Sequence[int]) -> None:
        self.codec.push(slot, codes)
        self.num_fed[slot] += 1

    def feed_batch(self, slots: Sequence[int]) -> None:
        """Count one frame of each of these different slots, whose codes are in the ring already."""
        self.num_fed[slots] += 1
        self.speculated[slots] = False

    def speculate(self, slots: Sequence[int]) -> None:
        """The step in flight makes a frame of each of these slots, unless its row stops."""
        self.speculated[slots] = True

    def finalize(self, slot: int) -> None:
        self.final[slot] = True
        self.speculated[slot] = False

    def makes_first_chunk(self, slot: int) -> bool:
        """False: a call takes less time than a frame of the talker."""
        return False

    def num_pending(self, slot: int) -> int:
        return int(self.num_fed[slot] - self.num_emitted[slot])

    @property
    def busy(self) -> bool:
        """Frames that gather in a ring do not count: their listeners have lead, and time or more frames will bring
        them on."""
        is_waiting = self.num_waiting > 0
        if self.codec.max_waiting_frames is not None:
            is_waiting &= self.final
        return bool(self.calls) or self.has_deferred or self.codec.is_priming or bool(is_waiting.any())

    def release(self, slot: int) -> None:
        self.codec.close(slot)
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
        """Launch one round, given what ``step`` is, by slot; how many calls are out now."""
        waiting = self.num_waiting
        waiting[self.codec.begin_round()] = 0
        slots, counts = plan_round(waiting, slack_s, wanted_frames, self.final, self.gather_slack_s)
        if (max_waiting := self.codec.max_waiting_frames) is not None:
            num_due = len(slots)
            can_be_put_off = waiting[slots] < max_waiting
            most = max(MIN_ROUND_FRAMES, round(ROUND_SHARE * (self.slots.num_slots - self.slots.num_free)))
            slots, counts = limit_round(slots, counts, np.where(can_be_put_off, slack_s[slots], 0.0), most)
            self.has_deferred = len(slots) < num_due
        for own, count in split_into_calls(slots, counts, slack_s, self.codec.rows_of):
            self._launch_call(own, count, float(slack_s[own].min()))
        return len(self.calls)

    def _launch_call(self, slots: Numbers, count: int, slack_s: float) -> None:
        self._add_call(slots, count, slack_s, self.codec.launch(slots, self.num_launched[slots], count))

    def _add_call(self, slots: Numbers, count: int, slack_s: float, running: RunningCall) -> None:
        """Note a call of the frames that follow those launched before."""
        firsts = self.num_launched[slots]
        self.num_launched[slots] += count
        generations, has_first = self.slots.generations[slots], not firsts.all()
        self.calls.append(DecodeCall(slots, generations, firsts, count, slack_s, running, has_first))

    @property
    def is_done(self) -> bool:
        """The oldest call can be collected without a wait."""
        return bool(self.calls) and self.calls[0].running.is_done

    def collect(self, num_calls: int) -> list[DecodedAudio]:
        """The PCM of the oldest ``num_calls`` calls, once they have passed."""
        return [chunk for _ in range(num_calls) for chunk in self._collect_call(self.calls.popleft())]

    def _collect_call(self, call: DecodeCall) -> list[DecodedAudio]:
        """Return the chunks of a call, without those of released slots and of calls that were not needed.

        Each chunk is a copy of its own: a reader that is slow with one must not keep those of all.
        """
        pcm, finite = call.running.collect()
        size, slots = self.frame_samples, call.slots
        counts = np.minimum(call.num_frames, self.num_fed[slots] - call.firsts)
        counts[self.slots.generations[slots] != call.generations] = 0
        kept = counts > 0
        self.num_emitted[slots[kept]] += counts[kept]
        return [
            DecodedAudio(slot, pcm[i, : count * size].copy(), error=self._error(slot, is_finite))
            for i, (slot, count, is_finite) in enumerate(
                zip(slots.tolist(), counts.tolist(), finite.tolist(), strict=True)
            )
            if count > 0
        ]

    def _error(self, slot: int, is_finite: bool) -> str | None:
        return self.codec.slot_error(slot) or (None if is_finite else NOT_FINITE)
