"""Frames of one fixed length out of chunks of any length."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from sessions.audio.pcm import EMPTY, Pcm


class PcmFrame(Struct, frozen=True):
    # Position of ``pcm[0]`` in all that the framer has given, padding included.
    start_sample: int
    pcm: Pcm
    # Silence at the end that makes up the length.
    padding_samples: int = 0


class Framer:
    def __init__(self, frame_samples: int) -> None:
        if frame_samples < 1:
            raise ValueError(f"frame_samples must be at least 1, got {frame_samples}")
        self.frame_samples = frame_samples
        self._rest = EMPTY
        self._next_start_sample = 0

    def push(self, pcm: Pcm) -> list[PcmFrame]:
        signal = np.concatenate([self._rest, pcm]) if self._rest.size else pcm
        whole = signal.size - signal.size % self.frame_samples
        self._rest = signal[whole:]
        return [self._frame(signal[at : at + self.frame_samples]) for at in range(0, whole, self.frame_samples)]

    def flush(self) -> list[PcmFrame]:
        """Return pending samples padded with silence to one frame; nothing if none are. More may be pushed."""
        if not self._rest.size:
            return []
        padding = self.frame_samples - self._rest.size
        padded = np.concatenate([self._rest, np.zeros(padding, np.float32)])
        self._rest = EMPTY
        return [self._frame(padded, padding)]

    def _frame(self, pcm: Pcm, padding_samples: int = 0) -> PcmFrame:
        frame = PcmFrame(self._next_start_sample, pcm, padding_samples)
        self._next_start_sample += self.frame_samples
        return frame
