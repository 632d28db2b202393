"""The vocoder's calls of usual lengths over static buffers, as CUDA graphs; the others as they come."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.models.cosyvoice3.hift import LEAD_FRAMES, NO_END, Hift
from engine.models.cosyvoice3.hift_batch import MAX_CALL_CELLS, HiftBatch, run_rows
from engine.program.buffers import to_device
from engine.program.capture import GraphSet

DUMMY_SLOT = 0
ROWS = (1, 2, 4, 8, 16, 32, 64)


class HiftGraphs(HiftBatch):
    """Slot 0 is the dummy that fills calls up. ``lengths``: frames of the calls that are recorded."""

    def __init__(self, hift: Hift, num_slots: int, lengths: Sequence[int]) -> None:
        super().__init__(hift, num_slots)
        self.sizes = {n: [rows for rows in ROWS if rows * n <= MAX_CALL_CELLS] for n in lengths if n > 0}
        most_rows, most_frames = max(rows[-1] for rows in self.sizes.values()), max(self.sizes)
        fresh = {"device": self.device, "dtype": torch.float32}
        self.mel = torch.zeros(most_rows, hift.config.mel_bins, most_frames, **fresh)
        self.pcm = torch.zeros(most_rows, most_frames * hift.frame_samples, **fresh)
        self.slots = torch.zeros(most_rows, dtype=torch.int64, device=self.device)
        self.ends = torch.full_like(self.slots, NO_END)
        self.graphs = GraphSet(self.run, self.device)

    def run(self, num_rows: int, num_frames: int) -> None:
        pcm = run_rows(
            self.hift, self.state, self.slots[:num_rows], self.mel[:num_rows, :, :num_frames], self.ends[:num_rows]
        )
        self.pcm[:num_rows, : pcm.shape[1]] = pcm

    def capture_graphs(self) -> None:
        """Capture all graphs, largest first, before the first request."""
        for num_frames, sizes in sorted(self.sizes.items(), reverse=True):
            for rows in reversed(sizes):
                self.graphs.capture(rows, num_frames)

    def decode(self, slots: Sequence[int], mel: Tensor, ends: Sequence[int]) -> Tensor:
        num_rows, num_frames = len(slots), mel.shape[-1]
        sizes = self.sizes.get(num_frames, [])
        if not sizes or num_rows > sizes[-1]:
            return super().decode(slots, mel, ends)
        padded = sizes[bisect_left(sizes, num_rows)]
        spare = padded - num_rows
        self.slots[:padded] = to_device([*slots, *[DUMMY_SLOT] * spare], torch.int64, self.device)
        self.ends[:padded] = to_device([*ends, *[NO_END] * spare], torch.int64, self.device)
        self.mel[:num_rows, :, :num_frames] = mel
        self.mel[num_rows:padded] = 0
        self.graphs.replay(padded, num_frames)
        return self.pcm[:num_rows, : num_frames * self.hift.frame_samples].clone()


def common_lengths(block_frames: int, prompt_rest_frames: int) -> tuple[int, ...]:
    """Frames of a block, of two, and of a first block behind a prompt of whole blocks, or of a trimmed one."""
    return block_frames, 2 * block_frames, block_frames - LEAD_FRAMES, block_frames - prompt_rest_frames - LEAD_FRAMES
