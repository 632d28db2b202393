"""Draws as the official code makes them: from one torch generator, over every id in order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.models.cosyvoice3.prompt import RasParams
from engine.ops.noise import NoiseSource, SampleKey
from engine.ops.ras import NUCLEUS, WHOLE
from engine.ops.sampler import SamplingBatch, sample, sample_reference


class GeneratorNoise:
    """A torch generator, whose multinomial draws exactly this way."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def exponential(self, keys: list[SampleKey], codebook: int, ids: Tensor) -> Tensor:
        return torch.empty(ids.shape, device=ids.device).exponential_(1, generator=self.generator)


def sample_official(
    logits: Tensor, batch: SamplingBatch, keys: list[SampleKey], codebook: int, noise: NoiseSource
) -> Tensor:
    """``sample``, which asks a ``GeneratorNoise`` for every id of the vocabulary."""
    if not isinstance(noise, GeneratorNoise) or batch.all_greedy:
        return sample(logits, batch, keys, codebook, noise)
    ids = torch.arange(logits.shape[-1], device=logits.device).expand_as(logits)
    variates = noise.exponential(keys, codebook, ids)
    return sample_reference(logits, batch.temperature, batch.top_k, batch.top_p, variates)


def sample_ras(logits: Tensor, params: RasParams, history: Sequence[int], key: SampleKey, noise: NoiseSource) -> int:
    """One row of CosyVoice3, step by step; as much noise is taken as the official code takes."""
    if params.temperature == 0:
        return int(logits.argmax())
    probabilities = (logits / params.temperature).softmax(-1)
    ranked, ids = probabilities.sort(descending=True, stable=True)
    num_kept, mass = 0, 0.0
    while num_kept < min(params.top_k or len(ids), len(ids)) and mass < params.top_p:
        mass += float(ranked[num_kept])
        num_kept += 1
    kept = ranked[:num_kept]
    picked = int(ids[(kept / noise.exponential([key], NUCLEUS, ids[None, :num_kept])[0]).argmax()])
    if list(history[-params.window :]).count(picked) < params.window * params.tau:
        return picked
    others = logits.clone()
    others[picked] = -torch.inf
    if others.isneginf().all():
        return picked
    every = torch.arange(len(logits), device=logits.device)[None]
    spread = (others / params.temperature).softmax(-1)
    return int((spread / noise.exponential([key], WHOLE, every)[0]).argmax())
