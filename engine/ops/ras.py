"""Repetition-aware sampling of many rows, in plain torch: bans, an id of the nucleus, another where that came lately.

Every choice is data, so that a graph can hold it. ``TritonOps.sample_speech`` is the same in one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from engine.ops.noise import philox_exponential

# Which sampling of a token the noise is for, in the place of the codebook.
NUCLEUS, WHOLE = 0, 1


class ControlRules(NamedTuple):
    """Which control ids, those from ``num_codes`` on, N rows may sample, by flags [N].

    ``in_block``: ``fill`` alone. Else all but ``fill`` where ``in_rest``, and none where ``too_soon``; with ``merge``
    they are one candidate, ``stop``, as likely as they are together.
    """

    in_block: Tensor
    in_rest: Tensor
    too_soon: Tensor
    num_codes: int
    stop: int
    fill: int
    merge: bool


class RasTensors(NamedTuple):
    """Tensors [N] of N rows, and the last ids drawn [N, window], padded with an id that none has; ``top_k`` from 1."""

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    min_repeats: Tensor
    history: Tensor
    seed: Tensor
    place: Tensor
    frame: Tensor


def limit_control(logits: Tensor, rules: ControlRules) -> Tensor:
    """logits [N, V] in fp32 -> the same with bans at -inf."""
    in_block, in_rest, too_soon = (flags[:, None] for flags in rules[:3])
    codes, control = logits.split((rules.num_codes, logits.shape[-1] - rules.num_codes), dim=-1)
    ids = torch.arange(rules.num_codes, logits.shape[-1], device=logits.device)
    ending = control.masked_fill(in_rest & (ids == rules.fill), -torch.inf)
    if rules.merge:
        ending = torch.where(ids == rules.stop, ending.logsumexp(-1, keepdim=True), -torch.inf)
    ending = ending.masked_fill(too_soon, -torch.inf)
    fill_only = control.masked_fill(ids != rules.fill, -torch.inf)
    return torch.cat((codes, torch.where(in_block, fill_only, ending)), dim=-1)


def sample_nucleus(
    scaled: Tensor, top_p: Tensor, top_k: Tensor, widest: int, exponential: Callable[[Tensor], Tensor]
) -> Tensor:
    """scaled logits [N, V], top_p and top_k [N, 1], of which none is above ``widest`` -> ids [N]."""
    ranked, ids = scaled.softmax(-1).topk(min(widest, scaled.shape[-1]), dim=-1)
    ranks = torch.arange(ranked.shape[-1], device=scaled.device)
    kept = (ranked.cumsum(-1) - ranked < top_p) & (ranks < top_k)
    place = (ranked.where(kept, 0.0) / exponential(ids)).argmax(-1, keepdim=True)
    return ids.gather(-1, place)[:, 0]


def sample_rows(logits: Tensor, rows: RasTensors, max_top_k: int) -> Tensor:
    """logits [N, V] in fp32, bans already -inf -> ids [N]."""
    greedy = rows.temperature == 0
    scaled = logits / torch.where(greedy, 1.0, rows.temperature)[:, None]
    seed, place, frame = rows.seed, rows.place, rows.frame
    picked = sample_nucleus(
        scaled,
        rows.top_p[:, None],
        rows.top_k[:, None],
        max_top_k,
        lambda ids: philox_exponential(seed, place | NUCLEUS, frame, ids),
    )
    num_repeats = (rows.history == picked[:, None]).sum(-1)
    others = scaled.scatter(-1, picked[:, None], -torch.inf)
    again = (num_repeats >= rows.min_repeats) & ~others.isneginf().all(-1)
    ids = torch.arange(logits.shape[-1], device=logits.device).expand_as(logits)
    noise = philox_exponential(seed, place | WHOLE, frame, ids)
    another = (others.softmax(-1) / noise).argmax(-1)
    return torch.where(greedy, logits.argmax(-1), torch.where(again, another, picked))
