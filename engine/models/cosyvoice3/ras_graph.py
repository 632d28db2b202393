"""``ras.draw`` as tensors alone, for graphs: the same ids from the same noise, without a look at any of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.models.cosyvoice3.ras import NUCLEUS, WHOLE
from engine.ops.reference_ops import ReferenceOps


class RasTensors(NamedTuple):
    """Of N rows: tensors [N], and the last ids drawn [N, window], padded with ``NOTHING``; ``top_k`` from 1."""

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    min_repeats: Tensor
    history: Tensor
    seed: Tensor
    place: Tensor
    frame: Tensor


def sample_rows(logits: Tensor, rows: RasTensors, max_top_k: int, ops: ReferenceOps) -> Tensor:
    """logits [N, V] in fp32, bans already -inf -> ids [N]."""
    greedy = rows.temperature == 0
    scaled = logits / torch.where(greedy, 1.0, rows.temperature)[:, None]
    picked = sample_nucleus(scaled, rows, max_top_k, ops)
    heard = (rows.history == picked[:, None]).sum(-1)
    others = scaled.scatter(-1, picked[:, None], -torch.inf)
    again = (heard >= rows.min_repeats) & ~others.isneginf().all(-1)
    ids = torch.arange(logits.shape[-1], device=logits.device).expand_as(logits)
    noise = ops.exponential(rows.seed, rows.place | WHOLE, rows.frame, ids)
    another = (others.softmax(-1) / noise).argmax(-1)
    return torch.where(greedy, logits.argmax(-1), torch.where(again, another, picked))


def sample_nucleus(scaled: Tensor, rows: RasTensors, max_top_k: int, ops: ReferenceOps) -> Tensor:
    ranked, ids = scaled.softmax(-1).topk(min(max_top_k, scaled.shape[-1]), dim=-1)
    ranks = torch.arange(ranked.shape[-1], device=scaled.device)
    kept = (ranked.cumsum(-1) - ranked < rows.top_p[:, None]) & (ranks < rows.top_k[:, None])
    noise = ops.exponential(rows.seed, rows.place | NUCLEUS, rows.frame, ids)
    place = (torch.where(kept, ranked, 0.0) / noise).argmax(-1, keepdim=True)
    return ids.gather(-1, place)[:, 0]
