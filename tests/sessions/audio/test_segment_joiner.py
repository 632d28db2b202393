"""Laws of joining segments: the streaming joiner is ``join`` over all of them, however the audio comes."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.audio.crossfade import Fade
from sessions.audio.pcm import Pcm
from sessions.audio.segment_joiner import SegmentJoiner, crossfade_join
from tests.sessions.audio.signals import noise, pieces

SEGMENTS = st.lists(st.integers(0, 60).map(noise), min_size=1, max_size=5)
OVERLAPS = st.integers(0, 25)
FADES = st.sampled_from(Fade)


def join_all(segments: list[Pcm], overlap: int, fade: Fade) -> Pcm:
    return functools.reduce(lambda first, second: crossfade_join(first, second, overlap, fade), segments)


@given(SEGMENTS, OVERLAPS, FADES, st.data())
def test_streaming_equals_joining_whole_segments(
    segments: list[Pcm], overlap: int, fade: Fade, data: st.DataObject
) -> None:
    joiner = SegmentJoiner(overlap, fade)
    out = []
    early = data.draw(st.booleans(), "last_segment is said before the last segment's audio")
    for index, segment in enumerate(segments):
        if index:
            out.append(joiner.next_segment())
        if early and index == len(segments) - 1:
            out.append(joiner.end_segments())
        out.extend(joiner.push(piece) for piece in data.draw(pieces(segment)))
    out.append(joiner.finish())
    assert np.array_equal(np.concatenate(out), join_all(segments, overlap, fade))


@given(SEGMENTS, OVERLAPS, FADES)
def test_samples_out_are_samples_in_minus_the_overlaps(segments: list[Pcm], overlap: int, fade: Fade) -> None:
    joined = segments[0].size
    for segment in segments[1:]:
        joined += segment.size - min(overlap, joined, segment.size)
    assert join_all(segments, overlap, fade).size == joined


@given(st.lists(st.integers(0, 60), min_size=1, max_size=5), OVERLAPS, FADES, st.sampled_from([0.0, 0.5]))
def test_silence_and_constants_stay(sizes: list[int], overlap: int, fade: Fade, level: float) -> None:
    joined = join_all([np.full(size, level, np.float32) for size in sizes], overlap, fade)
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


def test_in_the_last_segment_nothing_is_held_back() -> None:
    joiner = SegmentJoiner(4)
    assert joiner.push(noise(10)).size == 6
    assert joiner.end_segments().size == 4
    assert joiner.push(noise(10)).size == 10


def test_equal_power_keeps_the_level_of_speech_that_does_not_correlate() -> None:
    first, second = noise(4000, seed=1), noise(4000, seed=2)
    middle = slice(1900, 2100)
    level = {fade: float(np.std(crossfade_join(first, second, 4000, fade)[middle])) for fade in Fade}
    assert level[Fade.EQUAL_POWER] == pytest.approx(np.std(first), rel=0.15)
    assert level[Fade.HANN] < 0.8 * np.std(first)
