"""What the flow cannot be told, by name; the talker's are in ``test_model``."""

from __future__ import annotations

import math
from typing import Any

import pytest

from engine.errors import InvalidRequest
from engine.models.cosyvoice3.settings import FlowSettings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory_mb", 0),
        ("memory_mb", -5),
        ("memory_utilization", 0.0),
        ("memory_utilization", 1.0),
        ("memory_utilization", math.nan),
        ("context_blocks", 0),
        ("reserved_blocks", 1),
        ("chunk_blocks", ()),
        ("chunk_blocks", (1, 0)),
        ("chunk_blocks", (1, 1_000_000)),
        ("batching_slack_s", -0.1),
        ("batching_slack_s", math.nan),
        ("ode_steps_per_engine_step", 0),
        ("urgent_ode_steps_per_engine_step", -1),
        ("max_blocks_per_step", 0),
    ],
)
def test_a_value_that_cannot_be_is_told_with_its_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=rf"cosyvoice3\.flow\.{name} is "):
        FlowSettings(**{name: value})
