"""Endless speech is a property of these models (specs/qwen3-tts.md 9.3): what tells it from long speech. No torch."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

PROBE_SAMPLES = 240


class LoopGuard:
    """Trips when code 0 repeats one pattern of at most ``max_period`` frames for ``limit_frames`` frames."""

    def __init__(self, limit_frames: int, max_period: int) -> None:
        self.limit_frames = limit_frames
        self.max_period = max_period
        self._history: deque[int] = deque(maxlen=max_period + 1)
        # By period; None while nothing repeats.
        self._run_lengths: list[int] | None = None

    def push(self, code: int) -> bool:
        history = self._history
        if code not in history:
            history.append(code)
            self._run_lengths = None
            return False
        history.append(code)
        runs = self._run_lengths = self._run_lengths or [0] * (self.max_period + 1)
        for period in range(1, self.max_period + 1):
            same = len(history) > period and history[-1 - period] == code
            runs[period] = runs[period] + 1 if same else 0
        return any(run + period >= self.limit_frames for period, run in enumerate(runs) if run)


class SilenceGuard:
    """Trips when ``limit_samples`` samples in a row stay below the level, counted only while armed."""

    def __init__(self, limit_samples: int, level_dbfs: float) -> None:
        self.limit_samples = limit_samples
        self.level = 10 ** (level_dbfs / 20)
        self._quiet_samples = 0

    def push(self, pcm: npt.NDArray[np.float32], armed: bool) -> bool:
        if not armed:
            self._quiet_samples = 0
            return False
        quiet = self._quiet_end(pcm)
        self._quiet_samples = quiet if quiet < len(pcm) else self._quiet_samples + quiet
        return self._quiet_samples >= self.limit_samples

    def _quiet_end(self, pcm: npt.NDArray[np.float32]) -> int:
        """Samples after the last loud one, looked for from the end on: in speech it is near."""
        end, size = len(pcm), PROBE_SAMPLES
        while end > 0:
            start = max(0, end - size)
            loud = np.flatnonzero(np.abs(pcm[start:end]) >= self.level)
            if loud.size:
                return len(pcm) - 1 - start - int(loud[-1])
            end, size = start, 4 * size
        return len(pcm)
