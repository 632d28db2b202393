"""Edges, rate and volume of a part of the speech."""

from __future__ import annotations

import numpy as np

from sessions.audio.pcm import Pcm
from sessions.audio.silence_trimmer import SilenceTrimmer
from sessions.audio.time_stretch import TimeStretcher

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
