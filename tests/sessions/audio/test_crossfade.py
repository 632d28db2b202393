"""Crossfades within a segment and joins between segments: nothing lost, and no seam to be heard."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import SpeechChunk
from sessions.audio.crossfade import ChunkOrderError, Crossfader, Fade, hann_ramp
from sessions.audio.pcm import Pcm
from sessions.audio.segment_joiner import SegmentJoiner, crossfade_join
from tests.audio.seam_report import seam_report
from tests.sessions.audio.signals import noise, pieces, speech_like

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


SEGMENTS = st.lists(st.integers(0, 60).map(noise), min_size=1, max_size=5)
OVERLAPS = st.integers(0, 25)


def join_all(segments: list[Pcm], overlap: int, fade: Fade) -> Pcm:
    return functools.reduce(lambda first, second: crossfade_join(first, second, overlap, fade), segments)


@given(SEGMENTS, OVERLAPS, FADES, st.data())
def test_streaming_equals_joining_segments(segments: list[Pcm], overlap: int, fade: Fade, data: st.DataObject) -> None:
    joiner = SegmentJoiner(overlap, fade)
    out = []
    for index, segment in enumerate(segments):
        if index:
            out.append(joiner.next_segment())
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


def test_equal_power_keeps_the_level_of_uncorrelated_audio() -> None:
    first, second = noise(4000, seed=1), noise(4000, seed=2)
    middle = slice(1900, 2100)
    level = {fade: float(np.std(crossfade_join(first, second, 4000, fade)[middle])) for fade in Fade}
    assert level[Fade.EQUAL_POWER] == pytest.approx(np.std(first), rel=0.15)
    assert level[Fade.HANN] < 0.8 * np.std(first)


CHUNK_MS, TAIL_MS, SECONDS = 240, 20, 5
MARGIN_SAMPLES = 480


def later_by(pcm: Pcm, samples: float) -> Pcm:
    length = pcm.size + 256
    spectrum = np.fft.rfft(pcm, length)
    shift = np.exp(-2j * np.pi * np.arange(spectrum.size) * samples / length)
    return np.fft.irfft(spectrum * shift, length)[: pcm.size].astype(np.float32)


def rendering(pcm: Pcm, sample_rate: int, fault: str, random: np.random.Generator) -> Pcm:
    """Another rendering of the same speech, as a decoder with too little context would make it."""
    if fault == "gain 3 dB":
        return pcm * np.float32(10 ** (random.choice([-3, 3]) / 20))
    if fault == "shift 0.2 ms":
        return later_by(pcm, random.uniform(-2e-4, 2e-4) * sample_rate)
    spectrum = np.fft.rfft(random.standard_normal(pcm.size))
    spectrum /= 1 + (np.fft.rfftfreq(pcm.size, 1 / sample_rate) / 800) ** 2
    rumble = np.fft.irfft(spectrum, pcm.size)
    level = np.sqrt(np.convolve(pcm**2, np.ones(480) / 480, "same"))
    return (pcm + 10 ** (-12 / 20) * level * rumble / rumble.std()).astype(np.float32)


def windowed_decode(speech: Pcm, sample_rate: int, fault: str, seed: int) -> list[SpeechChunk]:
    """Chunks that each render the speech anew, the last 20 ms of each coming again in the next."""
    random = np.random.default_rng(seed)
    tail = TAIL_MS * sample_rate // 1000
    starts = list(range(0, speech.size, CHUNK_MS * sample_rate // 1000))
    chunks = []
    for start, stop in itertools.pairwise([*starts, speech.size]):
        last = stop == speech.size
        end = stop if last else stop + tail
        before = max(start - MARGIN_SAMPLES, 0)
        pcm = rendering(speech[before : end + MARGIN_SAMPLES], sample_rate, fault, random)[
            start - before : end - before
        ]
        chunks.append(SpeechChunk("r", start, pcm, 0 if last else tail, last))
    return chunks


@pytest.mark.parametrize("sample_rate", [24_000, 48_000])
@pytest.mark.parametrize("fault", ["gain 3 dB", "shift 0.2 ms", "rumble at -12 dB"])
@pytest.mark.parametrize("seed", [1, 2])
def test_raw_cuts_fail_and_crossfaded_pass(sample_rate: int, fault: str, seed: int) -> None:
    speech = speech_like(SECONDS * sample_rate, sample_rate, seed)
    chunks = windowed_decode(speech, sample_rate, fault, seed)
    seams = [chunk.start_sample for chunk in chunks[1:]]
    raw = np.concatenate([chunk.pcm[: chunk.pcm.size - chunk.provisional_tail_samples] for chunk in chunks])
    crossfader = Crossfader()
    smooth = np.concatenate([crossfader.push(chunk) for chunk in chunks])
    half_a_tail = TAIL_MS * sample_rate // 2000
    assert not seam_report(raw, seams, sample_rate).passes
    assert seam_report(smooth, [seam + half_a_tail for seam in seams], sample_rate).passes


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


@pytest.mark.parametrize("fade", Fade)
def test_joining_removes_the_click_of_cuts_in_mid_speech(fade: Fade) -> None:
    """The spectrum still changes there: it is other speech."""
    sample_rate, overlap = 24_000, 480
    segments = [speech_like(12_000, sample_rate, seed) for seed in range(20, 40)]
    raw_seams = list(itertools.accumulate(segment.size for segment in segments[:-1]))
    joined = functools.reduce(lambda first, second: crossfade_join(first, second, overlap, fade), segments)
    joined_seams = [seam - index * overlap - overlap // 2 for index, seam in enumerate(raw_seams)]
    raw_report = seam_report(np.concatenate(segments), raw_seams, sample_rate)
    joined_report = seam_report(joined, joined_seams, sample_rate)
    assert not raw_report.passes
    assert joined_report.jump_ratio < 1.2 < raw_report.jump_ratio
    assert joined_report.spectral_ratio < raw_report.spectral_ratio / 2
