"""Laws of the pacer, in virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.audio.pacer import Pacer, PacerSettings, UnderrunCause

RATE = 24_000
FRAME = 480


def ms(duration_ms: float) -> int:
    return round(duration_ms * RATE / 1000)


def pacer(**settings: int | None) -> Pacer:
    return Pacer(RATE, PacerSettings(**settings))


def run(pacer: Pacer, num_messages: int, message_samples: int, until_s: float = 60.0) -> list[float]:
    """Hand over each message as soon as it is due; when each one left."""
    now_s, left_s = 0.0, []
    for _ in range(num_messages):
        now_s = pacer.due_s(message_samples, now_s)
        assert now_s < until_s
        pacer.on_sent(message_samples, now_s)
        left_s.append(now_s)
    return left_s


@given(st.integers(40, 3_000), st.sampled_from([20, 60, 80]))
def test_lead_is_never_passed_and_playback_never_runs_dry(lead_ms: int, message_ms: int) -> None:
    it = pacer(lead_ms=lead_ms)
    now_s = 0.0
    for _ in range(100):
        now_s = it.due_s(ms(message_ms), now_s)
        assert it.on_sent(ms(message_ms), now_s) is None
        assert it.lead_samples(now_s) <= max(ms(lead_ms), ms(message_ms)) + 1


def test_lead_leaves_at_once_and_the_rest_in_real_time() -> None:
    left_s = run(pacer(lead_ms=100, start_delay_ms=0), 10, ms(20))
    assert left_s == pytest.approx([0, 0, 0, 0, 0, 0.02, 0.04, 0.06, 0.08, 0.10])


def test_burst_leaves_at_once() -> None:
    assert run(pacer(lead_ms=None), 1_000, ms(80)) == [0.0] * 1_000


def test_a_message_longer_than_the_lead_waits_until_all_else_is_played() -> None:
    assert run(pacer(lead_ms=50, start_delay_ms=0), 3, ms(80)) == pytest.approx([0, 0.08, 0.16])


def test_the_start_delay_holds_the_clock_back() -> None:
    it = pacer(start_delay_ms=60)
    it.on_sent(ms(500), 1.0)
    assert it.played_samples(1.06) == 0
    assert it.played_samples(1.16) == pytest.approx(ms(100), abs=1)
    assert it.underrun_deadline_s() == pytest.approx(1.56)


def test_the_clock_stands_still_while_there_is_nothing_to_play() -> None:
    it = pacer(start_delay_ms=0)
    it.on_sent(ms(100), 0.0)
    assert it.played_samples(5.0) == ms(100)
    it.on_sent(ms(100), 5.0)
    assert it.played_samples(5.0) == ms(100)
    assert it.played_samples(5.05) == pytest.approx(ms(150), abs=1)


@pytest.mark.parametrize("cause", UnderrunCause)
def test_an_underrun_is_told_when_it_ends_with_the_cause_given(cause: UnderrunCause) -> None:
    it = pacer(start_delay_ms=0)
    it.on_sent(ms(100), 0.0)
    underrun = it.on_sent(ms(100), 0.4, cause)
    assert underrun is not None
    assert underrun.at_sample == ms(100)
    assert underrun.gap_s == pytest.approx(0.3)
    assert underrun.cause is cause
    assert it.on_sent(ms(100), 0.45, cause) is None


def test_a_gap_below_the_limit_is_not_told() -> None:
    it = pacer(start_delay_ms=0, min_underrun_ms=10)
    it.on_sent(ms(100), 0.0)
    assert it.on_sent(ms(100), 0.109) is None
    assert it.on_sent(ms(100), 0.220) is not None


def test_an_end_without_more_audio_is_no_underrun() -> None:
    it = pacer()
    it.on_sent(ms(100), 0.0)
    assert it.lead_samples(9.0) == 0
    assert it.played_samples(9.0) == ms(100)


def test_reports_move_the_clock_and_it_runs_on_from_there() -> None:
    it = pacer(start_delay_ms=0)
    it.on_sent(ms(2_000), 0.0)
    assert it.on_playback_report(ms(300), 0.5) == ms(300)
    assert it.played_samples(0.7) == pytest.approx(ms(500), abs=1)
    assert it.due_s(ms(100), 0.5) == pytest.approx(0.5)  # 1,700 are left
    assert it.due_s(ms(400), 0.5) == pytest.approx(0.6)


def test_a_listener_with_a_deep_buffer_gets_no_false_underrun() -> None:
    it = pacer(start_delay_ms=0)
    it.on_sent(ms(300), 0.0)
    it.on_playback_report(ms(50), 0.25)
    assert it.on_sent(ms(100), 0.45) is None


@given(st.lists(st.tuples(st.floats(0, 0.5), st.integers(-(10**12), 10**12), st.booleans()), max_size=40))
def test_absurd_reports_are_held_to_what_can_be(steps: list[tuple[float, int, bool]]) -> None:
    it = pacer(report_tolerance_ms=200)
    now_s = believed_before = 0.0
    it.on_sent(FRAME, now_s)
    for wait_s, said, hand_over in steps:
        now_s += wait_s
        if hand_over:
            it.on_sent(FRAME, now_s)
        believed = it.on_playback_report(said, now_s)
        assert believed_before <= believed <= it.handed_over_samples
        assert believed <= (now_s + 0.2) * RATE + 1
        assert it.played_samples(now_s) == believed
        believed_before = believed


def test_a_report_ahead_of_time_is_cut_to_the_tolerance() -> None:
    it = pacer(lead_ms=None, report_tolerance_ms=500)
    it.on_sent(ms(5_000), 0.0)
    assert it.on_playback_report(ms(550), 0.1) == ms(550)
    assert it.on_playback_report(ms(3_000), 0.1) == pytest.approx(ms(600), abs=1)


def test_a_report_before_any_audio_is_nothing() -> None:
    it = pacer()
    assert it.on_playback_report(10**9, 3.0) == 0
    assert it.due_s(FRAME, 3.0) == 3.0
    assert it.played_samples(4.0) == it.lead_samples(4.0) == 0


@given(st.floats(0.9, 1.1))
def test_a_skewed_clock_shifts_the_pace_by_its_skew(skew: float) -> None:
    """A device that plays a little too fast or too slow, and says so, is followed: its lead stays full."""
    it = pacer(lead_ms=400, start_delay_ms=0, report_tolerance_ms=2_000)
    now_s, left = 0.0, 0
    while now_s < 10.0:
        while it.due_s(FRAME, now_s) <= now_s:
            it.on_sent(FRAME, now_s)
            left += FRAME
        now_s += 0.01
        it.on_playback_report(int(now_s * skew * RATE), now_s)
    assert left / RATE == pytest.approx(10 * skew + 0.4, abs=0.05)


def test_who_stops_playing_gets_no_more_than_the_lead() -> None:
    it = pacer(lead_ms=500)
    now_s = 0.0
    while now_s < 30.0:
        while it.due_s(FRAME, now_s) <= now_s:
            it.on_sent(FRAME, now_s)
        now_s += 0.1
        it.on_playback_report(0, now_s)
    assert it.handed_over_samples <= ms(500 + 100)


@pytest.mark.parametrize("field", ["lead_ms", "start_delay_ms", "report_tolerance_ms", "min_underrun_ms"])
def test_negative_settings_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be at least 0, got -1"):
        pacer(**{field: -1})
