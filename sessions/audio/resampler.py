"""A stream at one rate becomes a stream at another, with a small fixed delay and not one sample more or less.

A polyphase windowed-sinc filter (Kaiser window). Every output is one dot product of its own inputs, so any cut of the
input gives the same bits. The filter looks ``delay_samples`` ahead; the start is trimmed by as much and ``flush``
brings the rest, so that the signal stays in its place and n samples become n * ratio, rounded.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd

import numpy as np
import numpy.typing as npt

from sessions.audio.pcm import EMPTY, Pcm

MAX_FACTOR = 640
# Zero crossings of the sinc per side: from 24 to 8 kHz it passes 3.4 kHz, stops 4.8 kHz and delays by 2 ms.
NUM_ZERO_CROSSINGS = 16
# Stop band below -85 dB.
KAISER_BETA = 8.5
# With more phases, each of a few outputs, a gather costs less than a call for each phase.
MAX_VIEWED_PHASES = 16


class Resampler:
    """Resample a stream by a rational ratio; raises ``ValueError`` if its lowest terms exceed 640."""

    def __init__(self, from_rate: int, to_rate: int) -> None:
        self.from_rate, self.to_rate = from_rate, to_rate
        self._up, self._down = _factors(from_rate, to_rate)
        self._bank = filter_bank(self._up, self._down)
        self._restart()

    def _restart(self) -> None:
        self._num_in = self._num_out = 0
        # Inputs that later outputs need; the first output begins with silence before the signal.
        self._window = np.zeros(self.delay_samples, np.float32)
        self._window_start = -self.delay_samples

    @property
    def delay_samples(self) -> int:
        """Input samples of lookahead; 0 when the rates are equal."""
        return 0 if self._up == self._down else self._bank.shape[1] // 2

    def push(self, pcm: Pcm) -> Pcm:
        if self._up == self._down:
            return pcm
        self._num_in += pcm.size
        return self._emit(pcm, self._ready_until(self._num_in))

    def num_ready(self, num_samples: int) -> int:
        """Return the number of samples that ``push`` of ``num_samples`` returns."""
        if self._up == self._down:
            return num_samples
        return max(self._ready_until(self._num_in + num_samples) - self._num_out, 0)

    def skip(self, pcm: Pcm) -> int:
        """Count what ``push`` returns, without computing it."""
        num_skipped = self.num_ready(pcm.size)
        if self._up != self._down:
            self._num_in += pcm.size
            self._num_out += num_skipped
            self._window = np.concatenate([self._window, pcm])
            self._discard_history()
        return num_skipped

    def flush(self) -> Pcm:
        """The rest of the signal pushed so far, as if silence followed. What is pushed next begins a new signal."""
        if self._up == self._down:
            return EMPTY
        ending = np.zeros(self._bank.shape[1], np.float32)
        out = self._emit(ending, (2 * self._num_in * self._up + self._down) // (2 * self._down))
        self._restart()
        return out

    def _ready_until(self, num_in: int) -> int:
        """Return the outputs whose inputs are among the first ``num_in``: output k sits at input k * down / up."""
        last_center = num_in - 1 - self.delay_samples
        return max(((last_center + 1) * self._up - 1) // self._down + 1, 0)

    def _emit(self, pcm: Pcm, until: int) -> Pcm:
        self._window = np.concatenate([self._window, pcm])
        if until <= self._num_out:
            return EMPTY
        out: Pcm = np.empty(until - self._num_out, np.float32)
        if self._up <= MAX_VIEWED_PHASES:
            self._filter_by_phase(out)
        else:
            self._filter_gathered(out)
        self._num_out = until
        self._discard_history()
        return out

    def _filter_by_phase(self, out: Pcm) -> None:
        """Compute the outputs of each phase at once, whose inputs lie ``down`` places apart."""
        for first in range(min(self._up, out.size)):
            center, phase = divmod((self._num_out + first) * self._down, self._up)
            of_phase = out[first :: self._up]
            np.vecdot(self._windows(center, self._down, of_phase.size), self._bank[phase], out=of_phase)

    def _filter_gathered(self, out: Pcm) -> None:
        """Compute the same with a copy of the inputs of each output."""
        centers, phases = np.divmod(np.arange(self._num_out, self._num_out + out.size) * self._down, self._up)
        windows = self._windows(centers[0], 1, centers[-1] - centers[0] + 1)
        np.vecdot(windows[centers - centers[0]], self._bank[phases], out=out)

    def _windows(self, center: int, step: int, num_windows: int) -> Pcm:
        """Return views [num_windows, taps] of the inputs around every ``step``-th place from ``center`` on."""
        start = center - self.delay_samples - self._window_start
        item = self._window.itemsize
        shape, strides = (num_windows, self._bank.shape[1]), (step * item, item)
        return np.ndarray(shape, np.float32, self._window, start * item, strides)  # as_strided takes ten times as long

    def _discard_history(self) -> None:
        needed_from = self._num_out * self._down // self._up - self.delay_samples
        self._window = self._window[needed_from - self._window_start :]
        self._window_start = needed_from


def _factors(from_rate: int, to_rate: int) -> tuple[int, int]:
    if from_rate < 1 or to_rate < 1:
        raise ValueError(f"sample rates must be positive, got {from_rate} and {to_rate}")
    divisor = gcd(from_rate, to_rate)
    up, down = to_rate // divisor, from_rate // divisor
    if max(up, down) > MAX_FACTOR:
        raise ValueError(
            f"{from_rate} to {to_rate} Hz is {up}/{down}; at most {MAX_FACTOR} on either side can be served"
        )
    return up, down


@lru_cache(maxsize=32)
def filter_bank(up: int, down: int) -> npt.NDArray[np.float32]:
    """Taps of every phase, [up, taps]; tap t of phase p weighs the input t - taps // 2 places after the output's, the
    output lying p / up after its input. Each phase sums to one, so that a constant stays constant."""
    stretch = max(up, down) / up
    reach = int(np.ceil(NUM_ZERO_CROSSINGS * stretch)) + (up > 1)
    distance = (np.arange(-reach, reach + 1) - np.arange(up)[:, None] / up) / stretch
    inside = np.clip(1 - (distance / NUM_ZERO_CROSSINGS) ** 2, 0, None)
    weights = np.sinc(distance) * np.i0(KAISER_BETA * np.sqrt(inside)) * (inside > 0)
    bank: npt.NDArray[np.float32] = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    bank.flags.writeable = False
    return bank
