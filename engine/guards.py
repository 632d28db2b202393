"""Endless speech is a property of these models (specs/qwen3-tts.md 9.3): what tells it from long speech. No torch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class LoopGuard:
    """Trips when code 0 repeats one pattern of at most ``max_period`` frames for ``limit_frames`` frames."""

    def __init__(self, limit_frames: int, max_period: int) -> None:
        self.limit_frames = limit_frames
        self.max_period = max_period
        self._history: list[int] = []
        self._run_lengths = [0] * (max_period + 1)

    def push(self, code: int) -> bool:
        history = self._history
        is_new = code not in history
        history.append(code)
        if is_new:
            del history[: -self.max_period - 1]
            self._run_lengths = [0] * (self.max_period + 1)
            return False
        for period in range(1, self.max_period + 1):
            same = len(history) > period and history[-1 - period] == code
            self._run_lengths[period] = self._run_lengths[period] + 1 if same else 0
        del history[: -self.max_period - 1]
        return any(run + period >= self.limit_frames for period, run in enumerate(self._run_lengths) if run)


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
        loud = np.flatnonzero(np.abs(pcm) >= self.level)
        if loud.size:
            self._quiet_samples = len(pcm) - 1 - int(loud[-1])
        else:
            self._quiet_samples += len(pcm)
        return self._quiet_samples >= self.limit_samples
