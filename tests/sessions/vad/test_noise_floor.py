"""The noise of a line is learnt from what is nobody, and follows it up and down."""

from __future__ import annotations

import numpy as np

from sessions.vad.energy import NUM_WINDOWS, NoiseFloor


def heard(noise: NoiseFloor, levels: list[float], likely: float = 0.0) -> list[bool]:
    """Which are noise and nothing else, each learnt as soon as it was told."""
    found = []
    for level in levels:
        found.append(noise.masks(level))
        noise.update(level, None if found[-1] else likely)
    return found


def test_steady_noise_is_known_after_some_windows() -> None:
    levels = (np.random.default_rng(1).standard_normal(1_000) * 0.4 - 45).tolist()
    found = heard(NoiseFloor(3.0), levels)
    assert not any(found[:NUM_WINDOWS])
    assert np.mean(found[NUM_WINDOWS:]) > 0.97


def test_what_is_louder_by_the_margin_is_not_noise() -> None:
    noise = NoiseFloor(3.0)
    heard(noise, [-45.0] * 20)
    assert noise.masks(-42.1)
    assert not noise.masks(-42.0)


def test_what_was_not_looked_at_teaches_no_louder_noise() -> None:
    """Beside our own voice a caller may be too quiet to be heard, and is none the less no noise."""
    noise = NoiseFloor(3.0)
    heard(noise, [-60.0] * 20)
    for _ in range(100):
        noise.update(-40.0, None)
    assert not noise.masks(-40.0)
    assert noise.masks(-60.0)


def test_speech_teaches_nothing() -> None:
    noise = NoiseFloor(3.0)
    heard(noise, [-45.0] * 20)
    assert not any(heard(noise, [-20.0] * 100, likely=0.6))
    assert noise.masks(-45.0)


def test_noise_that_grows_is_learnt_and_noise_that_falls_at_once() -> None:
    noise = NoiseFloor(3.0)
    heard(noise, [-45.0] * 20)
    assert heard(noise, [-30.0] * 20) == [False] * NUM_WINDOWS + [True] * (20 - NUM_WINDOWS)
    heard(noise, [-60.0])
    assert not noise.masks(-35.0), "a quiet voice on a line that has just fallen silent"


def test_between_bursts_the_line_is_as_quiet_as_it_is() -> None:
    noise = NoiseFloor(3.0)
    heard(noise, [-25.0, -25.0, -50.0, -25.0] * 20)
    assert not noise.masks(-40.0)


def test_noise_that_fades_is_followed_down() -> None:
    noise = NoiseFloor(3.0)
    heard(noise, [-25.0] * 20)
    assert all(heard(noise, np.arange(-25.0, -45.0, -0.5).tolist()))
    assert not noise.masks(-40.0)


def test_where_the_line_falls_at_once_it_is_learnt_anew() -> None:
    """What is quieter than a noise that has just ended may be a voice: it is no noise before it was looked at."""
    noise = NoiseFloor(3.0)
    heard(noise, [-25.0] * 20)
    assert heard(noise, [-29.0, -30.0, -29.5], likely=0.3) == [True, False, False]
    assert heard(noise, [-30.0] * 20)[NUM_WINDOWS:] == [True] * (20 - NUM_WINDOWS)
