"""Seams are found at any place of a step, and those of one voice are no excuse for those of another."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from training.seams import STEP_SAMPLES, roughness, seam_loss


def noise(num_rows: int) -> Tensor:
    return torch.randn(num_rows, 96 * STEP_SAMPLES, generator=torch.Generator().manual_seed(4)) / 20


def with_clicks(speech: Tensor, phase: int, height: float = 0.2) -> Tensor:
    clicks = torch.zeros(STEP_SAMPLES)
    clicks[phase] = height
    return speech + clicks.repeat(speech.shape[1] // STEP_SAMPLES)


@pytest.mark.parametrize("phase", [3, 200, STEP_SAMPLES - 4])
def test_clicks_are_rough_where_they_are(phase: int) -> None:
    found = roughness(with_clicks(noise(2), phase))
    assert found.shape == (2, STEP_SAMPLES)
    assert ((found.argmax(1) - phase).abs() <= 3).all()
    assert seam_loss(with_clicks(noise(2), phase)) > 4 * seam_loss(noise(2))


def test_one_voice_does_not_make_up_for_the_other() -> None:
    """Alone, each is as rough as both together."""
    voices = [with_clicks(noise(1), phase) for phase in (100, 300)]
    together = seam_loss(torch.cat(voices))
    torch.testing.assert_close(together, torch.stack([seam_loss(voice) for voice in voices]).mean())


def test_descending_takes_the_clicks_away() -> None:
    clicks = torch.full((1,), 0.2, requires_grad=True)
    places = torch.zeros(STEP_SAMPLES).index_fill(0, torch.tensor([200]), 1.0).repeat(96)
    seam_loss(noise(1) + clicks * places).backward()
    assert clicks.grad is not None
    assert clicks.grad > 0


def test_silence_has_no_seams_and_no_wild_gradient() -> None:
    silence = torch.zeros(1, 4 * STEP_SAMPLES, requires_grad=True)
    loss = seam_loss(silence)
    loss.backward()
    assert silence.grad is not None
    assert torch.isfinite(loss)
    assert torch.isfinite(silence.grad).all()
