"""Laws of the crossfader, under chunk sequences and cuts that Hypothesis makes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import SpeechChunk
from sessions.audio.crossfade import ChunkOrderError, Crossfader, Fade, hann_ramp
from sessions.audio.pcm import Pcm
from tests.sessions.audio.signals import noise

FADES = st.sampled_from(Fade)


@dataclass(frozen=True)
class Piece:
    """What one chunk brings: samples that come again, then samples that are new; the last ``tail`` of it will come
    again."""

    again: int
    new: int
    tail: int


@st.composite
def plans(draw: st.DrawFn, max_chunks: int = 6) -> list[Piece]:
    plan: list[Piece] = []
    again = 0
    for _ in range(draw(st.integers(1, max_chunks))):
        new = draw(st.integers(0, 30))
        tail = draw(st.integers(0, again + new))
        plan.append(Piece(again, new, tail))
        again = tail
    return [*plan[:-1], Piece(plan[-1].again, plan[-1].new, 0)]


def chunk(start: int, pcm: Pcm, tail: int = 0, last: bool = False) -> SpeechChunk:
    return SpeechChunk("r", start, pcm, tail, last)


def chunks_of(plan: list[Piece], render) -> list[SpeechChunk]:
    """``render(index, start, stop)`` gives the chunk's PCM."""
    out, end = [], 0
    for index, piece in enumerate(plan):
        start = end - piece.again
        end += piece.new
        out.append(chunk(start, render(index, start, end), piece.tail, index == len(plan) - 1))
    return out


def different_renderings(index: int, start: int, stop: int) -> Pcm:
    return noise(stop, seed=index)[start:stop]


def faded(chunks: list[SpeechChunk], fade: Fade = Fade.HANN) -> Pcm:
    crossfader = Crossfader(fade)
    return np.concatenate([crossfader.push(each) for each in chunks])


def slow_hann_crossfade(chunks: list[SpeechChunk]) -> Pcm:
    """Sample by sample, over the whole signal at once."""
    signal: list[float] = []
    tail = 0
    for each in chunks:
        for index, sample in enumerate(each.pcm):
            if index < tail:
                weight = 0.5 - 0.5 * np.cos(np.pi * (index + 0.5) / tail)
                at = each.start_sample + index
                signal[at] = (1 - weight) * signal[at] + weight * float(sample)
            else:
                signal.append(float(sample))
        tail = each.provisional_tail_samples
    return np.array(signal)


@given(plans())
def test_equals_the_slow_crossfade(plan: list[Piece]) -> None:
    chunks = chunks_of(plan, different_renderings)
    assert faded(chunks) == pytest.approx(slow_hann_crossfade(chunks), abs=1e-6)


@given(plans(), FADES)
def test_samples_out_are_samples_in_minus_the_declared_overlap(plan: list[Piece], fade: Fade) -> None:
    chunks = chunks_of(plan, different_renderings)
    samples_in = sum(each.pcm.size for each in chunks)
    assert faded(chunks, fade).size == samples_in - sum(each.provisional_tail_samples for each in chunks)


@given(plans(), FADES)
def test_renderings_that_agree_pass(plan: list[Piece], fade: Fade) -> None:
    signal = noise(200)
    out = faded(chunks_of(plan, lambda _, start, stop: signal[start:stop]), fade)
    if fade is Fade.HANN:
        assert np.array_equal(out, signal[: out.size])
    assert out == pytest.approx(signal[: out.size], abs=1e-6)


@given(plans(), FADES, st.sampled_from([0.0, 1.0, -0.3]))
def test_silence_stays_silence_and_a_constant_stays_constant(plan: list[Piece], fade: Fade, level: float) -> None:
    out = faded(chunks_of(plan, lambda _, start, stop: np.full(stop - start, level, np.float32)), fade)
    assert out == pytest.approx(np.full(out.size, level), abs=abs(level) * 1e-6)


