"""Embed the watermark in a stream: each cell of time and frequency is raised or lowered by its sign.

The filter of a frame follows from the key, the payload and the frame's number alone, so the same samples come out
however the input is split. It has minimum phase and needs no lookahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

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


@dataclass(frozen=True, slots=True)
class Watermark:
    """The watermark of a deployment."""

    # Secret: with it the watermark can be found, forged and removed.
    key: bytes
    # 32 bits that are read back.
    payload: int

    def create_embedder(self, sample_rate: int) -> WatermarkEmbedder:
        return WatermarkEmbedder(frame_filters(self.key, self.payload, sample_rate), sample_rate)


class WatermarkEmbedder:
    """Marks one response, whose first sample has the first phase of the pattern."""

    def __init__(self, filters: Pcm, sample_rate: int) -> None:
        """``filters`` are [frames, taps], the last tap first."""
        self._filters = filters
        self._num_past = filters.shape[1] - 1
        self._frame_samples = sample_rate * FRAME_MS // 1000
        self._fade = hann_ramp(sample_rate * FADE_MS // 1000)
        self._history = np.zeros(self._num_past, np.float32)
        # Where the next sample is.
        self._frame, self._offset = 0, 0

    def push(self, pcm: Pcm) -> Pcm:
        """Return as many samples as are given."""
        if not pcm.size:
            return EMPTY
        signal = np.concatenate([self._history, pcm])
        self._history = signal[pcm.size :]
        out, start = np.empty(pcm.size, np.float32), 0
        while start < pcm.size:
            end = min(start + self._frame_samples - self._offset, pcm.size)
            out[start:end] = self._filter(signal[start : end + self._num_past], end - start)
            self._offset += end - start
            if self._offset == self._frame_samples:
                self._frame, self._offset = (self._frame + 1) % PERIOD_FRAMES, 0
            start = end
        return out

    def skip(self, pcm: Pcm) -> None:
        """Go on behind these samples without marking them."""
        self._history = np.concatenate([self._history, pcm])[pcm.size :]
        num_frames, self._offset = divmod(self._offset + pcm.size, self._frame_samples)
        self._frame = (self._frame + num_frames) % PERIOD_FRAMES

    def _filter(self, window: Pcm, num_samples: int) -> Pcm:
        """Filter samples of one frame; ``window`` begins with those before them."""
        out: Pcm = np.correlate(window, self._filters[self._frame], "valid")
        num_faded = min(self._fade.size - self._offset, num_samples)
        if num_faded > 0:
            # Each output is a dot product of its own inputs: any split gives the same bits.
            last = np.correlate(window[: num_faded + self._num_past], self._filters[self._frame - 1], "valid")
            last += (out[:num_faded] - last) * self._fade[self._offset : self._offset + num_faded]
            out[:num_faded] = last
        return out


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
