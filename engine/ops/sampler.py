"""Logits to ids, in the exact order of the official code: penalty, bans, temperature, top-k, top-p, choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from engine.ops.noise import NoiseSource, SampleKey


@dataclass(frozen=True, slots=True)
class RowSamplingParams:
    """Sampling parameters of one row and one kind of codebook; temperature 0 is greedy, top_k 0 no limit."""

    temperature: float
    top_k: int
    top_p: float = 1.0


class SamplingBatch:
    """Rows of sampling parameters as tensors [N, 1], with what lets the common case skip work."""

    def __init__(self, params: Sequence[RowSamplingParams], device: torch.device) -> None:
        self.greedy = torch.tensor([p.temperature == 0 for p in params], device=device)
        self.temperature = torch.tensor([[p.temperature or 1.0] for p in params], device=device)
        self.top_k = torch.tensor([[p.top_k or 1 << 30] for p in params], device=device)
        self.top_p = torch.tensor([[p.top_p] for p in params], device=device)
        self.all_greedy = all(p.temperature == 0 for p in params)
        self.any_greedy = any(p.temperature == 0 for p in params)
        self.any_top_p = any(p.top_p < 1.0 for p in params)
        self.same_k = len({p.top_k for p in params}) == 1
        self.max_k = 0 if any(p.top_k == 0 for p in params) else max(p.top_k for p in params)

    @staticmethod
    def from_params(params: Sequence[RowSamplingParams], device: torch.device) -> SamplingBatch:
        """Made once for each mix of rows: the mix changes only when a row joins or leaves."""
        return _make_batch(tuple(params), device)


@lru_cache(maxsize=256)
def _make_batch(params: tuple[RowSamplingParams, ...], device: torch.device) -> SamplingBatch:
    return SamplingBatch(params, device)


def apply_repetition_penalty(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Shrink every id seen before: positive logits divided, negative multiplied. seen [N, V] bool, penalty [N, 1]."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def sample(logits: Tensor, batch: SamplingBatch, keys: list[SampleKey], codebook: int, noise: NoiseSource) -> Tensor:
    """logits [N, V] in fp32, bans already -inf -> ids [N]: argmax(p / q)."""
    if batch.all_greedy:
        return logits.argmax(-1)
    picked = sample_top_k(logits, batch, keys, codebook, noise)
    return torch.where(batch.greedy, logits.argmax(-1), picked) if batch.any_greedy else picked


def sample_reference(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, noise: Tensor) -> Tensor:
    """The reference of every sampler: logits and noise [N, V] in fp32, all settings tensors [N, 1] -> ids [N].

    Every id keeps its place; ties at the k-th value all stay.
    """
    width = logits.shape[-1]
    scaled = logits / torch.where(temperature == 0, 1.0, temperature)
    last = torch.where(top_k > 0, top_k, width).clamp(max=width) - 1
    scaled = scaled.masked_fill(scaled < scaled.sort(dim=-1, descending=True).values.gather(-1, last), -torch.inf)
    ranked, order = scaled.sort(dim=-1, descending=True)
    beyond = _beyond_top_p(ranked, top_p) & (top_p < 1.0)
    scaled = scaled.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), -torch.inf)
    picked = (scaled.softmax(-1) / noise).argmax(-1)
    return torch.where(temperature[:, 0] == 0, logits.argmax(-1), picked)


def sample_top_k(
    logits: Tensor, batch: SamplingBatch, keys: list[SampleKey], codebook: int, noise: NoiseSource
) -> Tensor:
    """The same choice over the top-k alone: noise is needed for them only. Of ties at the k-th value one stays."""
    ranked, ids = logits.topk(min(batch.max_k or logits.shape[-1], logits.shape[-1]), dim=-1)
    ranked = ranked / batch.temperature
    if not batch.same_k:
        ranks = torch.arange(ranked.shape[-1], device=ranked.device)
        ranked = ranked.masked_fill(ranks >= batch.top_k, -torch.inf)
    if batch.any_top_p:
        ranked = ranked.masked_fill(_beyond_top_p(ranked, batch.top_p), -torch.inf)
    place = (ranked.softmax(-1) / noise.exponential(keys, codebook, ids)).argmax(-1, keepdim=True)
    return ids.gather(-1, place)[:, 0]


def _beyond_top_p(ranked: Tensor, top_p: Tensor) -> Tensor:
    """Marks, in descending logits, what lies past the smallest head whose mass reaches top_p."""
    mass = ranked.softmax(-1)
    return mass.cumsum(-1) - mass >= top_p
