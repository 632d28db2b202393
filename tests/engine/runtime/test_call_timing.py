"""When a call passes decides what is decoded next, unless steps wait for it, as in the exact comparison on CUDA."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.runtime.graph_harness import TIMELESS, bench_of, keep_busy, note_calls, speak


def spoken(passes: Callable[[], bool], **settings: Any) -> tuple[list[tuple[list[int], int]], list[np.ndarray]]:
    bench = bench_of(torch.device("cpu"), torch.float32, lazy_graph_capture=True, **settings)
    keep_busy(bench, passes)
    calls = note_calls(bench)
    return calls, speak(bench)


@pytest.mark.parametrize("settings", [{}, TIMELESS], ids=["as it is", "timeless"])
def test_where_steps_wait_for_calls_and_only_there_time_decides_nothing(settings: dict[str, Any]) -> None:
    chance = random.Random(1)
    (calls, rows), *others = (
        spoken(passes, **settings) for passes in (lambda: True, lambda: False, lambda: chance.random() < 0.5)
    )
    assert all((other_calls == calls) == (settings is TIMELESS) for other_calls, _ in others)
    if settings is TIMELESS:
        assert all(np.array_equal(one, other) for _, found in others for one, other in zip(rows, found, strict=True))
