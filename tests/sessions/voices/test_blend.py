from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import ClonedVoice, InvalidRequest
from sessions.voices.lookup import blend


def cloned(*numbers: float) -> ClonedVoice:
    return ClonedVoice(embedding=np.asarray(numbers, np.float32).tobytes(), codes=b"\1\0", transcript="a")


def numbers(voice: ClonedVoice) -> np.ndarray:
    return np.frombuffer(voice.embedding, np.float32)


@given(st.floats(0, 1))
def test_a_blend_is_between_and_keeps_its_length(weight: float) -> None:
    mixed = blend(cloned(3, 0), cloned(0, 5), weight)
    assert np.linalg.norm(numbers(mixed)) == pytest.approx(3 + 2 * weight, rel=1e-5)
    assert numbers(mixed).min() >= 0
    assert (mixed.codes, mixed.transcript) == (b"", "")


def test_the_ends_are_the_voices() -> None:
    one, other = cloned(1, 2, 3), cloned(-4, 0, 2)
    np.testing.assert_allclose(numbers(blend(one, other, 0)), numbers(one), rtol=1e-6)
    np.testing.assert_allclose(numbers(blend(one, other, 1)), numbers(other), rtol=1e-6)


def test_opposite_voices_give_numbers_all_the_same() -> None:
    assert np.isfinite(numbers(blend(cloned(1, -2), cloned(-1, 2), 0.5))).all()


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan")])
def test_weights_have_a_range(weight: float) -> None:
    with pytest.raises(InvalidRequest, match="weight must be 0 to 1"):
        blend(cloned(1), cloned(2), weight)


def test_voices_of_two_models_do_not_blend() -> None:
    with pytest.raises(InvalidRequest, match="voices of 1 and 2 numbers"):
        blend(cloned(1), cloned(1, 2), 0.5)
