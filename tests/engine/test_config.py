from __future__ import annotations

import pytest

from engine.config import AT_LEAST_ONE, EngineConfig
from engine.errors import InvalidRequest


@pytest.mark.parametrize("name", AT_LEAST_ONE)
def test_a_limit_below_one_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} is 0; it must be at least 1") as caught:
        EngineConfig(**{name: 0})
    assert caught.value.param == name


def test_a_pinned_shape_holds_the_largest_batch() -> None:
    with pytest.raises(InvalidRequest, match="pinned_rows is 3; max_batch is 4"):
        EngineConfig(max_batch=4, pinned_rows=3)
    assert EngineConfig(max_batch=4, pinned_rows=4).pinned_rows == 4
