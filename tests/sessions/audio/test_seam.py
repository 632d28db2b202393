"""The seam metric fails on raw cuts and passes on crossfaded ones, on speech-like signals of several rates."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from engine.api import SpeechChunk
from sessions.audio.crossfade import Crossfader, Fade
from sessions.audio.pcm import Pcm
from sessions.audio.segment_joiner import crossfade_join
from tests.audio.seam_report import seam_report
from tests.sessions.audio.signals import speech_like

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
def test_joining_takes_the_click_out_of_segments_cut_in_mid_speech(fade: Fade) -> None:
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
