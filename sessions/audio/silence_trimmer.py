"""Cut the silence that a voice makes before and after its speech, so that a break alone makes the pause."""

from __future__ import annotations

import numpy as np

from sessions.audio.pcm import EMPTY, Pcm

# Quieter samples are silence: peaks of -44 dBFS, as quiet as -50 dBFS on average.
SILENCE_LEVEL = 0.0063
# Silence that stays beside the sound, where it fades.
MARGIN_MS = 5
# Longer silence is left as it is beyond this.
MAX_TRIM_MS = 500


class SilenceTrimmer:
    """Trailing silence is held until sound follows, or until the end. The cut of the input does not matter."""

    def __init__(self, sample_rate: int, trims_start: bool) -> None:
        self._margin = sample_rate * MARGIN_MS // 1000
        self._max_held = sample_rate * MAX_TRIM_MS // 1000
        self._in_start = trims_start
        self._held = EMPTY
        # Samples left out at the start.
        self.num_trimmed = 0

    def push(self, pcm: Pcm) -> Pcm:
        signal = np.concatenate([self._held, pcm])
        loud = np.flatnonzero(np.abs(signal) > SILENCE_LEVEL)
        if self._in_start and (loud.size or signal.size >= self._max_held):
            first = min(int(loud[0]) if loud.size else self._max_held, self._max_held)
            self.num_trimmed = max(first - self._margin, 0)
            self._in_start = False
            signal = signal[self.num_trimmed :]
            loud = loud - self.num_trimmed
        end = int(loud[-1]) + 1 if loud.size else 0
        if not self._in_start:
            end = max(end, signal.size - self._max_held)
        self._held = signal[end:]
        return signal[:end]

    def finish(self, trims_end: bool) -> Pcm:
        """Return what is held, or the margin of it."""
        held, self._held = self._held, EMPTY
        return held[: self._margin] if trims_end else held
