from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions.audio.pcm import Pcm
from sessions.audio.time_stretch import MAX_SPEED, MIN_SPEED, TimeStretcher
from sessions.audio_track import STRETCH_MS
from tests.sessions.audio.signals import pieces, speech_like

RATE = 24_000
TASKS = Path("/proc/self/task")


def stretched(speed: float, *sounds: Pcm) -> Pcm:
    stretcher = TimeStretcher(RATE, speed)
    return np.concatenate([*(stretcher.push(sound) for sound in sounds), stretcher.flush()])


@pytest.mark.parametrize("speed", [0.4, 0.8, 1.0, 1.25, 3.0])
def test_any_cut_gives_the_same_signal(speed: float) -> None:
    signal = speech_like(9_000, RATE, seed=1)
    whole = stretched(speed, signal)

    @settings(max_examples=10)
    @given(pieces(signal))
    def check(cut: list[Pcm]) -> None:
        np.testing.assert_array_equal(stretched(speed, *cut), whole)

    check()


@given(st.integers(0, 6_000), st.floats(MIN_SPEED, MAX_SPEED))
def test_it_is_as_long_as_the_speed_asks(num_samples: int, speed: float) -> None:
    signal = np.zeros(num_samples, np.float32)
    assert stretched(speed, signal).size == round(num_samples / speed)


def test_speed_one_is_the_identity() -> None:
    signal = speech_like(5_000, RATE, seed=2)
    stretcher = TimeStretcher(RATE, 1.0)
    assert stretcher.push(signal) is signal
    assert stretcher.flush().size == 0


@pytest.mark.parametrize("speed", [0.25, 0.5, 0.75, 1.5, 2.0, 4.0])
def test_the_pitch_stays(speed: float) -> None:
    time_s = np.arange(2 * RATE) / RATE
    tone = (0.3 * np.sin(2 * np.pi * 220 * time_s)).astype(np.float32)
    out = stretched(speed, tone)
    spectrum = np.abs(np.fft.rfft(out * np.hanning(out.size)))
    assert np.fft.rfftfreq(out.size, 1 / RATE)[spectrum.argmax()] == pytest.approx(220, abs=6)


@pytest.mark.parametrize("speed", [0.25, 0.49, 0.5, 0.9, 1.1, 2.0, 4.0])
def test_no_more_is_held_back_than_a_pause_brings_out(speed: float) -> None:
    signal = speech_like(30_000, RATE, seed=3)
    for num_samples in (7_000, 19_999, 30_000):
        stretcher = TimeStretcher(RATE, speed)
        silence = np.zeros(RATE * STRETCH_MS // 1000, np.float32)
        out = stretcher.push(signal[:num_samples]).size + stretcher.push(silence).size
        assert out >= num_samples / speed


def test_a_new_signal_begins_after_a_flush() -> None:
    signal = speech_like(5_000, RATE, seed=4)
    stretcher = TimeStretcher(RATE, 1.5)
    first = np.concatenate([stretcher.push(signal), stretcher.flush()])
    second = np.concatenate([stretcher.push(signal), stretcher.flush()])
    np.testing.assert_array_equal(first, second)


def test_stretchers_start_no_threads() -> None:
    stretchers = [TimeStretcher(24_000, 1.3) for _ in range(10)]
    num_threads = len(list(TASKS.iterdir()))
    for stretcher in stretchers:
        stretcher.push(np.zeros(24_000, np.float32))
    assert len(list(TASKS.iterdir())) == num_threads
