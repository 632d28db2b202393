"""Rounds over arrays choose what the plan over dicts chooses, and are spread over steps."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.runtime.call_planner import plan_calls
from engine.runtime.round_planner import limit_round, plan_round, split_into_calls

NUM_SLOTS = 12
slacks = st.sampled_from([0.0, 0.1, 0.4, 0.41, 2.0, math.inf])
slot = st.tuples(st.integers(0, 20), slacks, st.sampled_from([1, 2, 4, 8]), st.booleans())


@given(st.lists(slot, min_size=NUM_SLOTS, max_size=NUM_SLOTS))
def test_a_round_over_arrays_is_the_plan_over_dicts(state: list[tuple[int, float, int, bool]]) -> None:
    waiting, slack, wanted, final = (np.array(values) for values in zip(*state, strict=True))
    slots, counts = plan_round(waiting, slack, wanted, final, 0.4)
    calls = plan_calls(
        dict(enumerate(waiting.tolist())), dict(enumerate(slack)), 0.4, set(np.flatnonzero(final)),
        dict(enumerate(wanted.tolist())),
    )  # fmt: skip
    assert dict(zip(slots.tolist(), counts.tolist(), strict=True)) == {s: n for n, own in calls.items() for s in own}


def test_who_has_least_slack_goes_first_and_the_rest_waits() -> None:
    slots, counts = limit_round(np.array([1, 2, 3]), np.array([8, 8, 8]), np.array([2.0, 0.5, 1.0]), 16)
    assert (slots.tolist(), counts.tolist()) == ([2, 3], [8, 8])


@given(st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.floats(0, 3)), max_size=40), st.integers(0, 60))
def test_nobody_without_slack_waits_and_no_round_is_much_longer_than_said(
    calls: list[tuple[int, float]], most: int
) -> None:
    counts, slack = np.array([n for n, _ in calls], dtype=np.int64), np.array([s for _, s in calls])
    slots, chosen = limit_round(np.arange(len(calls)), counts, slack, most)
    urgent = {i for i, (_, s) in enumerate(calls) if s == 0.0}
    found = dict(zip(slots.tolist(), chosen.tolist(), strict=True))
    assert urgent <= set(found)
    assert all(calls[i][0] == n for i, n in found.items())
    assert sum(n for i, n in found.items() if i not in urgent) <= most + 8


@given(st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), slacks), max_size=40), st.integers(8, 32))
def test_calls_hold_everybody_once_and_the_most_urgent_go_first(
    rows: list[tuple[int, float]], max_blocks_per_step: int
) -> None:
    slots, counts = np.arange(len(rows)) + 1, np.array([n for n, _ in rows], dtype=np.int64)
    slack = np.array([9.0, *(s for _, s in rows)])
    calls = split_into_calls(slots, counts, slack, lambda frames: max_blocks_per_step // frames)
    assert sorted((slot, n) for own, n in calls for slot in own.tolist()) == sorted(zip(slots, counts, strict=True))
    assert all(len(own) * n <= max_blocks_per_step for own, n in calls)
    least = [float(slack[own].min()) for own, _ in calls]
    assert least == sorted(least)
    assert all(float(slack[own[0]]) == first for (own, _), first in zip(calls, least, strict=True))
