"""The step's model: learns a line, forgets the past, is not taken in by hiccups."""

from __future__ import annotations

import random

import numpy as np
import pytest

from engine.runtime.step_model import StepModel, StepTimeTable

FRAME_S = 0.08


def learnt(base_s: float, per_row_s: float, rows: list[int]) -> StepModel:
    model = StepModel()
    for count in rows:
        model.observe(count, base_s + per_row_s * count)
    return model


def test_it_foresees_what_it_has_not_seen() -> None:
    chance = random.Random(1)
    model = learnt(0.004, 0.00005, [chance.randrange(1, 300) for _ in range(300)])
    assert model.seconds(1000) == pytest.approx(0.054)
    assert model.can_sustain(1500, FRAME_S)
    assert not model.can_sustain(1600, FRAME_S)


def test_no_estimate_before_enough_samples() -> None:
    model = learnt(1.0, 1.0, [5] * 10)
    assert model.seconds(5) is None
    assert model.can_sustain(10**6, FRAME_S)


def test_steps_of_one_size_give_no_slope() -> None:
    assert learnt(0.01, 0.001, [10] * 100).seconds(40) == pytest.approx(0.02)


def test_a_hiccup_teaches_nothing_and_a_change_that_stays_does() -> None:
    model = learnt(0.01, 0.0, [8] * 200)
    model.observe(8, 3.0)
    assert model.seconds(8) == pytest.approx(0.01)
    for _ in range(600):
        model.observe(8, 0.1)
    assert model.seconds(8) == pytest.approx(0.1, rel=0.05)
    assert not model.can_sustain(8, FRAME_S)


def step_s(rows: int) -> float:
    """Of a device that fills up: flat at first, then steeper and steeper."""
    return 0.005 + 0.00004 * rows + 0.00000002 * rows * rows


BUCKETS = (1, 8, *range(64, 1600, 64))
MEASURED = {rows: 0.8 * step_s(rows) for rows in BUCKETS}
CAN_CARRY = max(rows for rows in BUCKETS if step_s(rows) <= FRAME_S)


def most_admitted(model: StepModel, arrivals_per_s: float, seconds: float) -> tuple[int, int]:
    """Streams that come at a rate and stay: how many were let in, and how many ever ran dry."""
    now_s, asked, rows = 0.0, 0, 0
    leads_s, dry = np.zeros(4000), np.zeros(4000, dtype=bool)
    while now_s < seconds:
        while asked < now_s * arrivals_per_s:
            asked += 1
            if not model.can_sustain(rows + 1, 0.95 * FRAME_S):
                asked = int(now_s * arrivals_per_s) + 1
                break
            rows += 1
        took_s = step_s(min(size for size in (*BUCKETS, 10_000) if size >= rows))
        now_s += took_s
        model.observe(rows, took_s)
        leads_s[:rows] += FRAME_S - np.where(leads_s[:rows] > 0.0, took_s, 0.0)
        dry[:rows] |= leads_s[:rows] <= 0.0
    return rows, int(dry.sum())


@pytest.mark.parametrize("arrivals_per_s", [200.0, 2000.0])
def test_admission_refuses_shortly_before_an_underrun(arrivals_per_s: float) -> None:
    admitted, dry = most_admitted(StepModel(StepTimeTable(MEASURED)), arrivals_per_s, 12.0)
    assert dry == 0
    assert 0.9 * CAN_CARRY < admitted <= CAN_CARRY


def test_what_was_measured_at_start_is_enough_for_a_rush_at_once() -> None:
    model = StepModel(StepTimeTable({rows: 1.25 * seconds for rows, seconds in MEASURED.items()}))
    admitted, dry = most_admitted(model, 1e6, 4.0)
    assert dry == 0
    assert 0.85 * CAN_CARRY < admitted <= CAN_CARRY


def test_a_line_is_taken_in_by_a_device_that_fills_up() -> None:
    _, dry = most_admitted(StepModel(), 2000.0, 12.0)
    assert dry > 0


def test_step_time_follows_padding_and_grows_with_rows() -> None:
    shape = StepTimeTable({8: 0.010, 1: 0.004, 16: 0.009})
    assert shape.seconds(1) == pytest.approx(0.004)
    assert shape.seconds(2) == pytest.approx(0.010)
    assert shape.seconds(16) == pytest.approx(0.010)
    assert shape.seconds(32) == pytest.approx(0.020)


def test_empty_steps_do_not_count() -> None:
    model = learnt(0.01, 0.0, [8] * 200)
    for _ in range(500):
        model.observe(0, 0.0)
    assert model.seconds(8) == pytest.approx(0.01)
