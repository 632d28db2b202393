"""Which slots decode how many frames."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.runtime.call_planner import (
    CALL_FRAMES,
    CALL_ROWS,
    GATHER_FRAMES,
    MAX_CALL_FRAMES_TOTAL,
    NO_PREFERENCE,
    all_calls,
    limit_round,
    padded_rows,
    plan_round,
    split_into_calls,
)

SLACK_S = 0.4
NUM_SLOTS = 4
slots = st.integers(1, NUM_SLOTS)
counts = st.dictionaries(slots, st.integers(0, 20), max_size=4)
slacks = st.dictionaries(slots, st.sampled_from([0.0, SLACK_S, 1.0]))


def plan(
    pending: dict[int, int],
    slack_s: dict[int, float],
    final: Set[int] = frozenset(),
    wanted_frames: Mapping[int, int] = NO_PREFERENCE,
) -> dict[int, int]:
    """Frames by slot of one round."""
    values = (pending, 0), (slack_s, 0.0), (wanted_frames, GATHER_FRAMES), (dict.fromkeys(final, True), False)
    arrays = (np.array([of.get(slot, usual) for slot in range(NUM_SLOTS + 1)]) for of, usual in values)
    found, counts = plan_round(*arrays, SLACK_S)
    assert len(set(found.tolist())) == len(found)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


@given(counts, slacks, st.sets(slots))
def test_no_slot_decodes_more_than_it_has_nor_much_less(
    pending: dict[int, int], slack_s: dict[int, float], final: set[int]
) -> None:
    for slot, frames in plan(pending, slack_s, final).items():
        assert frames in CALL_FRAMES
        assert frames <= pending[slot]
        assert 2 * frames > min(pending[slot], CALL_FRAMES[0])


def test_rounds_empty_any_backlog() -> None:
    pending = {1: 29, 2: 3, 3: 0}
    for _ in range(6):
        for slot, frames in plan(pending, {}).items():
            pending[slot] -= frames
    assert pending == {1: 0, 2: 0, 3: 0}


@given(counts, slacks, st.dictionaries(slots, st.sampled_from([1, 2, 4, 8])), st.sets(slots))
def test_only_a_slot_with_slack_waits_for_the_frames_it_wants(
    pending: dict[int, int], slack_s: dict[int, float], wanted: dict[int, int], final: set[int]
) -> None:
    planned = plan(pending, slack_s, final, wanted)
    for slot, count in pending.items():
        is_patient = slack_s.get(slot, 0.0) > SLACK_S and slot not in final
        waits = is_patient and count < wanted.get(slot, GATHER_FRAMES)
        assert (slot in planned) == (count > 0 and not waits)


@given(counts, st.dictionaries(slots, st.sampled_from([1, 2, 4, 8]), min_size=4))
def test_slack_without_end_makes_chunks_of_just_what_is_wanted(pending: dict[int, int], wanted: dict[int, int]) -> None:
    for slot, frames in plan(pending, dict.fromkeys(pending, math.inf), set(), wanted).items():
        assert wanted[slot] == frames


def shapes_of(num_slots: int, num_frames: int) -> list[tuple[int, int]]:
    """(rows, frames) of the calls for slots of ``num_frames`` frames each, in a codec without graphs."""
    own, slack_s = np.arange(num_slots), np.zeros(num_slots)
    most = MAX_CALL_FRAMES_TOTAL // num_frames
    calls = split_into_calls(own, np.full(num_slots, num_frames), slack_s, lambda _: most)
    return [(padded_rows(len(run)), count) for run, count in calls]


@given(st.integers(0, 40), st.sampled_from(CALL_FRAMES))
def test_calls_without_graphs_have_few_shapes(num_slots: int, num_frames: int) -> None:
    for rows, frames in shapes_of(num_slots, num_frames):
        assert rows in CALL_ROWS
        assert rows * frames <= MAX_CALL_FRAMES_TOTAL


def test_every_shape_that_a_call_can_have_is_known_beforehand() -> None:
    known = list(all_calls())
    assert len(known) == len(set(known))
    assert {shape for n in CALL_FRAMES for k in range(41) for shape in shapes_of(k, n)} == set(known)


slacks = st.sampled_from([0.0, 0.1, 0.4, 0.41, 2.0, math.inf])


def test_row_with_least_slack_goes_first() -> None:
    slots, counts = limit_round(np.array([1, 2, 3]), np.array([8, 8, 8]), np.array([2.0, 0.5, 1.0]), 16)
    assert (slots.tolist(), counts.tolist()) == ([2, 3], [8, 8])


@given(st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.floats(0, 3)), max_size=40), st.integers(0, 60))
def test_rows_without_slack_run_in_bounded_rounds(calls: list[tuple[int, float]], most: int) -> None:
    counts, slack = np.array([n for n, _ in calls], dtype=np.int64), np.array([s for _, s in calls])
    slots, chosen = limit_round(np.arange(len(calls)), counts, slack, most)
    urgent = {i for i, (_, s) in enumerate(calls) if s == 0.0}
    found = dict(zip(slots.tolist(), chosen.tolist(), strict=True))
    assert urgent <= set(found)
    assert all(calls[i][0] == n for i, n in found.items())
    assert sum(n for i, n in found.items() if i not in urgent) <= most + 8


@given(st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), slacks), max_size=40), st.integers(8, 32))
def test_calls_hold_each_row_once_most_urgent_first(rows: list[tuple[int, float]], max_blocks_per_step: int) -> None:
    slots, counts = np.arange(len(rows)) + 1, np.array([n for n, _ in rows], dtype=np.int64)
    slack = np.array([9.0, *(s for _, s in rows)])
    calls = split_into_calls(slots, counts, slack, lambda frames: max_blocks_per_step // frames)
    assert sorted((slot, n) for own, n in calls for slot in own.tolist()) == sorted(zip(slots, counts, strict=True))
    assert all(len(own) * n <= max_blocks_per_step for own, n in calls)
    least = [float(slack[own].min()) for own, _ in calls]
    assert least == sorted(least)
    assert all(float(slack[own[0]]) == first for (own, _), first in zip(calls, least, strict=True))
