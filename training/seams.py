"""Upsampling leaves a pattern that repeats with every step of the codec; its third difference shows where.

The same score as ``sessions/audio/seam.py`` looks for at single places, here for all phases of a 20 ms step at once.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from training.settings import FRAME_SAMPLES

STEP_SAMPLES = FRAME_SAMPLES // 4
"""Frames are upsampled to 20 ms first; whatever repeats with frames repeats with these steps or is spread over them."""
LEVEL_SAMPLES = 193
"""Roughness is measured against its level within 4 ms to either side."""
FLOOR = 2e-5


def roughness(speech: Tensor) -> Tensor:
    """[B, n] that begin with a step -> the mean roughness [B, STEP_SAMPLES] of every phase of a step, 1 on average.

    Gradients reach the differences alone, not the level that they are measured against.
    """
    differences = speech.float().diff(n=3).abs()
    with torch.no_grad():
        level = F.avg_pool1d(differences[:, None].square(), LEVEL_SAMPLES, 1, LEVEL_SAMPLES // 2)[:, 0].sqrt()
    scores = differences / (level + FLOOR)
    steps = scores[:, : scores.shape[1] // STEP_SAMPLES * STEP_SAMPLES].unflatten(1, (-1, STEP_SAMPLES))
    by_phase = steps.mean(1)
    return by_phase / (by_phase.mean(1, keepdim=True).detach() + FLOOR)


def seam_loss(speech: Tensor) -> Tensor:
    """The variance of the roughness over phases: small where no place within a step is like a seam.

    Each crop counts by itself: over both voices together, one may be smooth where the other is rough.
    """
    return (roughness(speech) - 1).square().mean()
