"""Detect the onset of a caller's speech in encoded audio.

Each moment is looked at twice, by windows that begin half a window apart: a voice that begins late in one of them
begins early in another. Audio below the noise floor or below the possible echo of playout is not speech, and
the network is shown it only when something louder follows.
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
# Missed windows that are shown at once, counting runs: 0.4 to 0.8 ms. All of one caller's take 155.
MAX_REPLAYED_WINDOWS = 20
# So much sound may wait to be looked at; what comes beyond it is passed over.
MAX_BUFFERED_MS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BargeInSettings:
    # How likely a window has to be speech.
    threshold: float = 0.55
    # For so long, without a break.
    min_speech_ms: int = 32
    # Then speech has ended, and may begin again.
    min_silence_ms: int = 320
    # Of full scale; what is quieter is silence.
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
    # With its context.
    window: bytes
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
        """``own_db`` is the level of playout, or of playout so recent that its echo may still return."""
        if self._resampler is not None:
            data = self._resampler.push(self._decode(data)).tobytes()
        for window in self._windows.push(data):
            if len(self.pending) < MAX_BUFFERED_MS // HOP_MS:
                self.pending.append(VadWindow(next(self._tracks), window, own_db))

    def needs_inference(self, look: VadWindow, level_db: float) -> bool:
        """Return True if a window at this level needs inference. During playout every window does, since the
        caller may interrupt at any moment."""
        if not self._settings.noise_margin_db or look.playout_db > SILENCE_DB:
            return True
        return level_db >= self._threshold_db(look) and not self._noise.masks(level_db)

    def classify(self, likely: float | None, level_db: float) -> bool:
        """Record the next window's speech probability, ``None`` without inference, and its level. Return True if
        speech has begun in it."""
        look = self.pending.popleft()
        self._noise.update(level_db, likely)
        heard = level_db >= self._threshold_db(look)
        if not heard or likely is None or likely < self._settings.threshold:
            self._echo.update(level_db, look.playout_db)
        began = self._onset.push(likely if heard and likely is not None else 0.0)
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

    def _threshold_db(self, look: VadWindow) -> float:
        return max(self._settings.min_level_db, self._echo.threshold_db(look.playout_db))


def window_sizes(rate: int) -> tuple[int, int, int]:
    """Return the sizes of a window, of the hop to the next, and of the context before each."""
    return WINDOW_MS * rate // 1000, HOP_MS * rate // 1000, CONTEXT_MS * rate // 1000


def run_detector(ears: Sequence[BargeInDetector], sound: VadFormat) -> list[BargeInDetector]:
    """One window of each track by one run of the network. Return the detectors in which speech has begun.

    Tracks that missed some are shown these before; an ear with one that is not through yet judges nothing until then.
    """
    turns = [(ear, look) for ear in ears for look in itertools.islice(ear.pending, NUM_TRACKS)]
    levels = levels_db(decode_windows([look.window for _, look in turns], sound)[:, window_sizes(sound.rate)[2] :])
    all_selected = [ear.needs_inference(look, level_db) for (ear, look), level_db in zip(turns, levels, strict=True)]
    replay_skipped([look.track for (_, look), selected in zip(turns, all_selected, strict=True) if selected], sound)
    shown: list[tuple[VadState, bytes]] = []
    # With the level, and which of those that are shown it is.
    judged: list[tuple[BargeInDetector, float, int | None]] = []
    behind: set[BargeInDetector] = set()
    for (ear, look), level_db, selected in zip(turns, levels, all_selected, strict=True):
        if selected and look.track.skipped:
            behind.add(ear)
        elif ear in behind:
            continue
        elif selected:
            judged.append((ear, level_db, len(shown)))
            shown.append((look.track, look.window))
        else:
            judged.append((ear, level_db, None))
            look.track.skipped.append(look.window)
    likely = run_inference(shown, sound)
    return [ear for ear, level_db, at in judged if ear.classify(None if at is None else likely[at], level_db)]


def replay_skipped(tracks: Sequence[VadState], sound: VadFormat) -> None:
    """Run tracks over skipped windows, one window of each a run, as far as the work of a turn goes."""
    num_left = MAX_REPLAYED_WINDOWS
    while late := [track for track in tracks if track.skipped][: max(num_left - INFERENCE_OVERHEAD_WINDOWS, 0)]:
        run_inference([(track, track.skipped.popleft()) for track in late], sound)
        num_left -= len(late) + INFERENCE_OVERHEAD_WINDOWS


def run_inference(shown: list[tuple[VadState, bytes]], sound: VadFormat) -> list[float]:
    """Return the speech probability of each window."""
    if not shown:
        return []
    tracks, windows = zip(*shown, strict=True)
    likely: list[float] = speech_probabilities(tracks, decode_windows(windows, sound), sound.rate).tolist()
    return likely


def decode_windows(windows: Sequence[bytes], sound: VadFormat) -> npt.NDArray[np.float32]:
    """[windows, samples]"""
    return DECODERS[sound.encoding](b"".join(windows)).reshape(len(windows), -1)


def levels_db(windows: npt.NDArray[np.float32]) -> list[float]:
    power = np.mean(np.square(windows, dtype=np.float64), axis=1)
    levels: list[float] = (10 * np.log10(np.maximum(power, 10 ** (SILENCE_DB / 10)))).tolist()
    return levels
