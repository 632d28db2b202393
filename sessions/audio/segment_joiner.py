"""Join the segments of a response to one signal, each crossfaded into the next."""

from __future__ import annotations

import numpy as np

from sessions.audio.crossfade import Fade, crossfade
from sessions.audio.pcm import EMPTY, Pcm


def crossfade_join(first: Pcm, second: Pcm, overlap_samples: int, fade: Fade = Fade.EQUAL_POWER) -> Pcm:
    """Join two signals, overlapping by ``overlap_samples`` or by all of the shorter one."""
    overlap = min(overlap_samples, first.size, second.size)
    kept = first.size - overlap
    return np.concatenate([first[:kept], crossfade(first[kept:], second[:overlap], fade), second[overlap:]])


class SegmentJoiner:
    """Apply ``crossfade_join`` to all segments of a response, whose PCM comes in runs of any length.

    The last ``overlap_samples`` are held back until ``finish``, because a next segment may fade into them. With
    ``overlap_samples=0`` nothing is held back.
    """

    def __init__(self, overlap_samples: int, fade: Fade = Fade.EQUAL_POWER) -> None:
        self._overlap = overlap_samples
        self._fade = fade
        self._held = EMPTY
        # The start of a segment that is still too short to be joined to what is held.
        self._head: Pcm | None = None
        self._num_samples_out = 0
        # Start of each joined segment in the output, its fade included.
        self.segment_starts: list[int] = [0]

    def push(self, pcm: Pcm) -> Pcm:
        if self._head is None:
            return self._emit(pcm)
        self._head = np.concatenate([self._head, pcm])
        return self._join_head() if self._head.size >= self._overlap else EMPTY

    def next_segment(self) -> Pcm:
        """End the current segment; another one follows."""
        out = self._join_head()
        self._head = EMPTY
        return out

    def finish(self) -> Pcm:
        """End the audio and return what is held."""
        return np.concatenate([self._join_head(), self._emit(EMPTY, is_last=True)])

    def _join_head(self) -> Pcm:
        if self._head is None:
            return EMPTY
        head, held, self._head = self._head, self._held, None
        self.segment_starts.append(self._num_samples_out + max(held.size - head.size, 0))
        self._held = EMPTY
        return self._emit(crossfade_join(held, head, self._overlap, self._fade))

    def _emit(self, pcm: Pcm, is_last: bool = False) -> Pcm:
        """Return the samples before the overlap, which is held back unless ``is_last``."""
        signal = np.concatenate([self._held, pcm]) if self._held.size else pcm
        kept = 0 if is_last else min(self._overlap, signal.size)
        self._held = signal[signal.size - kept :]
        out = signal[: signal.size - kept]
        self._num_samples_out += out.size
        return out
