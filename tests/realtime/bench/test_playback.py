from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.bench.playback import START_AFTER_S, Playback


def play(arrivals: list[tuple[float, float]], sent_chars: int = 100, text_ended: bool = True) -> Playback:
    """``arrivals`` are (seconds of audio, when it came)."""
    playback = Playback()
    playback.sent(sent_chars, 0.0, text_ended)
    for audio_s, at_s in arrivals:
        playback.received(audio_s, at_s)
    return playback


def test_audio_that_comes_in_time_plays_without_a_gap() -> None:
    playback = play([(0.08, 10.0 + 0.08 * i) for i in range(50)])
    assert playback.underruns == []
    assert playback.plays_until_s == pytest.approx(10.0 + START_AFTER_S + 4.0)


def test_audio_15_percent_too_slow_runs_dry_within_half_a_second() -> None:
    playback = play([(0.08, 0.08 * 1.15 * i) for i in range(50)])
    assert playback.underruns[0].at_s < 0.6
    assert set(playback.causes()) == {"engine"}


def test_a_gap_is_noticed_when_it_ends_and_playback_starts_anew() -> None:
    playback = play([(1.0, 0.0), (1.0, 3.0), (1.0, 4.0)])
    assert [underrun.at_s for underrun in playback.underruns] == [pytest.approx(1.0 + START_AFTER_S)]
    assert playback.plays_until_s == pytest.approx(3.0 + START_AFTER_S + 2.0)


def test_what_is_played_follows_the_clock() -> None:
    playback = play([(1.0, 5.0), (1.0, 5.1)])
    assert playback.played_s(5.0 + START_AFTER_S) == pytest.approx(0.0)
    assert playback.played_s(6.0) == pytest.approx(1.0 - START_AFTER_S)
    assert playback.played_s(100.0) == 2.0
    assert Playback().played_s(1.0) == 0.0


def test_underrun_with_all_text_spoken_is_caused_by_text() -> None:
    playback = Playback()
    playback.sent(10, 0.0)
    playback.received(1.0, 0.2)
    playback.sent(10, 4.8, ended=True)
    playback.received(1.0, 5.0)
    assert playback.causes() == ["text"]


def test_a_gap_is_the_engines_when_much_text_was_left() -> None:
    playback = play([(1.0, 0.0), (9.0, 5.0)], text_ended=False)
    assert playback.causes() == ["engine"]


@given(st.lists(st.tuples(st.floats(0.001, 1), st.floats(0, 2)), min_size=1, max_size=40))
def test_nothing_received_is_lost(steps: list[tuple[float, float]]) -> None:
    now_s, arrivals = 0.0, []
    for audio_s, wait_s in steps:
        now_s += wait_s
        arrivals.append((audio_s, now_s))
    playback = play(arrivals)
    total_s = sum(audio_s for audio_s, _ in arrivals)
    assert playback.received_s == pytest.approx(total_s)
    assert playback.played_s(playback.plays_until_s) == pytest.approx(total_s)
    assert playback.plays_until_s >= arrivals[0][1] + START_AFTER_S + total_s - 1e-9
