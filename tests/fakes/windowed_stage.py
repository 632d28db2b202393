"""The windowed decode stage: no carried state, every chunk decoded from the codes of a left context.

The slow reference of the stage that carries state. The last
``overlap_samples`` of a chunk are provisional: the next chunk renders them again, with its own context, and a
crossfade has to join the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from engine.models.base import DecodedAudio, VoiceReference
from engine.program.slots import SlotTable
from engine.runtime.call_planner import NO_PREFERENCE, plan_calls
from engine.runtime.streaming_stage import PendingFrames, decode_isolated, to_decoded


@dataclass(slots=True)
class SlotWindow:
    """Frames already decoded, the newest last, and whether a provisional tail is out."""

    frames: list[Sequence[int]] = field(default_factory=list)
    tail_emitted: bool = False


class WindowedDecodeStage:
    chunk_frames = 1

    def __init__(
        self, codec: torch.nn.Module, num_slots: int, gather_slack_s: float, context_frames: int, overlap_samples: int
    ) -> None:
        self.codec = codec
        self.sample_rate: int = codec.config.sample_rate
        self.frame_samples: int = codec.config.frame_samples
        self.gather_slack_s = gather_slack_s
        self.context_frames, self.overlap_samples = context_frames, overlap_samples
        self.slots = SlotTable(num_slots)
        self.pending = PendingFrames(codec.config.codebook_size)
        self.windows: dict[int, SlotWindow] = {}
        self.device = next(codec.parameters()).device

    def reserve(self) -> int | None:
        slot = self.slots.reserve()
        if slot is not None:
            self.pending.open(slot)
            self.windows[slot] = SlotWindow()
        return slot

    def prime(self, slot: int, reference: VoiceReference) -> None:
        self.windows[slot].frames = list(reference.frames[-self.context_frames :])

    def feed(self, slot: int, codes: Sequence[int]) -> None:
        self.pending.feed(slot, codes)

    def finalize(self, slot: int) -> None:
        self.pending.final.add(slot)

    def num_pending(self, slot: int) -> int:
        """A provisional tail counts as a frame once nothing but its last rendering is to come."""
        return len(self.pending.frames[slot]) + int(slot in self._tails_to_finalize())

    @property
    def busy(self) -> bool:
        return self.pending.has_frames or bool(self._tails_to_finalize())

    def _tails_to_finalize(self) -> list[int]:
        return [s for s in self.pending.final if not self.pending.frames[s] and self.windows[s].tail_emitted]

    def step(
        self, slack_s: Mapping[int, float], wanted_frames: Mapping[int, int] = NO_PREFERENCE
    ) -> list[DecodedAudio]:
        counts, final = self.pending.counts(), self.pending.final
        calls = plan_calls(counts, slack_s, self.gather_slack_s, final, wanted_frames)
        tails = self._tails_to_finalize()
        work = [(slot, count) for count, slots in calls.items() for slot in slots] + [(slot, 0) for slot in tails]
        return [out for slot, count in work for out in decode_isolated(self._decode, [slot], count)]

    def _decode(self, slots: Sequence[int], count: int) -> list[DecodedAudio]:
        (slot,) = slots
        window = self.windows[slot]
        fresh = self.pending.peek(slots, count)[0]
        frames = [*window.frames[-self.context_frames :], *fresh]
        pcm = self.codec(torch.tensor([frames], device=self.device).transpose(1, 2))
        overlap = self.overlap_samples if window.tail_emitted else 0
        out = to_decoded([slot], pcm[:, pcm.shape[1] - count * self.frame_samples - overlap :])[0]
        self.pending.drop(slots, count)
        window.frames = frames[-self.context_frames :]
        ended = slot in self.pending.final and not self.pending.frames[slot]
        window.tail_emitted = not ended and self.overlap_samples > 0
        out.overlap_samples = overlap
        out.provisional_tail_samples = self.overlap_samples if window.tail_emitted else 0
        return [out]

    def release(self, slot: int) -> None:
        self.pending.close(slot)
        del self.windows[slot]
        self.slots.release(slot)

    def release_quarantined(self) -> None:
        self.slots.release_quarantined()
