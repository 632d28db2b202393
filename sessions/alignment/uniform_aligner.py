"""Align with equal time for every character: free, and the baseline of better aligners."""

from __future__ import annotations

from sessions.alignment.aligner import Pcm

# English read aloud, about 14 characters per second: estimates the length of an unfinished utterance.
TYPICAL_S_PER_CHAR = 0.07


class UniformAligner:
    """Finalizes no character before the end."""

    def __init__(self, sample_rate: int) -> None:
        self._samples_per_char = sample_rate * TYPICAL_S_PER_CHAR
        self._num_chars = 0
        self._num_samples = 0
        self._finished = False

    @property
    def bounds(self) -> list[int]:
        return self.estimate() if self._finished else []

    def estimate(self) -> list[int]:
        expected = 0.0 if self._finished else self._num_chars * self._samples_per_char
        length = max(self._num_samples, expected)
        return [int(length * number / max(self._num_chars, 1)) for number in range(self._num_chars + 1)]

    def add_text(self, text: str) -> None:
        self._num_chars += len(text)

    def end_text(self) -> None:
        """Do nothing: the end of the text changes no estimate."""

    def push(self, pcm: Pcm) -> None:
        self._num_samples += pcm.size

    def finish(self) -> None:
        self._finished = True
