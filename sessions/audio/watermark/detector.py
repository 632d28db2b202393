"""Find the watermark in a recording, read its payload, and report where it is.

Each cell's energy is compared with those before and after it, at every 5 ms. The sum over all pilots, each with its
sign, is a score in standard deviations. Without the mark the signs are random, whatever the sound is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sessions.audio.pcm import Pcm
from sessions.audio.watermark.pattern import (
    FRAME_MS,
    NUM_BANDS,
    NUM_CODE_BITS,
    PERIOD_FRAMES,
    CellPattern,
    band_weights,
    decode,
)

DETECT_RATE = 16_000
# Score from which a window is marked: by chance once in a billion trials, of which a window has 384.
MIN_SCORE = 6.0
WINDOW_S = 12.0
HOPS_PER_FRAME = 4
FRAME_SAMPLES = DETECT_RATE * FRAME_MS // 1000
HOP_SAMPLES = FRAME_SAMPLES // HOPS_PER_FRAME
NUM_BINS = 257
# Changes of the logarithm of the energy beyond this count less, since speech makes them.
SPREAD = 1.0
# Energies below these mean nothing: of the band's mean, of the loudest band's mean, and noise that is always there.
BAND_FLOOR, TOTAL_FLOOR = 1e-3, 1e-6
NOISE_QUANTILE, NOISE_FACTOR = 0.1, 2.0
# Digital silence has a logarithm, too.
MIN_POWER = 1e-12

Cells = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MarkedSpan:
    """A part of a recording with the mark, as exact as the windows: half of ``WINDOW_S``."""

    start_s: float
    end_s: float
    # Standard deviations above what chance gives.
    score: float
    # ``None`` if no checksum matches. A wrong one matches once in about 2,000 windows that cannot be read.
    payload: int | None


class WindowScore(NamedTuple):
    """The best alignment of the pattern with a window."""

    score: float
    # ``None`` below ``MIN_SCORE``, or if no checksum matches.
    payload: int | None


def find_watermark(pcm: Pcm, key: bytes) -> list[MarkedSpan]:
    """Return the marked parts of mono speech at ``DETECT_RATE``, in order; none if it has no mark of this key.

    Takes about 2 ms per second of speech.
    """
    pattern = CellPattern.from_key(key)
    size = int(WINDOW_S * DETECT_RATE)
    last = max(pcm.size - size, 0)
    starts = [*range(0, last, size // 2), last]
    spans: list[MarkedSpan] = []
    for start in starts:
        found = score_window(pcm[start : start + size], pattern)
        if found.score >= MIN_SCORE:
            end_s = min(start + size, pcm.size) / DETECT_RATE
            _append(spans, MarkedSpan(start / DETECT_RATE, end_s, found.score, found.payload))
    return spans


def _append(spans: list[MarkedSpan], span: MarkedSpan) -> None:
    """Append a span, or extend the last one, where both overlap and neither contradicts the other."""
    before = spans[-1] if spans else None
    payloads = {span.payload, before.payload if before else None} - {None}
    if before is None or span.start_s > before.end_s or len(payloads) > 1:
        spans.append(span)
        return
    payload = next(iter(payloads), None)
    spans[-1] = MarkedSpan(before.start_s, span.end_s, max(before.score, span.score), payload)


def score_window(pcm: Pcm, pattern: CellPattern) -> WindowScore:
    """Score all alignments of the pattern with speech at ``DETECT_RATE``, and read the payload if it is marked."""
    return score_cells(cell_scores(cell_energies(pcm)), pattern)


def score_cells(cells: Cells, pattern: CellPattern) -> WindowScore:
    """Score all alignments of the pattern with the scores of cells, and read the payload if it is marked."""
    if not cells.shape[0]:
        return WindowScore(0.0, None)
    folded = fold(cells)
    best = align(folded, pattern)
    if best.score < MIN_SCORE:
        return WindowScore(best.score, None)
    values = np.roll(folded.values[best.phase], -best.shift, axis=0) * pattern.signs
    is_data = pattern.bit_indices >= 0
    soft_bits = np.bincount(pattern.bit_indices[is_data], values[is_data], NUM_CODE_BITS)
    return WindowScore(best.score, decode(soft_bits.astype(np.float64)))


class FoldedCells(NamedTuple):
    """Sums over all periods, by the phase of their hops: [phases, frames, bands]."""

    values: Cells
    # Over the frames, of the values and of their squares.
    spectra: npt.NDArray[np.complex128]
    square_spectra: npt.NDArray[np.complex128]


def fold(cells: Cells) -> FoldedCells:
    period = PERIOD_FRAMES * HOPS_PER_FRAME
    num_periods = -(-cells.shape[0] // period)
    padded = np.zeros((num_periods * period, NUM_BANDS))
    padded[: cells.shape[0]] = cells
    sums = padded.reshape(num_periods, PERIOD_FRAMES, HOPS_PER_FRAME, NUM_BANDS).sum(0)
    values = np.ascontiguousarray(sums.transpose(1, 0, 2))
    return FoldedCells(values, np.fft.rfft(values, axis=1), np.fft.rfft(values**2, axis=1))


class Alignment(NamedTuple):
    score: float
    # Where the pattern begins.
    phase: int
    shift: int


def align(folded: FoldedCells, pattern: CellPattern) -> Alignment:
    """Return the best of all shifts by hops."""
    pilots = (pattern.bit_indices < 0).astype(np.float64)
    sums = _correlate(folded.spectra, pilots * pattern.signs)
    # Variance of the sum if each sign were drawn at random: the mark of another key repeats with the period, too.
    variances = np.maximum(_correlate(folded.square_spectra, pilots), 1e-9)
    scores = sums / np.sqrt(variances)
    phase, shift = np.unravel_index(scores.argmax(), scores.shape)
    return Alignment(float(scores[phase, shift]), int(phase), int(shift))


def _correlate(spectra: npt.NDArray[np.complex128], weights: Cells) -> Cells:
    """Sum of cells times weights for each cyclic shift in time, over all bands: [phases, shifts]."""
    products = spectra * np.conj(np.fft.rfft(weights, axis=0))
    return np.fft.irfft(products.sum(2), PERIOD_FRAMES)


def cell_energies(pcm: Pcm) -> Cells:
    """Logarithm of the energy of each cell at a hop of 5 ms, [hops, bands]."""
    if pcm.size < FRAME_SAMPLES:
        return np.zeros((0, NUM_BANDS))
    taper = np.sqrt(np.sin(np.pi * (np.arange(FRAME_SAMPLES) + 0.5) / FRAME_SAMPLES))
    frames = np.lib.stride_tricks.sliding_window_view(pcm, FRAME_SAMPLES)[::HOP_SAMPLES] * taper
    powers = np.abs(np.fft.rfft(frames, 2 * (NUM_BINS - 1))) ** 2 @ band_weights(DETECT_RATE, NUM_BINS).T
    means, noise = powers.mean(0), np.quantile(powers, NOISE_QUANTILE, axis=0)
    floor = BAND_FLOOR * means + TOTAL_FLOOR * means.max() + NOISE_FACTOR * noise
    return np.asarray(np.log(powers + floor + MIN_POWER))


def cell_scores(energies: Cells) -> Cells:
    """How much each cell speaks for a raised energy against a lowered one (locally optimal for heavy tails).

    A cell's own difference to its neighbors counts, and so do theirs to it.
    """
    surprise = np.zeros_like(energies)
    hops = HOPS_PER_FRAME
    if energies.shape[0] > 2 * hops:
        surprise[hops:-hops] = energies[hops:-hops] - 0.5 * (energies[: -2 * hops] + energies[2 * hops :])
    limited = surprise / (surprise**2 + SPREAD**2)
    scores = limited.copy()
    scores[:-hops] -= 0.5 * limited[hops:]
    scores[hops:] -= 0.5 * limited[:-hops]
    return scores


def common_payload(spans: Sequence[MarkedSpan]) -> int | None:
    """The payload of the span with the highest score that has one."""
    readable = [span for span in spans if span.payload is not None]
    return max(readable, key=lambda span: span.score).payload if readable else None
