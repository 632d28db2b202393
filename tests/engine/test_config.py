from __future__ import annotations

import math

import pytest

from engine.config import AT_LEAST_ONE, AT_LEAST_ZERO, EngineConfig
from engine.errors import InvalidRequest


@pytest.mark.parametrize("name", AT_LEAST_ONE)
def test_a_limit_below_one_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} is 0; it must be at least 1") as caught:
        EngineConfig(**{name: 0})
    assert caught.value.param == name


@pytest.mark.parametrize("value", [-1, math.nan])
@pytest.mark.parametrize("name", AT_LEAST_ZERO)
def test_less_than_nothing_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} is {value}; it must be at least 0") as caught:
        EngineConfig(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize("share", [0.0, -1.0, math.nan])
def test_no_share_of_a_frame_admits_nobody(share: float) -> None:
    with pytest.raises(InvalidRequest, match=f"admission_share is {share}; it must be above 0"):
        EngineConfig(admission_share=share)


def test_a_pinned_shape_holds_the_largest_batch() -> None:
    with pytest.raises(InvalidRequest, match="pinned_rows is 3; max_batch is 4"):
        EngineConfig(max_batch=4, pinned_rows=3)
    assert EngineConfig(max_batch=4, pinned_rows=4).pinned_rows == 4
