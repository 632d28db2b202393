"""Repetition-aware sampling (spec 2.5): a draw from the nucleus, and when that was heard just now, one from everything.

Draws are argmax(p / q) over exponential noise, keyed by what the row has drawn so far, so that they do not depend on
the batch. ``sample_reference`` is the slow reference, in the order of the official code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.ops.noise import NoiseSource, SampleKey

# Which draw of a token the noise is for, in the place of the codebook.
NUCLEUS, WHOLE = 0, 1
# An id that no token has: fills up a history.
NOTHING = -1


@dataclass(frozen=True, slots=True)
class RasParams:
    """Of one row. Temperature 0 takes the likeliest and repeats itself freely; top_k 0 is no limit."""

    temperature: float = 1.0
    top_p: float = 0.8
    top_k: int = 25
    window: int = 10
    tau: float = 0.1


def sample(
    logits: Tensor,
    params: Sequence[RasParams],
    histories: Sequence[Sequence[int]],
    keys: list[SampleKey],
    noise: NoiseSource,
) -> Tensor:
    """logits [N, V] in fp32, bans already -inf; a history's last ids -> ids [N]."""
    if noise.full_width:
        drawn = [sample_reference(*row, noise) for row in zip(logits, params, histories, keys, strict=True)]
        return torch.tensor(drawn, device=logits.device)
    greedy = torch.tensor([p.temperature == 0 for p in params], device=logits.device)
    scaled = logits / torch.tensor([[p.temperature or 1.0] for p in params], device=logits.device)
    picked = _sample_nucleus(scaled, params, keys, noise)
    again = _is_recent(picked, params, histories).logical_and(~greedy).nonzero()[:, 0]
    if len(again):
        picked[again] = _sample_excluding(scaled[again], picked[again], [keys[i] for i in again.tolist()], noise)
    return torch.where(greedy, logits.argmax(-1), picked)


def _sample_nucleus(scaled: Tensor, params: Sequence[RasParams], keys: list[SampleKey], noise: NoiseSource) -> Tensor:
    """Nothing beyond the largest top_k can be kept, so no more is ranked."""
    size = scaled.shape[-1]
    top_k = torch.tensor([[p.top_k or size] for p in params], device=scaled.device)
    top_p = torch.tensor([[p.top_p] for p in params], device=scaled.device)
    widest = min(size, max(p.top_k or size for p in params))
    ranked, ids = scaled.softmax(-1).topk(widest, dim=-1)
    ranks = torch.arange(widest, device=scaled.device)
    kept = (ranked.cumsum(-1) - ranked < top_p) & (ranks < top_k)
    place = (ranked.where(kept, 0.0) / noise.exponential(keys, NUCLEUS, ids)).argmax(-1, keepdim=True)
    return ids.gather(-1, place)[:, 0]


def _is_recent(picked: Tensor, params: Sequence[RasParams], histories: Sequence[Sequence[int]]) -> Tensor:
    """[N] bool: ``picked`` came at least window * tau times in the last ``window`` ids."""
    rows = zip(picked.tolist(), params, histories, strict=True)
    return torch.tensor([_is_repeated(token, p, history) for token, p, history in rows], device=picked.device)


def _is_repeated(token: int, params: RasParams, history: Sequence[int]) -> bool:
    return list(history[-params.window :]).count(token) >= params.window * params.tau


def _sample_excluding(scaled: Tensor, picked: Tensor, keys: list[SampleKey], noise: NoiseSource) -> Tensor:
    """From all that is allowed but ``picked``, which stays where nothing else is."""
    others = scaled.scatter(-1, picked[:, None], -torch.inf)
    alone = others.isneginf().all(-1)
    ids = torch.arange(scaled.shape[-1], device=scaled.device).expand_as(scaled)
    drawn = (others.softmax(-1) / noise.exponential(keys, WHOLE, ids)).argmax(-1)
    return torch.where(alone, picked, drawn)


def sample_reference(
    logits: Tensor, params: RasParams, history: Sequence[int], key: SampleKey, noise: NoiseSource
) -> int:
    """One row, step by step; as much noise is taken as the official code takes."""
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
    if not _is_repeated(picked, params, history):
        return picked
    others = logits.clone()
    others[picked] = -torch.inf
    if others.isneginf().all():
        return picked
    every = torch.arange(len(logits), device=logits.device)[None]
    spread = (others / params.temperature).softmax(-1)
    return int((spread / noise.exponential([key], WHOLE, every)[0]).argmax())
