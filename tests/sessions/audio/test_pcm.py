"""Laws of PCM conversion: what survives, how far it may move, what is clipped."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sessions.audio.pcm import (
    first_audible_sample,
    float_to_s16,
    pcm_to_s16le,
    peak_dbfs,
    rms_dbfs,
    s16_to_float,
    s16le_to_pcm,
)

ANY_PCM = arrays(np.float32, st.integers(0, 200), elements=st.floats(-1, 1, width=32))
ALL_S16 = np.arange(-32_768, 32_768).astype(np.int16)


def test_every_s16_sample_survives_the_way_through_float() -> None:
    assert np.array_equal(float_to_s16(s16_to_float(ALL_S16)), ALL_S16)
    assert s16_to_float(ALL_S16).dtype == np.float32


@given(ANY_PCM)
def test_s16_is_within_half_a_step(pcm: np.ndarray) -> None:
    error = s16le_to_pcm(pcm_to_s16le(pcm)) - np.minimum(pcm, 32_767 / 32_768)
    assert np.all(np.abs(error) <= 0.5 / 32_768)


@given(ANY_PCM, st.data())
def test_bytes_do_not_depend_on_the_cut(pcm: np.ndarray, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(pcm)))
    assert pcm_to_s16le(pcm[:cut]) + pcm_to_s16le(pcm[cut:]) == pcm_to_s16le(pcm)


def test_out_of_range_is_held_and_no_number_is_silence() -> None:
    pcm = np.array([1.0, 7.0, -1.0, -7.0, np.inf, -np.inf, np.nan], np.float32)
    assert float_to_s16(pcm).tolist() == [32767, 32767, -32768, -32768, 32767, -32768, 0]


def test_s16_is_little_endian() -> None:
    assert pcm_to_s16le(np.array([1 / 32_768, -1.0], np.float32)) == b"\x01\x00\x00\x80"


def test_half_a_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="got 3 bytes"):
        s16le_to_pcm(b"abc")


def test_levels_of_known_signals() -> None:
    sine = np.sin(np.arange(48_000) * 2 * np.pi / 48).astype(np.float32)
    assert peak_dbfs(sine) == pytest.approx(0, abs=1e-3)
    assert rms_dbfs(sine) == pytest.approx(-3.0103, abs=1e-3)
    assert rms_dbfs(sine / 10) == pytest.approx(-23.0103, abs=1e-3)


def test_levels_of_silence() -> None:
    for silence in (np.zeros(0, np.float32), np.zeros(9, np.float32)):
        assert peak_dbfs(silence) == rms_dbfs(silence) == -math.inf
        assert first_audible_sample(silence) is None


def test_first_audible_sample_is_the_first_above_minus_50_dbfs() -> None:
    pcm = np.array([0, 0.003, -0.0031, -0.0033, 0.5], np.float32)
    assert first_audible_sample(pcm) == 3
    assert first_audible_sample(pcm, threshold_dbfs=-60) == 1
