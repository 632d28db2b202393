"""Find speech onset from the speech probability of each window."""

from __future__ import annotations

# Speech goes on while it is at most so much less likely than it had to be to begin.
HYSTERESIS = 0.15


class OnsetDetector:
    """Windows of ``window_ms`` begin every ``hop_ms``."""

    def __init__(self, threshold: float, min_speech_ms: int, min_silence_ms: int, window_ms: int, hop_ms: int) -> None:
        self._threshold = threshold
        self._num_speech, self._num_silence = (
            1 + max(-(-(duration_ms - window_ms) // hop_ms), 0) for duration_ms in (min_speech_ms, min_silence_ms)
        )
        # Windows in a row that say the other thing than ``speaking`` does.
        self._run = 0
        self.speaking = False

    def push(self, likely: float) -> bool:
        """Whether speech has just begun: it has been likely for ``min_speech_ms``."""
        if self.speaking:
            self._run = self._run + 1 if likely < self._threshold - HYSTERESIS else 0
            if self._run >= self._num_silence:
                self.speaking, self._run = False, 0
            return False
        self._run = self._run + 1 if likely >= self._threshold else 0
        if self._run >= self._num_speech:
            self.speaking, self._run = True, 0
        return self.speaking
