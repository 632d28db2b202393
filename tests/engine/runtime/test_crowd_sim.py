"""``benchmarks.load_simulation`` and ``arrivals_simulation``: listeners hear what the simulated device takes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import arrivals_simulation, host_overhead, load_simulation, random_model
from engine.program import decode_executor
from engine.runtime import runner

Simulate = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the simulation changes for good."""
    for module in (runner, decode_executor):
        monkeypatch.setattr(module, "DeviceEvent", module.DeviceEvent)
    monkeypatch.setattr(host_overhead, "freeze_gc", lambda: None)
    monkeypatch.setitem(random_model.SHAPES, "small", host_overhead.SMALL)


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Simulate:
    """Python's own time does not count, so that every run is the same."""

    def simulate(*arguments: str) -> dict[str, Any]:
        usual = ("--batch", "4", "--seconds", "1", "--ramp", "0.2", "--host-scale", "0")
        monkeypatch.setattr(sys, "argv", ["crowd_sim", *usual, *arguments])
        load_simulation.main()
        (crowd,) = json.loads(capsys.readouterr().out.splitlines()[-1])["crowd"]
        return crowd  # type: ignore[no-any-return]

    return simulate


def test_admitted_listeners_have_no_gap(simulate: Simulate) -> None:
    crowd = simulate()
    assert (crowd["streams"], crowd["failed"], crowd["continuity"]) == (4, 0, 1.0)


def test_a_device_that_is_too_slow_leaves_gaps(simulate: Simulate) -> None:
    assert simulate("--slower", "30")["continuity"] == 0.0


def test_closed_loop_has_as_many_replies_as_asked_for(simulate: Simulate) -> None:
    crowd = simulate("--replies", "10", "--ramp", "0")
    assert (crowd["streams"], crowd["failed"], crowd["continuity"]) == (10, 0, 1.0)


def test_overload_is_refused_and_others_have_no_gap(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_simulation, "FRAME_MS", (0, 10, 30, 250, 1e3, 2e3, 4e3, 6e3))
    crowd = simulate("--batch", "32")
    assert 0 < crowd["failed"] < 24
    assert crowd["continuity"] == 1.0


def test_each_session_of_each_load_speaks_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(arrivals_simulation, "MAX_SESSIONS", 8)
    options = ("--batch", "2,3", "--frames", "6", "--max-batch", "4", "--host-scale", "0")
    monkeypatch.setattr(sys, "argv", ["arrivals_sim", *options])
    arrivals_simulation.main()
    loads = json.loads(capsys.readouterr().out.splitlines()[-1])["loads"]
    found = [(load["sessions"], load["streams"], load["failed"], load["continuity"]) for load in loads]
    assert found == [(2, 4, 0, 1.0), (3, 6, 0, 1.0)]
    assert all(load["audio_s_per_s"] > 0 for load in loads)


def test_decode_call_ends_after_its_frames_and_its_time(tmp_path: Path) -> None:
    engine = host_overhead.make_engine(random_model.write(tmp_path, "small", torch.device("cpu")), 1)
    device = load_simulation.SimulatedDevice(host_scale=0.0, slower=1.0)
    device.install(engine)
    device.queue_prefill(256)
    device.queue_frame(1, follows_prefill=1)
    engine.stage.codec.lane.wait_for_codes()
    ticket = engine.stage.codec.lane.run(lambda: device.queue_call(8, 1))
    assert not ticket.is_done
    ticket.wait()
    assert ticket.is_done
    assert device.now_s == pytest.approx(0.0028 + 0.00387 - 0.0013 + 0.00071)


@pytest.mark.parametrize(
    ("rows", "apart", "together", "saved_ms"),
    [(32, 32, 64, 1.49), (64, 32, 96, 1.30), (64, 128, 192, 1.47), (128, 32, 192, 1.47), (128, 128, 256, 1.71)],
)
def test_one_pass_saves_what_it_saves_on_a_device(rows: int, apart: int, together: int, saved_ms: float) -> None:
    """With one newcomer, and with four: positions of the prefill without the rows, and with them."""
    ends_s = []
    for positions, is_behind in ((apart, 0), (together, 1)):
        device = load_simulation.SimulatedDevice(host_scale=0.0, slower=1.0)
        device.queue_prefill(positions)
        device.queue_frame(rows, follows_prefill=is_behind)
        device.wait(device.last_frame)
        ends_s.append(device.now_s)
    assert 1000 * (ends_s[0] - ends_s[1]) == pytest.approx(saved_ms, abs=0.15)
