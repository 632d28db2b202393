"""When speech begins, from the likelihood of each window."""

from __future__ import annotations

import pytest

from sessions.vad.energy import OnsetDetector


@pytest.mark.parametrize(
    ("likely", "began_at"),
    [
        ([0.9, 0.9], [1]),
        ([0.9, 0.4, 0.9, 0.9], [3]),
        ([0.5, 0.5, 0.9, 0.9, 0.9], [1]),
        ([0.49] * 20, []),
        ([0.9, 0.9, 0.1, 0.9, 0.9, 0.9], [1]),
        ([0.9, 0.9, 0.1, 0.1, 0.1, 0.9, 0.9], [1, 6]),
        ([0.9, 0.9, 0.36, 0.36, 0.36, 0.36, 0.9, 0.9], [1]),
        ([0.9, 0.9, 0.1, 0.1, 0.4, 0.1, 0.1, 0.1, 0.9, 0.9], [1, 9]),
    ],
)
def test_it_begins_once_it_lasts_and_again_after_silence(likely: list[float], began_at: list[int]) -> None:
    onset = OnsetDetector(threshold=0.5, min_speech_ms=64, min_silence_ms=96, window_ms=32, hop_ms=32)
    assert [number for number, one in enumerate(likely) if onset.push(one)] == began_at


def test_a_part_of_a_window_counts_as_a_whole_one() -> None:
    onset = OnsetDetector(threshold=0.5, min_speech_ms=65, min_silence_ms=32, window_ms=32, hop_ms=32)
    assert [onset.push(0.9) for _ in range(4)] == [False, False, True, False]


@pytest.mark.parametrize(("least_ms", "num_windows"), [(1, 1), (32, 1), (33, 2), (48, 2), (64, 3), (65, 4)])
def test_windows_that_overlap_count_for_what_is_new_in_them(least_ms: int, num_windows: int) -> None:
    onset = OnsetDetector(threshold=0.5, min_speech_ms=least_ms, min_silence_ms=32, window_ms=32, hop_ms=16)
    assert [onset.push(0.9) for _ in range(num_windows)] == [False] * (num_windows - 1) + [True]
