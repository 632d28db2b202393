"""Random numbers of draws: exponential variates q for argmax(p / q).

``PhiloxNoise`` is a pure function of (seed, segment, frame, codebook, id): the same on every device and in every batch,
so a row that sat out, moved or was computed again draws the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Words = npt.NDArray[np.uint64]

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
LOW = 0xFFFFFFFF
_MULTIPLIERS = np.array(MULTIPLIERS, dtype=np.uint64)
_WEYL = np.array(WEYL, dtype=np.uint64)
_LOW = np.uint64(LOW)
_HALF = np.uint64(32)
ROUNDS = 10
SIGN_BIT = 1 << 63


class SampleKey(NamedTuple):
    """Key of one sampled id, besides the id of each candidate."""

    seed: int
    segment: int
    frame: int


class NoiseSource(Protocol):
    def exponential(self, keys: list[SampleKey], codebook: int, ids: Tensor) -> Tensor:
        """One variate for each of ids [N, n], in fp32; ``keys`` has one entry a row."""
        ...


def philox(even: Words, odd: Words, round_keys: Sequence[Words]) -> tuple[Words, Words]:
    """Philox4x32-10 (Salmon et al., SC'11) of many counters at once.

    even [2, ...] holds counter words 0 and 2, odd [2, ...] words 1 and 3, as 32-bit values in uint64; both broadcast
    against each of ``round_keys``. Returns the four words in the same arrangement.
    """
    multipliers = _MULTIPLIERS.reshape(2, *(1,) * (even.ndim - 1))
    for key in round_keys:
        product = (even * multipliers)[::-1]
        even = product >> _HALF
        even ^= odd
        even ^= key
        odd = product & _LOW
    return even, odd


def expand_keys(seeds: Words) -> list[Words]:
    """64-bit seeds [...] -> the keys of the ten rounds, each [2, ...]."""
    key = np.stack((seeds & _LOW, seeds >> _HALF))
    step = _WEYL.reshape(2, *(1,) * seeds.ndim)
    return [(key + np.uint64(i) * step) & _LOW for i in range(ROUNDS)]


@lru_cache(maxsize=1024)
def _round_keys(seeds: tuple[int, ...]) -> list[Words]:
    """For rows side by side: the mix of seeds changes only when a row joins or leaves."""
    return expand_keys(np.array(seeds, dtype=np.uint64)[:, None])


class PhiloxNoise:
    def exponential(self, keys: list[SampleKey], codebook: int, ids: Tensor) -> Tensor:
        even = np.empty((2, *ids.shape), dtype=np.uint64)
        even[0] = ids.cpu().numpy()
        even[1] = [[key.frame] for key in keys]
        place = np.array([[[key.segment << 8 | codebook] for key in keys]], dtype=np.uint64)
        odd = np.concatenate((place & _LOW, place >> _HALF))
        words = philox(even, odd, _round_keys(tuple(key.seed for key in keys)))[0][0]
        uniform = words * 2.0**-32 + 2.0**-33
        return torch.from_numpy(-np.log(uniform)).float().to(ids.device)


def to_int64(seed: int) -> int:
    """64 bits as tensors count them."""
    return (seed & (2 * SIGN_BIT - 1) ^ SIGN_BIT) - SIGN_BIT


def _high_bits(product: Tensor) -> Tensor:
    """Bits 32 to 63 of a product that wrapped around in int64."""
    return (product >> 32) & LOW


def philox_exponential(seed: Tensor, place: Tensor, frame: Tensor, ids: Tensor) -> Tensor:
    """seed, place, frame [N] int64, ids [N, n] int64 -> variates [N, n] in fp32.

    The variates of ``PhiloxNoise`` in torch operators, for graphs.
    """
    zeros = torch.zeros_like(ids)
    c0, c1, c2, c3 = ids, zeros + (place & LOW)[:, None], zeros + frame[:, None], zeros + (place >> 32)[:, None]
    k0, k1 = (seed & LOW)[:, None], ((seed >> 32) & LOW)[:, None]
    for _ in range(ROUNDS):
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = _high_bits(p1) ^ c1 ^ k0, p1 & LOW, _high_bits(p0) ^ c3 ^ k1, p0 & LOW
        k0, k1 = (k0 + WEYL[0]) & LOW, (k1 + WEYL[1]) & LOW
    return -torch.log(c0.double() * 2.0**-32 + 2.0**-33).float()
