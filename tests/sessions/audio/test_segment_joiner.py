"""Joins between segments: nothing lost, and no seam to be heard; and the metric that finds seams."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.audio.pcm import Pcm
from sessions.audio.segment_joiner import SegmentJoiner, crossfade_join, hann_ramp
from tests.audio.seam_report import seam_report
from tests.sessions.audio.signals import noise, pieces, speech_like

SECONDS = 3


@given(st.integers(1, 500))
def test_ramp_and_its_mirror_sum_to_one(length: int) -> None:
    ramp = hann_ramp(length)
    assert ramp + ramp[::-1] == pytest.approx(np.ones(length), abs=1e-6)
    assert np.all(np.diff(ramp) > 0)


SEGMENTS = st.lists(st.integers(0, 60).map(noise), min_size=1, max_size=5)
OVERLAPS = st.integers(0, 25)


def join_all(segments: list[Pcm], overlap: int) -> Pcm:
    return functools.reduce(lambda first, second: crossfade_join(first, second, overlap), segments)


@given(SEGMENTS, OVERLAPS, st.data())
def test_streaming_equals_joining_segments(segments: list[Pcm], overlap: int, data: st.DataObject) -> None:
    joiner = SegmentJoiner(overlap)
    out = []
    for index, segment in enumerate(segments):
        if index:
            out.append(joiner.next_segment())
        out.extend(joiner.push(piece) for piece in data.draw(pieces(segment)))
    out.append(joiner.finish())
    assert np.array_equal(np.concatenate(out), join_all(segments, overlap))


@given(SEGMENTS, OVERLAPS)
def test_samples_out_are_samples_in_minus_the_overlaps(segments: list[Pcm], overlap: int) -> None:
    joined = segments[0].size
    for segment in segments[1:]:
        joined += segment.size - min(overlap, joined, segment.size)
    assert join_all(segments, overlap).size == joined


@given(st.lists(st.integers(0, 60), min_size=1, max_size=5), OVERLAPS, st.sampled_from([0.0, 0.5]))
def test_silence_and_constants_stay(sizes: list[int], overlap: int, level: float) -> None:
    joined = join_all([np.full(size, level, np.float32) for size in sizes], overlap)
    assert joined == pytest.approx(np.full(joined.size, level), abs=1e-6)


@given(SEGMENTS, OVERLAPS)
def test_segment_starts_are_where_the_fades_begin(segments: list[Pcm], overlap: int) -> None:
    joiner = SegmentJoiner(overlap)
    expected, end = [0], segments[0].size
    joiner.push(segments[0])
    for segment in segments[1:]:
        joiner.next_segment()
        joiner.push(segment)
        shared = min(overlap, end, segment.size)
        expected.append(end - shared)
        end += segment.size - shared
    joiner.finish()
    assert joiner.segment_starts == expected


def test_without_overlap_nothing_is_held_back() -> None:
    joiner = SegmentJoiner(0)
    pcm = noise(5)
    assert np.array_equal(joiner.push(pcm), pcm)
    assert joiner.next_segment().size == 0
    assert np.array_equal(joiner.push(pcm), pcm)


def test_fade_into_silence_is_not_raised() -> None:
    first = noise(100)
    joined = crossfade_join(first, np.zeros(100, np.float32), 100)
    assert joined == pytest.approx(first * (1 - hann_ramp(100)), abs=1e-6)


def test_equal_power_keeps_the_level_of_uncorrelated_audio() -> None:
    first, second = noise(4000, seed=1), noise(4000, seed=2)
    middle = slice(1900, 2100)
    assert np.std(crossfade_join(first, second, 4000)[middle]) == pytest.approx(np.std(first), rel=0.15)


@pytest.mark.parametrize("sample_rate", [8_000, 24_000, 48_000])
@pytest.mark.parametrize("seed", range(4))
def test_a_whole_signal_passes_wherever_one_looks(sample_rate: int, seed: int) -> None:
    speech = speech_like(SECONDS * sample_rate, sample_rate, seed)
    seams = np.random.default_rng(seed).integers(0, speech.size, 20).tolist()
    report = seam_report(speech, seams, sample_rate)
    assert report.passes
    assert report.jump_ratio == pytest.approx(1, abs=0.6)


def test_a_click_is_a_jump() -> None:
    speech = speech_like(144_000, 24_000, 3)
    seams = list(range(6_000, 140_000, 6_000))
    clicks = speech.copy()
    clicks[seams] += 0.1
    report = seam_report(clicks, seams, 24_000)
    assert report.jump_ratio > 2
    assert not report.passes


def test_silence_passes() -> None:
    report = seam_report(np.zeros(24_000, np.float32), [6_000, 12_000], 24_000)
    assert report.passes
    assert report.jump_ratio == report.spectral_ratio == 1


def test_seams_that_cannot_be_measured_are_refused() -> None:
    speech = speech_like(4_800, 24_000, 0)
    with pytest.raises(ValueError, match="no seam"):
        seam_report(speech, [], 24_000)
    with pytest.raises(ValueError, match="no seam"):
        seam_report(speech, [10, 4_790], 24_000)
    with pytest.raises(ValueError, match="nothing to compare"):
        seam_report(speech, list(range(400, 4_400, 200)), 24_000)


def test_joining_removes_the_click_of_cuts_in_mid_speech() -> None:
    """The spectrum still changes there: it is other speech."""
    sample_rate, overlap = 24_000, 480
    segments = [speech_like(12_000, sample_rate, seed) for seed in range(20, 40)]
    raw_seams = list(itertools.accumulate(segment.size for segment in segments[:-1]))
    joined = functools.reduce(lambda first, second: crossfade_join(first, second, overlap), segments)
    joined_seams = [seam - index * overlap - overlap // 2 for index, seam in enumerate(raw_seams)]
    raw_report = seam_report(np.concatenate(segments), raw_seams, sample_rate)
    joined_report = seam_report(joined, joined_seams, sample_rate)
    assert not raw_report.passes
    assert joined_report.jump_ratio < 1.2 < raw_report.jump_ratio
    assert joined_report.spectral_ratio < raw_report.spectral_ratio / 2
