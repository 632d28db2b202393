"""What can be measured of speech without understanding it: level, silence, clipping, pitch, timbre, likeness."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pesq import NoUtterancesError, pesq
from pystoi import stoi

RATE_HZ = 16000
HOP = 160
# Below the loudest 10 ms by so much is silence at the edges.
SILENT_DB = -45.0
CLIPPED = 0.999
# pystoi gives 1e-5 for less than 30 frames of speech.
TOO_SHORT_STOI = 1e-4
PITCH_WINDOW = 640
MIN_PITCH_HZ, MAX_PITCH_HZ = 60, 400
# Least autocorrelation, of 1, that counts as voiced.
VOICED = 0.55
# Of the roll-off, in samples, and the share of energy below it.
BAND_WINDOW = 1024
ROLL_OFF_SHARE = 0.99
# Where a tick at the start would be.
START_S = 0.02

Signal = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Levels:
    # Root mean square between the outer silences.
    loudness_dbfs: float
    lead_s: float
    tail_s: float
    # Share of samples at full scale.
    clipped: float


def levels(signal: Signal) -> Levels:
    """Of 16 kHz speech; a silent signal is all lead."""
    energy = _frame_energy(signal)
    loud = np.flatnonzero(energy > max(energy.max(initial=0) * 10 ** (SILENT_DB / 10), 1e-9))
    if not len(loud):
        return Levels(-120.0, len(signal) / RATE_HZ, 0.0, 0.0)
    first, last = int(loud[0]), int(loud[-1]) + 1
    inside = float(np.mean(signal[first * HOP : last * HOP] ** 2))
    clipped = float(np.mean(np.abs(signal) >= CLIPPED))
    return Levels(10 * np.log10(inside + 1e-12), first * HOP / RATE_HZ, (len(signal) - last * HOP) / RATE_HZ, clipped)


def without_outer_silence(signal: Signal) -> Signal:
    """16 kHz speech from its first to its last loud 10 ms; a silent signal is returned as it is."""
    found = levels(signal)
    start, end = round(found.lead_s * RATE_HZ), len(signal) - round(found.tail_s * RATE_HZ)
    return signal[start:end] if end > start else signal


def _frame_energy(signal: Signal) -> npt.NDArray[np.float64]:
    whole = len(signal) // HOP
    squares = np.square(signal[: whole * HOP].astype(np.float64))
    energy: npt.NDArray[np.float64] = squares.reshape(whole, HOP).mean(1)
    return energy


@dataclass(frozen=True)
class Band:
    """Of speech at its own rate, not at 16 kHz."""

    # Frequency below which 99 % of the energy lies.
    roll_off_hz: float
    # Largest sample of the first 20 ms.
    start_peak: float


def band(signal: Signal, rate_hz: int) -> Band:
    """Of at least one window of 1,024 samples; shorter speech is padded."""
    padded = np.pad(signal, (0, max(0, BAND_WINDOW - len(signal))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, BAND_WINDOW)[:: BAND_WINDOW // 2]
    energy = np.square(np.abs(np.fft.rfft(frames * np.hanning(BAND_WINDOW)))).sum(0).cumsum()
    roll_off = int(np.searchsorted(energy, ROLL_OFF_SHARE * energy[-1]))
    start = np.abs(signal[: round(START_S * rate_hz)])
    return Band(roll_off * rate_hz / BAND_WINDOW, float(start.max(initial=0)))


@dataclass(frozen=True)
class VoicePrint:
    # Median over voiced frames; 0 where nothing is voiced.
    pitch_hz: float
    # Centre of gravity of the mean spectrum of voiced frames below 4 kHz, after pre-emphasis of 6 dB an octave.
    centroid_hz: float

    @property
    def point(self) -> npt.NDArray[np.float64]:
        return np.log2([max(self.pitch_hz, 1.0), max(self.centroid_hz, 1.0)])


def voice_print(signal: Signal) -> VoicePrint:
    if len(signal) < PITCH_WINDOW:
        return VoicePrint(0.0, 0.0)
    frames = np.lib.stride_tricks.sliding_window_view(signal, PITCH_WINDOW)[:: 2 * HOP] * np.hanning(PITCH_WINDOW)
    spectrum = np.abs(np.fft.rfft(frames, 2 * PITCH_WINDOW)) ** 2
    correlation = np.fft.irfft(spectrum)
    window = np.fft.irfft(np.abs(np.fft.rfft(np.hanning(PITCH_WINDOW), 2 * PITCH_WINDOW)) ** 2)
    shortest, longest = RATE_HZ // MAX_PITCH_HZ, RATE_HZ // MIN_PITCH_HZ
    lags = correlation[:, shortest:longest] / (correlation[:, :1] + 1e-9) / (window[shortest:longest] / window[0])
    loud = correlation[:, 0] > correlation[:, 0].max() * 10**-2.5
    voiced = loud & (lags.max(1) > VOICED)
    if not voiced.any():
        return VoicePrint(0.0, 0.0)
    pitch = float(np.median(RATE_HZ / (shortest + _first_peak(lags[voiced]))))
    frequencies = np.fft.rfftfreq(2 * PITCH_WINDOW, 1 / RATE_HZ)
    low = frequencies < 4000
    mean = spectrum[voiced][:, low].mean(0) * frequencies[low] ** 2
    return VoicePrint(pitch, float((mean * frequencies[low]).sum() / mean.sum()))


def _first_peak(lags: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
    """The first local maximum nearly as high as the highest: two periods correlate as well as one."""
    middle = lags[:, 1:-1]
    peaks = (middle >= lags[:, :-2]) & (middle >= lags[:, 2:]) & (middle > 0.9 * lags.max(1, keepdims=True))
    places: npt.NDArray[np.intp] = np.where(peaks.any(1), 1 + peaks.argmax(1), lags.argmax(1))
    return places


def share_told_apart(prints: Sequence[VoicePrint], own: Sequence[VoicePrint], other: Sequence[VoicePrint]) -> float:
    """Share of ``prints`` nearer to the mean of ``own`` than to that of ``other`` (the teacher's two voices).

    Each of the two numbers is measured in units of its spread within a voice.
    """
    ours, theirs = (np.stack([one.point for one in voice]) for voice in (own, other))
    spread = np.sqrt((ours.var(0) + theirs.var(0)) / 2) + 1e-6
    points = np.stack([one.point for one in prints])
    near, far = (np.linalg.norm((points - voice.mean(0)) / spread, axis=1) for voice in (ours, theirs))
    return float(np.mean(near < far))


@dataclass(frozen=True)
class Likeness:
    # Short-time objective intelligibility at 16 kHz, 1 at best; nan for speech too short to be measured.
    stoi: float
    # Wide-band PESQ, 4.6 at best; nan where it finds no speech.
    pesq: float


def likeness(original: Signal, copy: Signal) -> Likeness:
    """How well ``copy`` keeps ``original``, both at 16 kHz and starting together.

    They are not aligned first: a codec adds no delay and does not keep the phases that an alignment would look at.
    """
    length = min(len(original), len(copy))
    original, copy = original[:length], copy[:length]
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        clear = float(stoi(original, copy, RATE_HZ))
    try:
        quality = float(pesq(RATE_HZ, original, copy, "wb"))
    except NoUtterancesError:
        quality = float("nan")
    return Likeness(clear if clear > TOO_SHORT_STOI else float("nan"), quality)
