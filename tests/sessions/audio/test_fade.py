"""Ramps to and from silence."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sessions.audio.crossfade import ramp_in, ramp_out
from tests.sessions.audio.signals import noise


@given(st.integers(0, 50), st.integers(0, 60))
def test_ramp_in_keeps_the_length_and_all_that_follows(size: int, length: int) -> None:
    pcm = noise(size)
    raised = ramp_in(pcm, length)
    assert raised.size == size
    assert np.array_equal(raised[length:], pcm[length:])
    assert np.all(np.abs(raised) <= np.abs(pcm))


@given(st.integers(0, 50), st.integers(0, 60))
def test_ramp_out_is_as_long_as_the_ramp_or_the_audio(size: int, length: int) -> None:
    assert ramp_out(noise(size), length).size == min(size, length)


def test_ramps_begin_and_end_near_silence() -> None:
    ones = np.ones(480, np.float32)
    assert ramp_in(ones, 120)[0] < 1e-3
    assert ramp_out(ones, 120)[-1] < 1e-3
    assert ramp_out(ones, 120)[0] > 0.999
