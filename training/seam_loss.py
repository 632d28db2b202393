"""Upsampling leaves a pattern that repeats with every step of the codec; the third difference of samples shows where.

The jump score of ``tests/audio/seam_report.py``, which judges single places, here for all places of a frame at once and
with gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from training.settings import FRAME_SAMPLES

# Frames are upsampled to 20 ms first; whatever repeats within frames begins with such a step or is spread over it.
STEP_SAMPLES = FRAME_SAMPLES // 4
ORDER = 3
# Differences are measured against their level within 4 ms to either side.
LEVEL_SAMPLES = 193
FLOOR = 2e-5
# Of the 480 places of a step, beside the four places where steps begin.
PLACES_WEIGHT = 20.0


def jump_scores(speech: Tensor) -> Tensor:
    """[B, n] -> [B, n]: for every place the largest of the differences that reach across it, against their level.

    Gradients reach the differences alone, not the level.
    """
    differences = F.pad(speech.float().diff(n=ORDER).abs(), (ORDER, ORDER - 1))
    with torch.no_grad():
        level = F.avg_pool1d(differences[:, None].square(), LEVEL_SAMPLES, 1, LEVEL_SAMPLES // 2)[:, 0].sqrt()
    return F.max_pool1d(differences[:, None], ORDER, 1)[:, 0] / (level[:, : speech.shape[1]] + FLOOR)


def roughness(speech: Tensor, voices: Tensor) -> Tensor:
    """[B, T * FRAME_SAMPLES] and the voice of each frame [B, T] -> the mean score [voices, FRAME_SAMPLES] of every
    place of a frame, by voice, 1 on average. The outer frames of a piece, which lack a neighbour, do not count.
    """
    scores, voices = jump_scores(speech).unflatten(1, (-1, FRAME_SAMPLES))[:, 1:-1], voices[:, 1:-1]
    by_voice = torch.stack([scores[voices == voice].mean(0) for voice in voices.unique()])
    return by_voice / (by_voice.mean(1, keepdim=True).detach() + FLOOR)


def seam_loss(speech: Tensor, voices: Tensor) -> Tensor:
    """How far from 1 the roughness is where steps begin and, as a variance, over all places of a step.

    Each voice counts by itself: over both together one may be smooth where the other is rough. Crops by themselves are
    too short: chance would count for more than seams.
    """
    steps = roughness(speech, voices).unflatten(1, (-1, STEP_SAMPLES)) - 1
    return steps[..., 0].square().mean() + PLACES_WEIGHT * steps.mean(1).square().mean()