@given(plans(), FADES, st.data())
def test_any_regrouping_gives_the_same(plan: list[Piece], fade: Fade, data: st.DataObject) -> None:
    chunks = chunks_of(plan, different_renderings)
    regrouped = [part for each in chunks for part in data.draw(cut_chunk(each))]
    assert np.array_equal(faded(regrouped, fade), faded(chunks, fade))


@st.composite
def cut_chunk(draw: st.DrawFn, whole: SpeechChunk) -> list[SpeechChunk]:
    """The chunk as several: cut anywhere before its provisional tail."""
    final = whole.pcm.size - whole.provisional_tail_samples
    if whole.last:
        final = 0  # a short last chunk would leave the tail before it half covered
    cuts = sorted(draw(st.lists(st.integers(0, final), max_size=3)))
    bounds = [0, *cuts, whole.pcm.size]
    return [
        chunk(
            whole.start_sample + a,
            whole.pcm[a:b],
            whole.provisional_tail_samples if index == len(cuts) else 0,
            whole.last and index == len(cuts),
        )
        for index, (a, b) in enumerate(itertools.pairwise(bounds))
    ]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6))
def test_without_tails_it_is_the_identity_and_holds_nothing_back(sizes: list[int]) -> None:
    crossfader, start = Crossfader(), 0
    for index, size in enumerate(sizes):
        pcm = noise(size)
        assert crossfader.push(chunk(start, pcm, last=index == len(sizes) - 1)) is pcm
        start += size


def test_only_the_tail_is_held_back() -> None:
    crossfader = Crossfader()
    pcm = noise(10)
    assert np.array_equal(crossfader.push(chunk(0, pcm, tail=4)), pcm[:6])


def test_finish_gives_the_tail_as_first_rendered() -> None:
    crossfader = Crossfader()
    pcm = noise(10)
    crossfader.push(chunk(0, pcm, tail=4))
    assert np.array_equal(crossfader.finish(), pcm[6:])
    assert crossfader.finish().size == 0


def test_an_empty_last_chunk_gives_the_tail_as_first_rendered() -> None:
    crossfader = Crossfader()
    pcm = noise(10)
    crossfader.push(chunk(0, pcm, tail=4))
    assert np.array_equal(crossfader.push(chunk(6, noise(0), last=True)), pcm[6:])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (chunk(11, noise(5)), "starts at sample 11, expected 6"),
        (chunk(5, noise(5)), "starts at sample 5, expected 6"),
        (chunk(6, noise(5), tail=6), "between 0 and the chunk's 5, got 6"),
        (chunk(6, noise(5), tail=-1), "between 0 and the chunk's 5, got -1"),
        (chunk(6, noise(5), tail=2, last=True), "last chunk has no provisional tail, got 2"),
        (chunk(6, noise(3), last=True), "must cover the 4 samples held back, got 3"),
        (chunk(6, noise(3), tail=2), "must cover the 4 samples held back, got 3"),
    ],
)
def test_chunks_out_of_place_are_refused_and_change_nothing(bad: SpeechChunk, message: str) -> None:
    crossfader = Crossfader()
    crossfader.push(chunk(0, noise(10), tail=4))
    with pytest.raises(ChunkOrderError, match=message):
        crossfader.push(bad)
    assert crossfader.push(chunk(6, noise(9), last=True)).size == 9


def test_nothing_may_follow_the_last_chunk() -> None:
    crossfader = Crossfader()
    crossfader.push(chunk(0, noise(10), last=True))
    with pytest.raises(ChunkOrderError, match="after the last"):
        crossfader.push(chunk(10, noise(1)))


@given(st.integers(1, 500))
def test_ramp_and_its_mirror_sum_to_one(length: int) -> None:
    ramp = hann_ramp(length)
    assert ramp + ramp[::-1] == pytest.approx(np.ones(length), abs=1e-6)
    assert np.all(np.diff(ramp) > 0)
