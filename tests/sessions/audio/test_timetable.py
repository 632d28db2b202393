"""The timetable against a plain dictionary, under any sequence of operations; and many pacers on one timer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.audio.pacer import Pacer, PacerSettings
from sessions.audio.timetable import Timetable

KEYS = st.integers(0, 5)
MOMENTS = st.integers(0, 20).map(float)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, MOMENTS),
        st.tuples(st.just("drop"), KEYS, st.just(0.0)),
        st.tuples(st.just("due"), st.just(0), MOMENTS),
    ),
    max_size=80,
)


@given(OPERATIONS)
def test_equals_a_plain_dictionary(operations: list[tuple[str, int, float]]) -> None:
    timetable: Timetable[int] = Timetable()
    plain: dict[int, float] = {}
    for operation, key, moment_s in operations:
        if operation == "set":
            timetable.set(key, moment_s)
            plain[key] = moment_s
        elif operation == "drop":
            timetable.drop(key)
            plain.pop(key, None)
        else:
            due = timetable.due(moment_s)
            moments = [plain.pop(key) for key in due]
            assert moments == sorted(moments)
            assert all(moment > moment_s for moment in plain.values())
        assert timetable.next_s() == min(plain.values(), default=None)
        assert len(timetable) == len(plain)


def test_memory_is_bounded_by_the_keys() -> None:
    timetable: Timetable[str] = Timetable()
    for moment in range(10_000):
        timetable.set("one", moment)
    assert len(timetable._heap) <= 20


def test_one_timer_paces_many_listeners() -> None:
    rate, message, num_listeners = 24_000, 1_920, 50
    timetable: Timetable[int] = Timetable()
    pacers = [Pacer(rate, PacerSettings(lead_ms=200, start_delay_ms=0)) for _ in range(num_listeners)]
    for index in range(num_listeners):
        timetable.set(index, index / 1_000)
    while (now_s := timetable.next_s()) is not None and now_s < 10.0:
        for index in timetable.due(now_s):
            pacers[index].handed_over(message, now_s)
            timetable.set(index, pacers[index].due_s(message, now_s))
    for pacer in pacers:
        assert pacer.handed_over_samples / rate == pytest.approx(10.2, abs=0.17)
