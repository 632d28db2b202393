"""Where the randomness of a draw comes from: exponential variates q for argmax(p / q).

Two sources. ``CounterNoise`` is a pure function of (seed, segment, frame, codebook, id): the same on every device and
in every batch, so a row that sat out, moved or was computed again draws the same. ``GeneratorNoise`` reads a torch
generator at full width, in the order of the official code, whose multinomial draws exactly this way.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Words = npt.NDArray[np.uint64]

_MULTIPLIER = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10


class DrawKey(NamedTuple):
    """What one draw depends on, besides the id of each candidate."""

    seed: int
    segment: int
    frame: int


class NoiseSource(Protocol):
    full_width: bool
    """Whether ``exponential`` must be asked for every id of the vocabulary, in order."""

    def exponential(self, keys: list[DrawKey], codebook: int, ids: Tensor) -> Tensor:
        """One variate for each of ids [N, n], in fp32; ``keys`` has one entry a row."""
        ...


def philox(counter: tuple[Words, ...], key: tuple[Words, Words]) -> tuple[Words, ...]:
    """Philox4x32-10 (Salmon et al., SC'11): four 32-bit words from a 128-bit counter and a 64-bit key.

    Words travel in uint64 arrays that broadcast against each other.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        left, right = c0 * _MULTIPLIER[0], c2 * _MULTIPLIER[1]
        c0, c1, c2, c3 = (right >> _HALF) ^ c1 ^ k0, right & _LOW, (left >> _HALF) ^ c3 ^ k1, left & _LOW
        k0, k1 = (k0 + np.uint64(_WEYL[0])) & _LOW, (k1 + np.uint64(_WEYL[1])) & _LOW
    return c0, c1, c2, c3


class CounterNoise:
    full_width = False

    def exponential(self, keys: list[DrawKey], codebook: int, ids: Tensor) -> Tensor:
        rows = np.array(keys, dtype=np.uint64)[:, :, None]
        seed, segment, frame = rows[:, 0], rows[:, 1], rows[:, 2]
        place = (segment << np.uint64(8)) | np.uint64(codebook)
        counter = (ids.cpu().numpy().astype(np.uint64), place & _LOW, frame, place >> _HALF)
        word = philox(counter, (seed & _LOW, seed >> _HALF))[0]
        uniform = (word.astype(np.float64) + 0.5) * 2.0**-32
        return torch.from_numpy(-np.log(uniform)).float().to(ids.device)


class GeneratorNoise:
    full_width = True

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def exponential(self, keys: list[DrawKey], codebook: int, ids: Tensor) -> Tensor:
        return torch.empty(ids.shape, device=ids.device).exponential_(1, generator=self.generator)
