"""How a round of the decode stage is spread over steps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.graphs.decode import spread

calls = st.dictionaries(st.sampled_from([1, 2, 4, 8]), st.lists(st.integers(1, 50), unique=True), max_size=4)


def test_who_has_least_slack_goes_first_and_the_rest_waits() -> None:
    slack = {1: 2.0, 2: 0.5, 3: 1.0}
    assert spread({8: [1, 2, 3]}, slack, 16) == {8: [2, 3]}


@given(calls, st.dictionaries(st.integers(1, 50), st.floats(0, 3)), st.integers(0, 60))
def test_nobody_without_slack_waits_and_no_round_is_much_longer_than_said(
    calls: dict[int, list[int]], slack: dict[int, float], most: int
) -> None:
    chosen = spread(calls, slack, most)
    urgent = {(n, slot) for n, slots in calls.items() for slot in slots if slack.get(slot, 0.0) == 0.0}
    found = {(n, slot) for n, slots in chosen.items() for slot in slots}
    assert urgent <= found <= {(n, slot) for n, slots in calls.items() for slot in slots}
    assert sum(n for n, _ in found - urgent) <= most + 8
