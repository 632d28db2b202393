"""Edges, rate and volume of a part of the speech."""

from __future__ import annotations

import numpy as np

from sessions.audio.pcm import EMPTY, Pcm
from sessions.audio.time_stretch import TimeStretcher

# Quieter samples are silence: peaks of -44 dBFS, as quiet as -50 dBFS on average.
SILENCE_LEVEL = 0.0063
# Silence that stays beside the sound, where it fades.
MARGIN_MS = 5
# Longer silence is left as it is beyond this.
MAX_TRIM_MS = 500
# Louder samples than this are compressed where speech is amplified, so that none leaves the range of -1 to 1.
COMPRESS_FROM = 0.8


class SpeechShaper:
    """The same samples come out however they are cut."""

    def __init__(self, sample_rate: int, speed: float, gain: float, trims_start: bool) -> None:
        """``gain`` is a factor of the amplitude."""
        self._trimmer = SilenceTrimmer(sample_rate, trims_start)
        self._stretcher = TimeStretcher(sample_rate, speed)
        self._gain = gain

    @property
    def num_trimmed(self) -> int:
        """Samples left out at the start."""
        return self._trimmer.num_trimmed

    def push(self, pcm: Pcm) -> Pcm:
        return self._amplify(self._stretcher.push(self._trimmer.push(pcm)))

    def finish(self, trims_end: bool) -> Pcm:
        last = self._stretcher.push(self._trimmer.finish(trims_end))
        return self._amplify(np.concatenate([last, self._stretcher.flush()]))

    def _amplify(self, pcm: Pcm) -> Pcm:
        if self._gain == 1.0:
            return pcm
        louder = pcm * np.float32(self._gain)
        return louder if self._gain < 1.0 else compress_peaks(louder)


def compress_peaks(pcm: Pcm) -> Pcm:
    """Bend what is louder than ``COMPRESS_FROM`` towards 1, and leave the rest as it is."""
    excess = np.abs(pcm) - COMPRESS_FROM
    room = 1 - COMPRESS_FROM
    bent = np.copysign(COMPRESS_FROM + room * np.tanh(np.maximum(excess, 0) / room), pcm)
    return np.where(excess > 0, bent, pcm).astype(np.float32)


class SilenceTrimmer:
    """Cuts the silence that a voice makes before and after its speech, so that a break alone makes the pause.

    Trailing silence is held until sound follows, or until the end. The cut of the input does not matter."""

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
