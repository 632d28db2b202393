"""Which graphs are captured before the first request, and how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch

from engine.runtime import engine as engine_module
from engine.runtime import warm_up
from engine.runtime.runner import GraphKey
from engine.runtime.warm_up import capture_graphs
from tests.engine.runtime.graph_harness import bench_of


class RecordedGraphs:
    """Remembers in which order it was asked for what."""

    captures = True

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def warm_up(self, *key: int) -> None:
        self.calls.append(("run", *key))

    def capture(self, *key: int, has_run: bool) -> None:
        self.calls.append(("capture", *key, has_run))


@pytest.mark.parametrize("is_loaded", [False, True])
def test_graphs_are_told_whether_all_have_run(monkeypatch: pytest.MonkeyPatch, is_loaded: bool) -> None:
    def run_compiled(run: Callable[[bool], None], launch_all: Callable[[], None]) -> None:
        launch_all()
        run(is_loaded)

    monkeypatch.setattr(warm_up, "run_compiled", run_compiled)
    graphs = RecordedGraphs()
    capture_graphs(cast(list[GraphKey], [(graphs, (9, 1)), (graphs, (8,))]))
    assert graphs.calls == [("run", 9, 1), ("run", 8), ("capture", 9, 1, is_loaded), ("capture", 8, False)]


def test_graphs_of_decoding_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    captured: list[GraphKey] = []

    def note(keys: Sequence[GraphKey]) -> None:
        captured.extend(keys)

    monkeypatch.setattr(engine_module, "capture_graphs", note)
    engine = bench_of(torch.device("cpu"), torch.float32).engine
    decoding, frames = list(engine.decoding.graph_keys), list(engine.runner.graph_keys)
    assert decoding
    assert frames
    assert captured == decoding + frames
