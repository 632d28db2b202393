"""``engine.ops.noise.PhiloxNoise`` in torch operators, for graphs: the same variates, made on the device."""

from __future__ import annotations

import torch
from torch import Tensor

LOW = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def _high(product: Tensor) -> Tensor:
    """Bits 32 to 63 of a product that wrapped around in int64."""
    return (product >> 32) & LOW


def exponential(seed: Tensor, place: Tensor, frame: Tensor, ids: Tensor) -> Tensor:
    """seed, place, frame [N] int64, ids [N, n] int64 -> variates [N, n] in fp32, by Philox4x32-10."""
    zeros = torch.zeros_like(ids)
    c0, c1, c2, c3 = ids, zeros + (place & LOW)[:, None], zeros + frame[:, None], zeros + (place >> 32)[:, None]
    k0, k1 = (seed & LOW)[:, None], ((seed >> 32) & LOW)[:, None]
    for _ in range(ROUNDS):
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = _high(p1) ^ c1 ^ k0, p1 & LOW, _high(p0) ^ c3 ^ k1, p0 & LOW
        k0, k1 = (k0 + WEYL[0]) & LOW, (k1 + WEYL[1]) & LOW
    return -torch.log(c0.double() * 2.0**-32 + 2.0**-33).float()
