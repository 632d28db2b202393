"""What the flow cannot be told, by name; the talker's are in ``test_model``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import InvalidRequest
from engine.loader import load_engine
from engine.models.cosyvoice3.settings import FlowSettings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory_mb", 0),
        ("memory_mb", -5),
        ("memory_share", 0.0),
        ("memory_share", 1.0),
        ("memory_share", math.nan),
        ("context_blocks", 0),
        ("reserved_blocks", 1),
        ("hop_blocks", ()),
        ("hop_blocks", (1, 0)),
        ("hop_blocks", (1, 1_000_000)),
        ("gather_slack_s", -0.1),
        ("gather_slack_s", math.nan),
        ("steps_per_slice", 0),
        ("urgent_steps_per_slice", -1),
        ("max_cells", 0),
    ],
)
def test_a_value_that_cannot_be_is_told_with_its_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=rf"cosyvoice3\.flow\.{name} is "):
        FlowSettings(**{name: value})


def test_the_other_familys_windows_are_refused_and_not_passed_over(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="windowed_decode is of Qwen3-TTS"):
        load_engine(folder, EngineConfig(windowed_decode=True), "cpu", "float32", is_embedded=False)
