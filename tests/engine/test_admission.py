"""The step's model: learns a line, forgets the past, is not taken in by hiccups."""

from __future__ import annotations

import random

import pytest

from engine.admission import StepModel

FRAME_S = 0.08


def learnt(base_s: float, per_row_s: float, rows: list[int]) -> StepModel:
    model = StepModel()
    for count in rows:
        model.note(count, base_s + per_row_s * count)
    return model


def test_it_foresees_what_it_has_not_seen() -> None:
    chance = random.Random(1)
    model = learnt(0.004, 0.00005, [chance.randrange(1, 300) for _ in range(300)])
    assert model.seconds(1000) == pytest.approx(0.054)
    assert model.carries(1500, FRAME_S)
    assert not model.carries(1600, FRAME_S)


def test_it_says_nothing_before_it_has_seen_enough() -> None:
    model = learnt(1.0, 1.0, [5] * 10)
    assert model.seconds(5) is None
    assert model.carries(10**6, FRAME_S)


def test_steps_of_one_size_say_nothing_about_growth() -> None:
    assert learnt(0.01, 0.001, [10] * 100).seconds(40) == pytest.approx(0.02)


def test_a_hiccup_teaches_nothing_and_a_change_that_stays_does() -> None:
    model = learnt(0.01, 0.0, [8] * 200)
    model.note(8, 3.0)
    assert model.seconds(8) == pytest.approx(0.01)
    for _ in range(600):
        model.note(8, 0.1)
    assert model.seconds(8) == pytest.approx(0.1, rel=0.05)
    assert not model.carries(8, FRAME_S)


def test_empty_steps_do_not_count() -> None:
    model = learnt(0.01, 0.0, [8] * 200)
    for _ in range(500):
        model.note(0, 0.0)
    assert model.seconds(8) == pytest.approx(0.01)
