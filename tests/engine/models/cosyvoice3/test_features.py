"""Features of recordings against slow forms written from the formulas alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as law
from hypothesis import strategies as st
from torch import Tensor

from engine.layers.mel_filters import mel_filters
from engine.models.cosyvoice3.voice import (
    FBANK_BINS,
    flow_mel,
    kaldi_filters,
    resample,
    speaker_fbank,
    whisper_mel,
)


def noise(num_samples: int, seed: int = 0) -> Tensor:
    return 0.1 * torch.randn(num_samples, generator=torch.Generator().manual_seed(seed))


def slow_fbank(pcm: Tensor) -> Tensor:
    """Frame by frame, bin by bin, in double precision."""
    samples = pcm.double().numpy()
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 399)) ** 0.85

    def mel(hz: float) -> float:
        return 1127.0 * math.log(1.0 + hz / 700.0)

    edges = [mel(20.0) + place * (mel(8000.0) - mel(20.0)) / 81 for place in range(82)]
    rows = []
    for start in range(0, len(samples) - 399, 160):
        frame = samples[start : start + 400] - samples[start : start + 400].mean()
        frame = np.array([frame[n] - 0.97 * frame[max(n - 1, 0)] for n in range(400)]) * window
        power = np.abs(np.fft.fft(frame, 512)) ** 2
        row = []
        for left, center, right in zip(edges, edges[1:], edges[2:], strict=False):
            energy = 0.0
            for place in range(256):
                found = mel(place * 16000 / 512)
                if left < found < right:
                    rises = found <= center
                    weight = (found - left) / (center - left) if rises else (right - found) / (right - center)
                    energy += weight * power[place]
            row.append(math.log(max(energy, float(np.finfo(np.float32).eps))))
        rows.append(row)
    found = np.array(rows)
    return torch.from_numpy(found - found.mean(0)).float()


def test_the_speaker_networks_filter_banks_are_kaldis() -> None:
    pcm = noise(1500)
    torch.testing.assert_close(speaker_fbank(pcm), slow_fbank(pcm), atol=2e-3, rtol=1e-3)
    assert kaldi_filters().shape == (FBANK_BINS, 256)


@pytest.mark.parametrize("num_samples", [400, 559, 560, 16_000])
def test_only_whole_frames_count(num_samples: int) -> None:
    assert speaker_fbank(noise(num_samples)).shape == (1 + (num_samples - 400) // 160, 80)


@pytest.mark.parametrize("num_samples", [24_000, 24_479, 24_480])
def test_the_flows_mel_has_a_frame_for_each_480_samples(num_samples: int) -> None:
    assert flow_mel(noise(num_samples), 80).shape == (num_samples // 480, 80)


def test_the_flows_mel_of_one_frame_by_hand() -> None:
    pcm = noise(24_000)
    padded = torch.cat((pcm[1:721].flip(0), pcm, pcm[-721:-1].flip(0)))
    window = 0.5 - 0.5 * torch.cos(2 * math.pi * torch.arange(1920) / 1920)
    frame = padded[480 * 7 : 480 * 7 + 1920] * window
    magnitude = (torch.fft.rfft(frame).abs() ** 2 + 1e-9).sqrt()
    expected = (mel_filters(80, 24_000, 1920) @ magnitude).clamp(min=1e-5).log()
    torch.testing.assert_close(flow_mel(pcm, 80)[7], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("num_samples", [16_000, 16_159, 16_160])
def test_whispers_mel(num_samples: int) -> None:
    mel = whisper_mel(noise(num_samples))
    assert mel.shape == (128, num_samples // 160)
    assert mel.max() - mel.min() <= 2.0 + 1e-6, "quiet bins are lifted to 8 decades below the loudest"


def test_silence_is_finite_everywhere() -> None:
    pcm = torch.zeros(24_000)
    for features in (flow_mel(pcm, 80), whisper_mel(pcm), speaker_fbank(pcm)):
        assert features.isfinite().all()


@given(hz=st.integers(50, 6_000), num_samples=st.integers(2_000, 6_000))
@law(max_examples=20)
def test_a_tone_is_the_same_tone_at_16_khz(hz: int, num_samples: int) -> None:
    out = resample(torch.sin(2 * math.pi * hz * torch.arange(num_samples) / 24_000), 24_000, 16_000)
    assert len(out) == math.ceil(num_samples * 2 / 3)
    expected = torch.sin(2 * math.pi * hz * torch.arange(len(out)) / 16_000)
    torch.testing.assert_close(out[50:-50], expected[50:-50], atol=0.02, rtol=0)


def test_what_16_khz_cannot_carry_is_gone() -> None:
    out = resample(torch.sin(2 * math.pi * 10_000 * torch.arange(6_000) / 24_000), 24_000, 16_000)
    assert out[100:-100].abs().max() < 0.02


def test_the_same_rate_is_left_alone() -> None:
    pcm = noise(100)
    assert resample(pcm, 16_000, 16_000) is pcm
