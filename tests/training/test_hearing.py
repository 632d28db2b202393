"""What the refined decoder is taught to keep: the cepstra, their changes, and how widely both spread."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from training.asr_features import NUM_CEPSTRA, cepstra, changes, hearing_loss, spread_loss


def noise(seed: int, num_samples: int = 24_000) -> torch.Tensor:
    return torch.randn(1, num_samples, generator=torch.Generator().manual_seed(seed)) / 10


def test_cepstra_come_every_10_ms_and_only_the_first_has_level() -> None:
    audio = noise(1)
    found = cepstra(audio)
    assert found.shape == (1, NUM_CEPSTRA, 100)
    moved = (cepstra(audio * 2) - found).mean(2)[0]
    assert moved[0] > 0.5
    assert moved[1:].abs().max() < 0.02


def test_a_change_is_what_happens_in_40_ms() -> None:
    ramp = torch.arange(20.0).expand(1, NUM_CEPSTRA, 20)
    assert (changes(ramp) == 4).all()
    assert changes(ramp).shape[2] == 16


def test_loss_is_zero_only_for_what_sounds_the_same() -> None:
    audio = noise(2)
    assert hearing_loss(audio, audio) == 0
    assert 0 < hearing_loss(audio * 1.05, audio) < hearing_loss(noise(3), audio)


def test_a_smooth_guess_is_nearer_but_its_spread_costs() -> None:
    target = cepstra(noise(4))
    smooth = F.avg_pool1d(target, 9, 1, 4)
    assert spread_loss(target, target) == 0
    assert spread_loss(smooth, target) > 0.3
    sharp = target.mean(2, keepdim=True) + (smooth - smooth.mean(2, keepdim=True)) * target.std(2, keepdim=True) / (
        smooth.std(2, keepdim=True)
    )
    assert spread_loss(sharp, target) < 1e-3
