"""Resampling and spectra of the training loss."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from training.encoder import Encoder
from training.settings import FRAME_SAMPLES, TOY
from training.spectral import log_mel, mel_filters, phase_loss, spectral_loss, to_24_khz


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


def test_loss_is_zero_only_for_equal_spectra() -> None:
    speech = torch.randn(2, 4_800, generator=torch.Generator().manual_seed(2)) / 10
    assert spectral_loss(speech, speech) == 0
    assert spectral_loss(speech * 0.9, speech) < spectral_loss(speech * 0.5, speech)


def test_phase_loss_sees_a_shift_that_magnitudes_do_not() -> None:
    target = tone(200.0, 24_000, 24_000)
    assert spectral_loss(-target, target) < 1e-4
    assert phase_loss(-target, target) > 0.1 > phase_loss(target, target)


def test_only_an_encoder_with_phases_tells_a_wave_from_its_negative() -> None:
    audio = torch.randn(1, 4 * FRAME_SAMPLES, generator=torch.Generator().manual_seed(2)) / 5
    torch.manual_seed(1)
    blind, seeing = Encoder(TOY.sizes).eval(), Encoder(replace(TOY.sizes, phase_blocks=1)).eval()
    with torch.no_grad():
        torch.testing.assert_close(blind(audio), blind(-audio))
        assert (seeing(audio) - seeing(-audio)).abs().max() > 1e-3
