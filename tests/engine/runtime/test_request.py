from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.runtime import request
from engine.runtime.request import LoopGuard, PlaybackClock, SilenceGuard

RATE = 1000
moves = st.lists(
    st.tuples(st.sampled_from(["emit", "report", "wait"]), st.integers(0, 3000)),
    max_size=30,
)


def test_there_is_no_lead_before_the_first_chunk() -> None:
    assert PlaybackClock(RATE).lead_s(5.0) == 0.0


def test_playback_clock_stops_while_nothing_is_left() -> None:
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


def test_playback_report_beyond_sent_audio_is_clamped() -> None:
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
def test_playback_clock_drains_in_real_time(moves: list[tuple[str, int]]) -> None:
    """Against the slow obvious version: a level that falls by one sample a sample time. It falls below nothing only
    while the listener plays what it has and the engine emits again."""
    clock, level, sent, now_s, is_behind = PlaybackClock(RATE), 0.0, 0, 100.0, False
    for kind, amount in moves:
        if kind == "emit":
            clock.emit(amount, now_s)
            level, sent = level + amount, sent + amount
            is_behind = is_behind and level < 0
        elif kind == "report" and clock.dry_at_s is not None:
            clock.report(amount, now_s)
            level, is_behind = sent - amount, amount > sent
        elif kind == "wait":
            now_s += amount / RATE
            level = level - amount if is_behind else max(level - amount, 0)
        assert clock.lead_s(now_s) == pytest.approx(max(level, 0) / RATE, abs=1e-6)
        assert clock.num_emitted == sent


# -- loops -------------------------------------------------------------------------------------------------------


def trips_at(guard: LoopGuard, codes: list[int]) -> int | None:
    return next((index for index, code in enumerate(codes) if guard.push(code)), None)


def slow_trips_at(codes: list[int], limit: int, max_period: int) -> int | None:
    """The first frame that ends ``limit`` frames of one pattern, looked for in the whole history."""
    for end in range(limit, len(codes) + 1):
        tail = codes[end - limit : end]
        if any(tail[period:] == tail[:-period] for period in range(1, min(max_period, limit - 1) + 1)):
            return end - 1
    return None


def test_audio_that_a_listener_has_already_is_no_lead() -> None:
    """It is made again after a report from ahead, and the clock catches up with the listener, who plays on."""
    clock = PlaybackClock(RATE)
    clock.report(3 * RATE, 100.0)
    for second in range(5):
        assert clock.is_behind == (second <= 3)
        clock.emit(RATE, 100.5)
    assert clock.lead_s(100.5) == 1.5, "5 s were made, and 3.5 s are played"
    clock.emit(RATE, 200.0)
    assert clock.lead_s(200.0) == 1.0, "then it waits for audio, as ever"


def test_one_code_again_and_again_is_a_loop() -> None:
    assert trips_at(LoopGuard(50, 8), [7] * 60) == 49


def test_loop_detection_ends_at_the_longest_period() -> None:
    assert trips_at(LoopGuard(50, 8), list(range(8)) * 10) == 49
    assert trips_at(LoopGuard(50, 8), list(range(9)) * 20) is None


def test_speech_before_a_loop_does_not_hide_it() -> None:
    assert trips_at(LoopGuard(10, 3), [1, 2, 3, 4, 5, 9, 8, 9, 8, 9, 8, 9, 8, 9, 8]) == 14


@given(
    st.lists(st.integers(0, 2), max_size=40).map(lambda head: head + [1, 2] * 8),
    st.integers(2, 12),
    st.integers(1, 4),
)
def test_the_guard_sees_what_a_look_at_the_whole_history_sees(codes: list[int], limit: int, max_period: int) -> None:
    max_period = min(max_period, limit - 1)
    assert trips_at(LoopGuard(limit, max_period), codes) == slow_trips_at(codes, limit, max_period)


# -- silence -----------------------------------------------------------------------------------------------------


def silence_after(level: float, num_samples: int) -> np.ndarray:
    return np.concatenate([np.full(10, 0.5), np.full(num_samples, level)]).astype(np.float32)


def test_long_silence_is_detected_and_speech_resets_it() -> None:
    guard = SilenceGuard(limit_samples=100, level_dbfs=-60)
    assert not guard.push(silence_after(0.0, 99), armed=True)
    assert not guard.push(silence_after(0.0, 99), armed=True)
    assert guard.push(np.zeros(1, np.float32), armed=True)


def test_the_level_is_the_border() -> None:
    assert SilenceGuard(50, -60).push(silence_after(0.0009, 50), armed=True)
    assert not SilenceGuard(50, -60).push(silence_after(0.0011, 50), armed=True)
    assert not SilenceGuard(50, 0).push(silence_after(1.0, 50), armed=True)


def test_silence_counts_only_once_the_text_is_spent() -> None:
    guard = SilenceGuard(100, -60)
    assert not guard.push(np.zeros(500, np.float32), armed=False)
    assert not guard.push(np.zeros(99, np.float32), armed=True)
    assert guard.push(np.zeros(1, np.float32), armed=True)


@given(
    st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.3]), min_size=1, max_size=60), st.lists(st.integers(1, 20), max_size=9)
)
def test_any_cut_detects_trailing_silence_and_not_early(signal: list[float], cuts: list[int]) -> None:
    limit, pcm = 5, np.array(signal, np.float32)
    quiet_after = [len(signal[:end]) - 1 - max([-1, *np.flatnonzero(pcm[:end])]) for end in range(1, len(signal) + 1)]
    guard, end, tripped = SilenceGuard(limit, -60), 0, False
    for piece in [p for p in np.split(pcm, np.cumsum(cuts)) if p.size]:
        end += piece.size
        tripped = guard.push(piece, armed=True)
        assert tripped == (quiet_after[end - 1] >= limit)
    assert tripped == (quiet_after[-1] >= limit)


@given(st.lists(st.sampled_from([0.0, 0.3]), max_size=300), st.integers(1, 40))
def test_looking_from_the_end_finds_what_looking_at_all_finds(signal: list[float], first_look: int) -> None:
    pcm = np.array(signal, np.float32)
    loud = np.flatnonzero(pcm)
    wanted = len(pcm) - 1 - int(loud[-1]) if loud.size else len(pcm)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request, "PROBE_SAMPLES", first_look)
        assert SilenceGuard(100, -60)._quiet_end(pcm) == wanted
