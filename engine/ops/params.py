"""Parameters of kernels besides tensors of activations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

# 16-bit values that move at once.
MAX_STEP = 8


@dataclass(slots=True)
class ResidualStream:
    """The residual stream x [N, H]; ``parts`` [P, N, H] in fp32 are still to be added to it."""

    x: Tensor
    parts: Tensor | None = None


class ConvParams(NamedTuple):
    """weight [taps, in, out] in the working dtype, bias [out] in fp32."""

    weight: Tensor
    bias: Tensor
    dilation: int = 1

    @staticmethod
    def from_tensors(weight: Tensor, bias: Tensor, dtype: torch.dtype, dilation: int = 1) -> ConvParams:
        return ConvParams(weight.to(dtype).contiguous(), bias.float().contiguous(), dilation)


class SnakeParams(NamedTuple):
    """A snake's frequency and gain, fp32 [out]."""

    frequency: Tensor
    gain: Tensor


class ResidualUnitParams(NamedTuple):
    """A residual unit: ``narrow`` after the snake ``inner`` of ``wide``."""

    wide: ConvParams
    inner: SnakeParams
    narrow: ConvParams


class PagedCall(NamedTuple):
    """One new position of each of N rows, for all layers: tables [N, M] int32 of its blocks, positions [N] int32.

    ``rope``: tables [P, D/2]. ``together``: rows may be positions of one sequence, so that every write comes before any
    read.
    """

    tables: Tensor
    positions: Tensor
    rope: tuple[Tensor, Tensor]
    together: bool


class RingCall(NamedTuple):
    """``num_tokens`` new positions of each of B slots from ``first`` [B] on, over the last ``window`` positions.

    ``rope``: tables [P, D/2].
    """

    slots: Tensor
    first: Tensor
    rope: tuple[Tensor, Tensor]
    num_tokens: int
    window: int


class FirstCodeRules(NamedTuple):
    """What code 0 of N rows may be. ``seen`` [slots, V] holds the codes that ``penalty`` [N] makes less likely.

    ``forget`` [N]: an id to remove from ``seen`` before, or -1. ``banned`` [N]: the end of speech, ``eos``, is not
    sampled.
    """

    seen: Tensor
    slots: Tensor
    penalty: Tensor
    forget: Tensor
    banned: Tensor
    num_codes: int
    eos: int


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """Sampling parameters of N rows, as tensors [N]; temperature 0 is greedy, top_k 0 no limit.

    ``seed`` int64; ``place`` int64, the segment shifted by 8 bits, to be joined with a codebook; ``frame`` int64.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seed: Tensor
    place: Tensor
    frame: Tensor


@dataclass(frozen=True, slots=True)
class ConvStateSpec:
    """A layer that needs its last ``context`` inputs of ``width`` channels; ``rate`` inputs a codec frame."""

    width: int
    context: int
    rate: int


@dataclass(slots=True)
class PaddedBuffer:
    """[B, context + T, width]: the past, then what the layer before writes; ``offset`` is its place in the state."""

    buffer: Tensor
    context: int
    width: int
    offset: int

    @property
    def size(self) -> int:
        return self.context * self.width

    @property
    def fresh(self) -> Tensor:
        return self.buffer[:, self.context :]


class PaddedBufferPlan:
    """Every padded buffer of one call shape, side by side in ``workspace``, and where each one's past is kept.

    ``chunks`` [n, 6] int64, for the kernels that copy all pasts at once: offset in the state, values, place of the
    buffer's first row in ``flat``, its row stride, offset of the head, offset of the tail.
    """

    CHUNK = 1024

    def __init__(self, specs: Sequence[ConvStateSpec], num_rows: int, num_frames: int, workspace: Tensor) -> None:
        strides = [(spec.context + spec.rate * num_frames) * spec.width for spec in specs]
        self.flat = workspace[: sum(strides) * num_rows]
        self.layers: list[PaddedBuffer] = []
        chunks = []
        offset = base = 0
        for spec, stride in zip(specs, strides, strict=True):
            buffer = self.flat[base : base + stride * num_rows].view(num_rows, -1, spec.width)
            self.layers.append(PaddedBuffer(buffer, spec.context, spec.width, offset))
            size = spec.context * spec.width
            for start in range(0, size, self.CHUNK):
                count = min(self.CHUNK, size - start)
                chunks.append([offset + start, count, base, stride, start, stride - size + start])
            offset += size
            base += stride * num_rows
        self.num_state_values = offset
        # What every number of the chunks is a multiple of.
        self.step = math.gcd(MAX_STEP, *(spec.width for spec in specs))
        self.chunks = torch.tensor(chunks, dtype=torch.int64, device=workspace.device)
