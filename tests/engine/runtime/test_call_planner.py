from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from engine.runtime.call_planner import CALL_FRAMES, GATHER_FRAMES, plan_calls

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
