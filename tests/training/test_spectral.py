"""Resampling, spectra of the training loss, and the vocoder of the full-band codec."""

from __future__ import annotations

import math

import pytest
import torch

from engine.models.qwen3_tts.source_filter import Vocoder
from training.pitch import track_pitch
from training.spectral import envelope_loss, log_mel, mel_filters, spectral_loss, to_24_khz


def tone(hz: float, rate_hz: int, num_samples: int) -> torch.Tensor:
    return torch.sin(2 * math.pi * hz * torch.arange(num_samples) / rate_hz)[None]


@pytest.mark.parametrize("hz", [60.0, 440.0, 3_000.0, 7_000.0])
def test_a_tone_keeps_its_phase_and_height(hz: float) -> None:
    resampled = to_24_khz(tone(hz, 16_000, 8_000))
    error = (resampled - tone(hz, 24_000, 12_000))[:, 100:-100].abs().max()
    assert resampled.shape == (1, 12_000)
    assert error < 0.01


def test_mel_bands_peak_at_rising_frequencies_below_8_khz() -> None:
    peaks = mel_filters(1024, 80, "cpu").argmax(1)
    assert (peaks.diff() >= 0).all()
    assert peaks[-1] * 24_000 / 1024 < 8_000


def test_a_mel_frame_is_centred_on_its_hop() -> None:
    audio = torch.zeros(1, 240 * 20)
    audio[:, 240 * 7 : 240 * 8] = torch.randn(240, generator=torch.Generator().manual_seed(1))
    assert int(log_mel(audio).mean(1).argmax()) == 7


def pulses_of(hz: torch.Tensor) -> torch.Tensor:
    return Vocoder(24_000).pulse_train(hz, hz[:, :1], torch.zeros(len(hz), 1))[0]


def test_loss_is_zero_only_for_equal_spectra() -> None:
    speech = torch.randn(2, 4_800, generator=torch.Generator().manual_seed(2)) / 10
    assert spectral_loss(speech, speech) == 0
    assert spectral_loss(speech * 0.9, speech) < spectral_loss(speech * 0.5, speech)


def test_envelope_loss_ignores_where_pulses_are() -> None:
    speech = pulses_of(torch.full((1, 200), 150.0)) / 10
    moved = speech.roll(37, 1)
    assert envelope_loss(moved, speech, 12_000.0) < 0.25 * envelope_loss(speech * 0.5, speech, 12_000.0)


def test_pulses_have_unit_power_and_their_pitch_is_found() -> None:
    hz = torch.linspace(90.0, 240.0, 400)[None]
    pulses = pulses_of(hz)
    assert abs(float(pulses.square().mean()) - 1) < 0.02
    pitch = track_pitch(pulses / 10)
    assert ((pitch.hz / hz).log2().abs() < 0.02)[:, 10:-10].all()
    assert pitch.voiced[:, 10:-10].all()
    assert not track_pitch(torch.zeros(1, 4_800)).voiced.any()
