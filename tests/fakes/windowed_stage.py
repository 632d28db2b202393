"""The windowed decode stage: no carried state, every chunk decoded from the codes of a left context.

The slow reference of the stage that carries state. The last
``overlap_samples`` of a chunk are provisional: the next chunk renders them again, with its own context, and a
crossfade has to join the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from engine.memory.block_pool import SlotTable
from engine.models.base import DecodedAudio, VoiceReference
from engine.program.isolate import isolate
from engine.runtime.call_planner import GATHER_FRAMES, NO_PREFERENCE, plan_round
from engine.runtime.codec_stage import NOT_FINITE


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
        self.pending: dict[int, list[Sequence[int]]] = {}
        self.final = self.slots.new_array(np.bool_)
        self.windows: dict[int, SlotWindow] = {}
        self.device = next(codec.parameters()).device

    def reserve(self) -> int | None:
        slot = self.slots.reserve()
        if slot is not None:
            self.pending[slot] = []
            self.windows[slot] = SlotWindow()
        return slot

    def prime(self, slot: int, reference: VoiceReference) -> None:
        self.windows[slot].frames = list(reference.frames[-self.context_frames :])

    def resume(
        self, slot: int, reference: VoiceReference | None, frames: Sequence[Sequence[int]], num_received: int
    ) -> int:
        past = [*(reference.frames if reference else ()), *frames[:num_received]]
        self.windows[slot].frames = past[-self.context_frames :]
        for codes in frames[num_received:]:
            self.feed(slot, codes)
        return num_received

    def feed(self, slot: int, codes: Sequence[int]) -> None:
        if not all(0 <= code < self.codec.config.codebook_size for code in codes):
            raise ValueError(f"codes {codes} are outside the codebook")
        self.pending[slot].append(codes)

    def finalize(self, slot: int) -> None:
        self.final[slot] = True

    def num_pending(self, slot: int) -> int:
        """A provisional tail counts as a frame once nothing but its last rendering is to come."""
        return len(self.pending[slot]) + int(slot in self._tails_to_finalize())

    @property
    def busy(self) -> bool:
        return any(self.pending.values()) or bool(self._tails_to_finalize())

    def _tails_to_finalize(self) -> list[int]:
        return [s for s in self.windows if self.final[s] and not self.pending[s] and self.windows[s].tail_emitted]

    def step(
        self, slack_s: Mapping[int, float], wanted_frames: Mapping[int, int] = NO_PREFERENCE
    ) -> list[DecodedAudio]:
        every, found = range(self.slots.num_slots + 1), list[DecodedAudio]()
        waiting = np.array([len(self.pending.get(slot, ())) for slot in every])
        slack = np.array([slack_s.get(slot, 0.0) for slot in every])
        wanted = np.array([wanted_frames.get(slot, GATHER_FRAMES) for slot in every])
        slots, counts = plan_round(waiting, slack, wanted, self.final, self.gather_slack_s)
        work = [*zip(slots.tolist(), counts.tolist(), strict=True), *((slot, 0) for slot in self._tails_to_finalize())]

        def fail(item: tuple[int, int], error: Exception) -> None:
            found.append(DecodedAudio(item[0], np.zeros(0, np.float32), error=f"{type(error).__name__}: {error}"))

        for item in work:
            found += isolate(self._decode, [item], fail)
        return found

    def _decode(self, items: Sequence[tuple[int, int]]) -> list[DecodedAudio]:
        ((slot, count),) = items
        window = self.windows[slot]
        fresh = self.pending[slot][:count]
        frames = [*window.frames[-self.context_frames :], *fresh]
        pcm = self.codec(torch.tensor([frames], device=self.device).transpose(1, 2))
        overlap = self.overlap_samples if window.tail_emitted else 0
        heard = pcm[0, pcm.shape[1] - count * self.frame_samples - overlap :].float().numpy()
        out = DecodedAudio(slot, heard, error=None if np.isfinite(heard).all() else NOT_FINITE)
        del self.pending[slot][:count]
        window.frames = frames[-self.context_frames :]
        ended = self.final[slot] and not self.pending[slot]
        window.tail_emitted = not ended and self.overlap_samples > 0
        out.overlap_samples = overlap
        out.provisional_tail_samples = self.overlap_samples if window.tail_emitted else 0
        return [out]

    def release(self, slot: int) -> None:
        del self.pending[slot]
        del self.windows[slot]
        self.slots.release(slot)

    def release_quarantined(self) -> None:
        self.slots.release_quarantined()
