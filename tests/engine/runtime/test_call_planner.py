"""Which slots decode how many frames, over dicts and over arrays."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.runtime.call_planner import (
    CALL_FRAMES,
    CALL_ROWS,
    GATHER_FRAMES,
    MAX_CALL_FRAMES_TOTAL,
    all_calls,
    limit_round,
    padded_rows,
    plan_calls,
    plan_round,
    split_arrays_into_calls,
    split_into_calls,
)

SLACK_S = 0.4
slots = st.integers(1, 4)
counts = st.dictionaries(slots, st.integers(0, 9), max_size=4)
slacks = st.dictionaries(slots, st.sampled_from([0.0, SLACK_S, 1.0]))


@given(counts, slacks, st.sets(slots))
def test_no_slot_decodes_twice_in_a_round_nor_more_than_it_has(
    pending: dict[int, int], slack_s: dict[int, float], final: set[int]
) -> None:
    calls = plan_calls(pending, slack_s, SLACK_S, final)
    planned = [slot for group in calls.values() for slot in group]
    assert len(planned) == len(set(planned))
    for frames, group in calls.items():
        assert frames in CALL_FRAMES
        for slot in group:
            assert frames <= pending[slot]
            assert 2 * frames > min(pending[slot], CALL_FRAMES[0])


@given(counts, slacks, st.sets(slots))
def test_only_a_listener_with_lead_to_spare_waits_for_a_larger_call(
    pending: dict[int, int], slack_s: dict[int, float], final: set[int]
) -> None:
    planned = {slot for group in plan_calls(pending, slack_s, SLACK_S, final).values() for slot in group}
    for slot, count in pending.items():
        waits = slack_s.get(slot, 0.0) > SLACK_S and slot not in final and count < GATHER_FRAMES
        assert (slot in planned) == (count > 0 and not waits)


def test_rounds_empty_any_backlog() -> None:
    pending = {1: 29, 2: 3, 3: 0}
    for _ in range(6):
        for frames, slots in plan_calls(pending, {}, SLACK_S, set()).items():
            for slot in slots:
                pending[slot] -= frames
    assert pending == {1: 0, 2: 0, 3: 0}


@given(counts, slacks, st.dictionaries(slots, st.sampled_from([1, 2, 4, 8])), st.sets(slots))
def test_a_slot_with_slack_waits_for_the_frames_it_wants(
    pending: dict[int, int], slack_s: dict[int, float], wanted: dict[int, int], final: set[int]
) -> None:
    planned = {slot for group in plan_calls(pending, slack_s, SLACK_S, final, wanted).values() for slot in group}
    for slot, count in pending.items():
        is_patient = slack_s.get(slot, 0.0) > SLACK_S and slot not in final
        waits = is_patient and count < wanted.get(slot, GATHER_FRAMES)
        assert (slot in planned) == (count > 0 and not waits)


@given(counts, st.dictionaries(slots, st.sampled_from([1, 2, 4, 8]), min_size=4))
def test_slack_without_end_makes_chunks_of_just_what_is_wanted(pending: dict[int, int], wanted: dict[int, int]) -> None:
    endless = dict.fromkeys(pending, math.inf)
    for frames, group in plan_calls(pending, endless, SLACK_S, set(), wanted).items():
        assert all(wanted[slot] == frames for slot in group)


@given(st.lists(st.integers(1, 99), unique=True, max_size=40), st.sampled_from(CALL_FRAMES))
def test_calls_have_few_shapes_and_take_every_slot_once(slots: list[int], num_frames: int) -> None:
    runs = list(split_into_calls(slots, num_frames))
    assert [slot for run in runs for slot in run] == slots
    for run in runs:
        assert padded_rows(len(run)) in CALL_ROWS
        assert 0 <= padded_rows(len(run)) - len(run) <= len(run)
        assert padded_rows(len(run)) * num_frames <= MAX_CALL_FRAMES_TOTAL


def test_every_shape_that_a_call_can_have_is_known_beforehand() -> None:
    known = list(all_calls())
    assert len(known) == len(set(known))
    met = {(padded_rows(len(run)), n) for n in CALL_FRAMES for k in range(41) for run in split_into_calls(range(k), n)}
    assert met == set(known)


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
    calls = split_arrays_into_calls(slots, counts, slack, lambda frames: max_blocks_per_step // frames)
    assert sorted((slot, n) for own, n in calls for slot in own.tolist()) == sorted(zip(slots, counts, strict=True))
    assert all(len(own) * n <= max_blocks_per_step for own, n in calls)
    least = [float(slack[own].min()) for own, _ in calls]
    assert least == sorted(least)
    assert all(float(slack[own[0]]) == first for (own, _), first in zip(calls, least, strict=True))
