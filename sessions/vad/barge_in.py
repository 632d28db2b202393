"""Detect the onset of a caller's speech in encoded audio.

Two tracks of windows, half a window apart, cover each moment twice: speech that begins late in one window begins
early in another. Audio below the noise floor or below the possible echo of playout is not speech; the network
receives it only when louder audio follows.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sessions.audio.resampler import Resampler
from sessions.vad.echo_suppression import EchoThreshold
from sessions.vad.energy import DECODERS, SILENCE, SILENCE_DB, NoiseFloor, OnsetDetector
from sessions.vad.silero import CONTEXT_MS, RATES, WINDOW_MS, VadState, WindowSlicer, speech_probabilities

NUM_TRACKS = 2
HOP_MS = WINDOW_MS // NUM_TRACKS
# Fixed cost of a network run, as a number of windows.
INFERENCE_OVERHEAD_WINDOWS = 3
# Skipped windows that are replayed at once, counting runs: 0.4 to 0.8 ms. All of one caller's are 155.
MAX_REPLAYED_WINDOWS = 20
# Audio that may wait for inference; later audio is dropped.
MAX_BUFFERED_MS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BargeInSettings:
    # Minimum speech probability of a window.
    threshold: float = 0.55
    # Minimum duration without a break.
    min_speech_ms: int = 32
    # After this duration speech has ended and may begin again.
    min_silence_ms: int = 320
    # Relative to full scale; lower levels are silence.
    min_level_db: float = -50.0
    # Minimum attenuation of returned playout.
    echo_loss_db: float = 20.0
    # Windows less than this above the noise floor are not speech and skip inference; 0 infers all.
    noise_margin_db: float = 3.0


class VadFormat(NamedTuple):
    """Audio format of windows."""

    encoding: str
    rate: int


class VadWindow(NamedTuple):
    """A window that waits for inference."""

    track: VadState
    # Encoded, with their context.
    samples: bytes
    # Level of playout, or of its echo that may still return.
    playout_db: float


class BargeInDetector:
    """Detects speech: ``push`` adds ``pending`` windows on alternating tracks; ``classify`` pops them in order."""

    def __init__(self, encoding: str, sample_rate: int, settings: BargeInSettings) -> None:
        self._resamples = sample_rate not in RATES
        self.format = VadFormat("pcm_f32le", max(RATES)) if self._resamples else VadFormat(encoding, sample_rate)
        self.pending: deque[VadWindow] = deque()
        self._decode = DECODERS[encoding]
        self._echo = EchoThreshold(settings.echo_loss_db)
        self._settings = settings
        self._from_rate = sample_rate
        self.reset()

    def reset(self) -> None:
        """Reset all state except the echo attenuation."""
        settings = self._settings
        self.pending.clear()
        silence = SILENCE[self.format.encoding]
        window, hop, context = (len(silence) * num for num in window_sizes(self.format.rate))
        self._windows = WindowSlicer(window, hop, silence * (context // len(silence)))
        self._resampler = Resampler(self._from_rate, self.format.rate) if self._resamples else None
        self._tracks = itertools.cycle([VadState() for _ in range(NUM_TRACKS)])
        self._noise = NoiseFloor(settings.noise_margin_db)
        self._onset = OnsetDetector(
            settings.threshold, settings.min_speech_ms, settings.min_silence_ms, WINDOW_MS, HOP_MS
        )

    def push(self, data: bytes, own_db: float = SILENCE_DB) -> None:
        """Add audio; ``own_db`` is the level of playout, or of playout whose echo may still return."""
        if self._resampler is not None:
            data = self._resampler.push(self._decode(data)).tobytes()
        for window in self._windows.push(data):
            if len(self.pending) < MAX_BUFFERED_MS // HOP_MS:
                self.pending.append(VadWindow(next(self._tracks), window, own_db))

    @property
    def speaking(self) -> bool:
        """True from the onset of speech until it has been silent for ``min_silence_ms``."""
        return self._onset.speaking

    def needs_inference(self, window: VadWindow, level_db: float) -> bool:
        """Return True if a window at this level needs inference. During playout every window does, since the
        caller may interrupt at any moment."""
        if not self._settings.noise_margin_db or window.playout_db > SILENCE_DB:
            return True
        return level_db >= self._threshold_db(window) and not self._noise.masks(level_db)

    def classify(self, probability: float | None, level_db: float) -> bool:
        """Record the next window's speech probability, ``None`` without inference, and its level. Return True if
        speech has begun in it."""
        window = self.pending.popleft()
        self._noise.update(level_db, probability)
        is_audible = level_db >= self._threshold_db(window)
        if not is_audible or probability is None or probability < self._settings.threshold:
            self._echo.update(level_db, window.playout_db)
        began = self._onset.push(probability if is_audible and probability is not None else 0.0)
        if began:
            self._echo.on_speech_detected()
        return began

    def detect(self, data: bytes, own_db: float = SILENCE_DB) -> bool:
        """Return True if speech has begun in this audio, window by window."""
        self.push(data, own_db)
        began = []
        while self.pending:
            began += run_detector([self], self.format)
        return bool(began)

    def _threshold_db(self, window: VadWindow) -> float:
        return max(self._settings.min_level_db, self._echo.threshold_db(window.playout_db))


def window_sizes(rate: int) -> tuple[int, int, int]:
    """Return the sizes of a window, of the hop to the next, and of the context before each."""
    return WINDOW_MS * rate // 1000, HOP_MS * rate // 1000, CONTEXT_MS * rate // 1000


def run_detector(detectors: Sequence[BargeInDetector], sound: VadFormat) -> list[BargeInDetector]:
    """Classify a window of each track with one run of the network; return the detectors in which speech has begun.

    Skipped windows of a track run first. A detector with skipped windows left classifies nothing in this call.
    """
    pending = [
        (detector, window) for detector in detectors for window in itertools.islice(detector.pending, NUM_TRACKS)
    ]
    levels = levels_db(
        decode_windows([window.samples for _, window in pending], sound)[:, window_sizes(sound.rate)[2] :]
    )
    selected = [
        detector.needs_inference(window, level_db) for (detector, window), level_db in zip(pending, levels, strict=True)
    ]
    replay_skipped(
        [window.track for (_, window), is_selected in zip(pending, selected, strict=True) if is_selected], sound
    )
    inferred: list[tuple[VadState, bytes]] = []
    # Detector, level, and index of the window in ``inferred``, if it is there.
    results: list[tuple[BargeInDetector, float, int | None]] = []
    behind: set[BargeInDetector] = set()
    for (detector, window), level_db, is_selected in zip(pending, levels, selected, strict=True):
        if is_selected and window.track.skipped:
            behind.add(detector)
        elif detector in behind:
            continue
        elif is_selected:
            results.append((detector, level_db, len(inferred)))
            inferred.append((window.track, window.samples))
        else:
            results.append((detector, level_db, None))
            window.track.skipped.append(window.samples)
    probabilities = run_inference(inferred, sound)
    return [
        detector
        for detector, level_db, at in results
        if detector.classify(None if at is None else probabilities[at], level_db)
    ]


def replay_skipped(tracks: Sequence[VadState], sound: VadFormat) -> None:
    """Run tracks over skipped windows, one window per track and run, up to ``MAX_REPLAYED_WINDOWS``."""
    num_left = MAX_REPLAYED_WINDOWS
    while late := [track for track in tracks if track.skipped][: max(num_left - INFERENCE_OVERHEAD_WINDOWS, 0)]:
        run_inference([(track, track.skipped.popleft()) for track in late], sound)
        num_left -= len(late) + INFERENCE_OVERHEAD_WINDOWS


def run_inference(inferred: list[tuple[VadState, bytes]], sound: VadFormat) -> list[float]:
    """Return the speech probability of each window."""
    if not inferred:
        return []
    tracks, windows = zip(*inferred, strict=True)
    probabilities: list[float] = speech_probabilities(tracks, decode_windows(windows, sound), sound.rate).tolist()
    return probabilities


def decode_windows(windows: Sequence[bytes], sound: VadFormat) -> npt.NDArray[np.float32]:
    """Decode windows to floats, shape [windows, samples]."""
    return DECODERS[sound.encoding](b"".join(windows)).reshape(len(windows), -1)


def levels_db(windows: npt.NDArray[np.float32]) -> list[float]:
    """Return the level of each window, relative to full scale."""
    power = np.mean(np.square(windows, dtype=np.float64), axis=1)
    levels: list[float] = (10 * np.log10(np.maximum(power, 10 ** (SILENCE_DB / 10)))).tolist()
    return levels
