"""Embed the watermark in a stream: each cell of time and frequency is raised or lowered by its sign.

The filter of a frame follows from the key, the payload and the frame's number alone, so the same samples come out
however the input is split. It has minimum phase and needs no lookahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd

import numpy as np
import numpy.typing as npt

from sessions.audio.pcm import EMPTY, Pcm
from sessions.audio.segment_joiner import hann_ramp
from sessions.audio.watermark.pattern import BAND_EDGES_HZ, FRAME_MS, PERIOD_FRAMES, CellPattern, band_weights

# Masking: harmonics, which the ear resolves at low frequencies, mask far less of an error than noise-like bands do.
# The depth grows with the logarithm of the frequency between these two.
LOW_HZ, LOW_DEPTH_DB = 700.0, 0.8
HIGH_HZ, HIGH_DEPTH_DB = 3_000.0, 3.0
# Crossfade from the filter of one frame to that of the next.
FADE_MS = 5
FILTER_MS = 6
# Bins of the curves from which the filters are made; with this number the cepstrum does not overlap itself.
NUM_BINS = 513
# Outputs of one row of a matrix product; with 8 or 40 it takes a fifth longer.
MAX_BLOCK_SAMPLES = 20


@dataclass(frozen=True, slots=True)
class Watermark:
    """The watermark of a deployment."""

    # Secret: with it the watermark can be found, forged and removed.
    key: bytes
    # 32 bits that are read back.
    payload: int

    def create_embedder(self, sample_rate: int) -> WatermarkEmbedder:
        return WatermarkEmbedder(filter_matrices(self.key, self.payload, sample_rate), sample_rate)


class WatermarkEmbedder:
    """Marks one response, whose first sample has the first phase of the pattern."""

    def __init__(self, matrices: Pcm, sample_rate: int) -> None:
        """``matrices`` are those of ``filter_matrices``."""
        self._matrices = matrices
        _, self._num_inputs, self._block_samples = matrices.shape
        self._num_past = self._num_inputs - self._block_samples
        self._frame_samples = sample_rate * FRAME_MS // 1000
        self._fade = hann_ramp(sample_rate * FADE_MS // 1000)
        self._history = np.zeros(self._num_past, np.float32)
        # Where the next sample is.
        self._frame, self._offset = 0, 0

    def push(self, pcm: Pcm) -> Pcm:
        """Return as many samples as are given."""
        if not pcm.size:
            return EMPTY
        start, end = self._offset, self._offset + pcm.size
        num_frames = -(-end // self._frame_samples)
        # Whole frames: what lies outside of the input is filtered for nothing, which takes less than a case for it.
        signal = np.zeros(num_frames * self._frame_samples + self._num_past, np.float32)
        signal[start : start + self._num_past] = self._history
        signal[start + self._num_past : end + self._num_past] = pcm
        out = self._filter_frames(signal, num_frames).reshape(-1)[start:end]
        self._history = signal[end : end + self._num_past].copy()
        self._advance(pcm.size)
        return out

    def skip(self, pcm: Pcm) -> None:
        """Go on behind these samples without marking them."""
        self._history = np.concatenate([self._history, pcm])[pcm.size :]
        self._advance(pcm.size)

    def _advance(self, num_samples: int) -> None:
        num_frames, self._offset = divmod(self._offset + num_samples, self._frame_samples)
        self._frame = (self._frame + num_frames) % PERIOD_FRAMES

    def _filter_frames(self, signal: Pcm, num_frames: int) -> Pcm:
        """Filter whole frames, of which ``signal`` has the samples and those before them.

        Each output is a sum of its own inputs in one order, and of zeros: any split gives the same bits."""
        matrices = self._matrices[self._frame : self._frame + num_frames + 1]
        if len(matrices) <= num_frames:
            matrices = self._matrices[np.arange(self._frame, self._frame + num_frames + 1) % PERIOD_FRAMES]
        shape = (num_frames, self._frame_samples // self._block_samples, self._num_inputs)
        strides = [size * signal.itemsize for size in (self._frame_samples, self._block_samples, 1)]
        # as_strided takes ten times as long. The product needs rows that do not overlap.
        rows = np.ndarray(shape, np.float32, signal, 0, strides).copy()
        out = (rows @ matrices[1:]).reshape(num_frames, -1)
        last = (rows[:, : self._fade.size // self._block_samples] @ matrices[:-1]).reshape(num_frames, -1)
        last += (out[:, : self._fade.size] - last) * self._fade
        out[:, : self._fade.size] = last
        return out


@lru_cache(maxsize=8)
def filter_matrices(key: bytes, payload: int, sample_rate: int) -> Pcm:
    """Filters of the last frame and then of all frames as matrices [frames, inputs, outputs]: outputs of a block out
    of all their inputs."""
    filters = frame_filters(key, payload, sample_rate)
    num_taps = filters.shape[1]
    common_samples = gcd(sample_rate * FRAME_MS // 1000, sample_rate * FADE_MS // 1000)
    size = next(size for size in range(MAX_BLOCK_SAMPLES, 0, -1) if common_samples % size == 0)
    matrices = np.zeros((PERIOD_FRAMES + 1, num_taps + size - 1, size), np.float32)
    for output in range(size):
        matrices[1:, output : output + num_taps, output] = filters
    matrices[0] = matrices[-1]
    matrices.flags.writeable = False
    return matrices


@lru_cache(maxsize=8)
def frame_filters(key: bytes, payload: int, sample_rate: int) -> Pcm:
    """Filters of all frames of a period, [frames, taps], the last tap first. Takes some milliseconds once."""
    gains_db = CellPattern.from_key(key).signs_of(payload) * band_depths_db()
    curves = gains_db @ band_weights(sample_rate, NUM_BINS) * (np.log(10) / 20)
    # The logarithm of a minimum-phase spectrum has a cepstrum without a negative half.
    cepstra = np.fft.irfft(curves)
    cepstra[:, 1 : NUM_BINS - 1] *= 2
    cepstra[:, NUM_BINS:] = 0
    taps = np.fft.irfft(np.exp(np.fft.rfft(cepstra)))[:, : sample_rate * FILTER_MS // 1000]
    num_faded = taps.shape[1] // 4
    taps[:, -num_faded:] *= hann_ramp(num_faded)[::-1]
    filters: Pcm = np.ascontiguousarray(taps[:, ::-1], np.float32)
    filters.flags.writeable = False
    return filters


def band_depths_db() -> npt.NDArray[np.float64]:
    """By how much each band is raised or lowered."""
    centers = np.log((BAND_EDGES_HZ[:-1] + BAND_EDGES_HZ[1:]) / 2)
    return np.interp(centers, np.log([LOW_HZ, HIGH_HZ]), [LOW_DEPTH_DB, HIGH_DEPTH_DB])
