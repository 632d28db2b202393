from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.runtime.call_planner import (
    CALL_FRAMES,
    CALL_ROWS,
    MAX_CALL_FRAMES_TOTAL,
    all_calls,
    padded_rows,
    split_into_calls,
)


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
