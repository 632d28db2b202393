"""Join the segments of a response to one signal, each crossfaded into the next."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from sessions.audio.pcm import EMPTY, Pcm


def crossfade_join(first: Pcm, second: Pcm, overlap_samples: int) -> Pcm:
    """Join two signals, overlapping by ``overlap_samples`` or by all of the shorter one."""
    overlap = min(overlap_samples, first.size, second.size)
    kept = first.size - overlap
    return np.concatenate([first[:kept], crossfade(first[kept:], second[:overlap]), second[overlap:]])


def crossfade(old: Pcm, new: Pcm) -> Pcm:
    """Go from ``old`` to ``new``, which cover the same samples, at equal power.

    The weights add up to one, and are raised by what the two lose to each other where they do not correlate.
    """
    weight = hann_ramp(old.size)
    loss = 2 * weight * (1 - weight) * (1 - _correlation(old, new))
    mixed: Pcm = (old + (new - old) * weight) / np.sqrt(1 - loss)
    return mixed


@lru_cache(maxsize=64)
def hann_ramp(num_samples: int) -> Pcm:
    """Weights from near 0 to near 1; ``ramp + ramp[::-1]`` is 1."""
    middle_of_sample = (np.arange(num_samples) + 0.5) / max(num_samples, 1)
    ramp = (0.5 - 0.5 * np.cos(np.pi * middle_of_sample)).astype(np.float32)
    ramp.flags.writeable = False
    return ramp


def _correlation(old: Pcm, new: Pcm) -> np.float32:
    """Correlate two signals around zero, in [0, 1]; silence correlates with everything: no fade to it is raised."""
    energy = np.sqrt(np.dot(old, old) * np.dot(new, new))
    return np.float32(np.clip(np.dot(old, new) / energy, 0, 1) if energy > 0 else 1)


class SegmentJoiner:
    """Apply ``crossfade_join`` to all segments of a response, whose PCM comes in runs of any length.

    The last ``overlap_samples`` are held back until ``finish``, because a next segment may fade into them. With
    ``overlap_samples=0`` nothing is held back.
    """

    def __init__(self, overlap_samples: int) -> None:
        self._overlap = overlap_samples
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
        return self._emit(crossfade_join(held, head, self._overlap))

    def _emit(self, pcm: Pcm, is_last: bool = False) -> Pcm:
        """Return the samples before the overlap, which is held back unless ``is_last``."""
        signal = np.concatenate([self._held, pcm]) if self._held.size else pcm
        kept = 0 if is_last else min(self._overlap, signal.size)
        self._held = signal[signal.size - kept :]
        out = signal[: signal.size - kept]
        self._num_samples_out += out.size
        return out
