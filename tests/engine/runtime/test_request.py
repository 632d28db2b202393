from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.runtime.request import PlaybackClock

RATE = 1000
moves = st.lists(
    st.tuples(st.sampled_from(["emit", "report", "wait"]), st.integers(0, 3000)),
    max_size=30,
)


def test_there_is_no_lead_before_the_first_chunk() -> None:
    assert PlaybackClock(RATE).lead_s(5.0) == 0.0


def test_playback_starts_with_the_first_chunk_and_stands_still_while_there_is_nothing_to_play() -> None:
    clock = PlaybackClock(RATE)
    clock.emit(500, now_s=10.0)
    assert clock.lead_s(10.2) == pytest.approx(0.3)
    assert clock.lead_s(11.0) == 0.0
    clock.emit(500, now_s=20.0)
    assert clock.lead_s(20.0) == pytest.approx(0.5)


def test_a_report_sets_the_clock_and_it_runs_on_from_there() -> None:
    clock = PlaybackClock(RATE)
    clock.emit(1000, now_s=10.0)
    clock.report(100, now_s=10.5)
    assert clock.lead_s(10.5) == pytest.approx(0.9)
    assert clock.lead_s(10.6) == pytest.approx(0.8)


def test_a_report_of_what_was_never_sent_means_that_nothing_is_left() -> None:
    clock = PlaybackClock(RATE)
    clock.emit(1000, now_s=10.0)
    clock.report(5000, now_s=10.1)
    assert clock.lead_s(10.1) == 0.0


def test_a_negative_report_puts_playback_into_the_future() -> None:
    clock = PlaybackClock(RATE)
    clock.report(-2000, now_s=10.0)
    clock.emit(500, now_s=10.5)
    assert clock.lead_s(10.5) == pytest.approx(2.0)


def test_a_report_before_the_first_chunk_sets_nothing() -> None:
    clock = PlaybackClock(RATE)
    clock.report(0, now_s=10.0)
    assert clock.dry_at_s is None


@given(moves)
def test_the_clock_is_the_bucket_that_a_listener_empties_in_real_time(moves: list[tuple[str, int]]) -> None:
    """Against the slow obvious version: a level that falls by one sample a sample time, never below nothing."""
    clock, level, sent, now_s = PlaybackClock(RATE), 0.0, 0, 100.0
    for kind, amount in moves:
        if kind == "emit":
            clock.emit(amount, now_s)
            level, sent = level + amount, sent + amount
        elif kind == "report" and clock.dry_at_s is not None:
            clock.report(amount, now_s)
            level = max(sent - amount, 0)
        elif kind == "wait":
            now_s += amount / RATE
            level = max(level - amount, 0)
        assert clock.lead_s(now_s) == pytest.approx(level / RATE, abs=1e-6)
        assert clock.num_emitted == sent
