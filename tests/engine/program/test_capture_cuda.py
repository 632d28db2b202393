"""Graphs on a CUDA device keep the priority that their set has for them."""

from __future__ import annotations

import pytest
import torch

from engine.program.capture import GraphSet

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]


def test_each_graph_is_recorded_at_its_priority() -> None:
    device, out = torch.device("cuda"), torch.zeros(1, device="cuda")
    recorded: dict[int, int] = {}

    def run(number: int) -> None:
        out.fill_(number)
        recorded[number] = torch.cuda.current_stream().priority

    graphs = GraphSet(run, device, priority_of=lambda number: -number)
    for number in (2, 0, 1):
        graphs.capture(number)
        graphs.replay(number)
        assert out.item() == number
    assert recorded == {0: 0, 1: -1, 2: -2}


def test_what_has_run_is_recorded_without_another_run() -> None:
    device, out = torch.device("cuda"), torch.zeros(1, device="cuda")
    ran: list[int] = []

    def run(number: int) -> None:
        ran.append(number)
        out.fill_(number)

    graphs = GraphSet(run, device)
    graphs.warm_up(3)
    graphs.capture(3, has_run=True)
    out.zero_()
    graphs.replay(3)
    assert out.item() == 3
    assert ran == [3, 3]
