"""Seams are found at any place of a frame, as the judge of the project finds them, and in each voice by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.audio.seam_report import seam_report
from training.seam_loss import STEP_SAMPLES, jump_scores, roughness, seam_loss
from training.settings import FRAME_SAMPLES, SAMPLE_RATE

NUM_FRAMES = 24


def noise(num_rows: int) -> Tensor:
    return torch.randn(num_rows, NUM_FRAMES * FRAME_SAMPLES, generator=torch.Generator().manual_seed(4)) / 20


def voices(*rows: int) -> Tensor:
    return torch.tensor(rows)[:, None].expand(-1, NUM_FRAMES)


def with_clicks(speech: Tensor, place: int, every: int = STEP_SAMPLES, height: float = 0.2) -> Tensor:
    clicks = torch.zeros(every)
    clicks[place] = height
    return speech + clicks.repeat(speech.shape[1] // every)


@pytest.mark.parametrize("place", [3, 200, STEP_SAMPLES - 4])
def test_clicks_are_rough_where_they_are(place: int) -> None:
    found = roughness(with_clicks(noise(2), place), voices(0, 1))
    assert found.shape == (2, FRAME_SAMPLES)
    assert ((found.unflatten(1, (-1, STEP_SAMPLES)).mean(1).argmax(1) - place).abs() <= 3).all()
    assert seam_loss(with_clicks(noise(2), place), voices(0, 1)) > 4 * seam_loss(noise(2), voices(0, 1))


@pytest.mark.parametrize("height", [0.0, 0.1, 0.2])
def test_borders_are_as_rough_as_the_judge_finds_them(height: float) -> None:
    speech = with_clicks(noise(1), 0, FRAME_SAMPLES, height)
    judged = seam_report(speech[0].numpy(), np.arange(1, NUM_FRAMES) * FRAME_SAMPLES, SAMPLE_RATE).jump_ratio
    assert roughness(speech, voices(0))[0, 0].item() == pytest.approx(judged, rel=0.1)


def test_scores_are_those_of_the_judge() -> None:
    """The judge's scores are its own; what it reports is their mean at any places over their mean elsewhere."""
    speech = with_clicks(noise(1), 0)
    scores, places = jump_scores(speech)[0].numpy(), np.arange(1, NUM_FRAMES) * FRAME_SAMPLES
    report = seam_report(speech[0].numpy(), places, SAMPLE_RATE)
    grid = np.arange(0, speech.shape[1], 96)
    grid = grid[(grid >= 384) & (grid < speech.shape[1] - 384)]
    elsewhere = grid[np.abs(grid[:, None] - places[None]).min(1) > 288]
    assert scores[places].mean() / scores[elsewhere].mean() == pytest.approx(report.jump_ratio, rel=1e-2)


def test_a_smooth_voice_does_not_make_up_for_a_rough_one() -> None:
    """In one voice clicks and their lack cancel out, in two they do not."""
    rough, smooth = with_clicks(noise(1), 0), noise(1)
    smooth[:, 0::STEP_SAMPLES] = smooth[:, 1::STEP_SAMPLES]
    both = torch.cat([rough, smooth])
    assert seam_loss(both, voices(0, 1)) > 1.3 * seam_loss(both, voices(0, 0))


def test_descending_takes_the_clicks_away() -> None:
    clicks = torch.full((1,), 0.2, requires_grad=True)
    places = torch.zeros(STEP_SAMPLES).index_fill(0, torch.tensor([200]), 1.0).repeat(4 * NUM_FRAMES)
    seam_loss(noise(1) + clicks * places, voices(0)).backward()
    assert clicks.grad is not None
    assert clicks.grad > 0


def test_silence_has_no_seams_and_no_wild_gradient() -> None:
    silence = torch.zeros(1, NUM_FRAMES * FRAME_SAMPLES, requires_grad=True)
    loss = seam_loss(silence, voices(0))
    loss.backward()
    assert silence.grad is not None
    assert torch.isfinite(loss)
    assert torch.isfinite(silence.grad).all()
