"""Scores the class of sound in each 20 ms of speech: PCM in, one score a class out.

A small network looks at band energies around each step. Work is done in blocks of fixed shape, so how the PCM is cut
never shows, to the bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from sessions.alignment.weights import AcousticWeights


Floats = npt.NDArray[np.float32]

STEP_MS = 20
FRAME_MS = 10
WINDOW_MS = 25
FRAMES_PER_STEP = STEP_MS // FRAME_MS
BLOCK_FRAMES = 8
BLOCK_STEPS = BLOCK_FRAMES // FRAMES_PER_STEP
# Frames before and after a step that the network sees.
CONTEXT_FRAMES = 6
# Frames of a block per step, shape [steps, frames].
STEP_FRAMES = FRAMES_PER_STEP * np.arange(BLOCK_STEPS)[:, None] + np.arange(FRAMES_PER_STEP + 2 * CONTEXT_FRAMES)
NUM_BANDS = 14
LOWEST_HZ, HIGHEST_HZ = 80.0, 7000.0
# Frames this far below the level of the speech are silence.
FLOOR_NEPERS = 12.0
# Log power of a frame that counts as loud before any speech was heard.
FIRST_LEVEL = -3.0
# The level falls by so much a frame: half a neper a second.
LEVEL_DECAY = 0.005


def step_samples(sample_rate: int) -> int:
    """Whole frames of whole samples."""
    return sample_rate * FRAME_MS // 1000 * FRAMES_PER_STEP


class BandEnergies:
    """Log energies in bands, against the level of the speech, one row for each 10 ms."""

    def __init__(self, sample_rate: int, warp: float = 1.0) -> None:
        self._hop = sample_rate * FRAME_MS // 1000
        size = sample_rate * WINDOW_MS // 1000
        self._window = np.hanning(size).astype(np.float32)
        self._bands = mel_bands(sample_rate, size, warp)
        self._block_samples = self._hop * (BLOCK_FRAMES - 1) + size
        self._places = self._hop * np.arange(BLOCK_FRAMES)[:, None] + np.arange(size)
        self._held = np.zeros((size - self._hop) // 2, np.float32)
        self._loudest = FIRST_LEVEL
        self._num_frames = 0

    def push(self, pcm: Floats) -> list[Floats]:
        """Blocks [BLOCK_FRAMES, NUM_BANDS] that are complete."""
        self._held = np.concatenate([self._held, pcm])
        blocks = []
        while self._held.size >= self._block_samples:
            blocks.append(self._block(self._held[: self._block_samples]))
            self._held = self._held[self._hop * BLOCK_FRAMES :]
        return blocks

    def _block(self, pcm: Floats) -> Floats:
        size = self._window.size
        frames = pcm[self._places] * self._window
        power = np.abs(np.fft.rfft(frames, axis=1)) ** 2
        bands = np.log(power @ self._bands + 1e-9)
        times = LEVEL_DECAY * np.arange(self._num_frames, self._num_frames + BLOCK_FRAMES)
        peaks = np.maximum.accumulate(np.append(self._loudest, np.log(power.sum(1) / size + 1e-9) + times))[1:]
        self._loudest, self._num_frames = float(peaks[-1]), self._num_frames + BLOCK_FRAMES
        against_level = np.maximum(bands - (peaks - times)[:, None], -FLOOR_NEPERS)
        inputs: Floats = (against_level / FLOOR_NEPERS + 0.5).astype(np.float32)
        return inputs


def mel_bands(sample_rate: int, size: int, warp: float = 1.0) -> npt.NDArray[np.float64]:
    """Triangular filters [bins, NUM_BANDS], each summing to about one over its bins."""
    low, high = _mel(LOWEST_HZ), _mel(HIGHEST_HZ)
    edges = 700 * (10 ** (np.linspace(low, high, NUM_BANDS + 2) / 2595) - 1) * warp
    hz = np.fft.rfftfreq(size, 1 / sample_rate)[:, None]
    rise = (hz - edges[:-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[2:] - hz) / (edges[2:] - edges[1:-1])
    filters = np.maximum(np.minimum(rise, fall), 0.0)
    return filters / size


def _mel(hz: float) -> float:
    return float(2595 * np.log10(1 + hz / 700))


class AcousticModel:
    """Score the sounds of one utterance as log-likelihood ratios: each against its frequency in all speech."""

    def __init__(self, weights: AcousticWeights, sample_rate: int) -> None:
        self._weights = weights
        self._energies = BandEnergies(sample_rate)
        self._step_samples = step_samples(sample_rate)
        silence = np.full((CONTEXT_FRAMES, NUM_BANDS), -0.5, np.float32)
        self._frames = silence
        self._num_samples = 0
        self._num_steps = 0

    def push(self, pcm: Floats) -> list[Floats]:
        """Blocks [BLOCK_STEPS, num_sounds], each 80 ms, about 80 to 160 ms behind the PCM."""
        self._num_samples += pcm.size
        return [scores for block in self._energies.push(pcm) for scores in self._score(block)]

    def finish(self) -> list[Floats]:
        """The rest, cut where the speech ends."""
        num_steps = -(-self._num_samples // self._step_samples)
        rest = []
        silence = np.zeros(self._step_samples * BLOCK_STEPS, np.float32)
        while self._num_steps < num_steps:
            rest += [scores for block in self._energies.push(silence) for scores in self._score(block)]
        if self._num_steps > num_steps:
            rest[-1] = rest[-1][: num_steps - self._num_steps]
        return rest

    def _score(self, block: Floats) -> list[Floats]:
        self._frames = np.concatenate([self._frames, block])
        if len(self._frames) < BLOCK_FRAMES + 2 * CONTEXT_FRAMES:
            return []
        views = self._frames[STEP_FRAMES]
        self._frames = self._frames[BLOCK_FRAMES:]
        self._num_steps += BLOCK_STEPS
        return [self._weights.scores(views.reshape(BLOCK_STEPS, -1))]
