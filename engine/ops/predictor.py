"""Passes of the code predictor: the positions of one frame, each code from all before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from engine.ops.params import ResidualStream
from engine.ops.stack import StackLayer, run_layers
from engine.weights.quantize import Weight

if TYPE_CHECKING:
    from engine.ops.reference_ops import ReferenceOps


class PredictorWeights(NamedTuple):
    """Layers, last norm and the head of each code after the first; ``rope``: tables [P, D/2] in fp32."""

    layers: Sequence[StackLayer]
    norm: Tensor
    eps: float
    heads: Sequence[Weight]
    rope: tuple[Tensor, Tensor]


class PredictorPasses:
    """Runs each operation of a pass by itself, for any number of rows."""

    def __init__(self, ops: ReferenceOps, weights: PredictorWeights) -> None:
        self.ops, self.weights = ops, weights

    def begin(self, num_rows: int) -> None:
        """Begin a frame of ``num_rows`` rows."""

    def run(self, inputs: Sequence[Tensor], cache: Tensor, start: int, codebook: int) -> Tensor:
        """Return the logits [N, V] of ``codebook``'s code after the last of ``inputs``.

        Each input is [N, H], one for each position from ``start`` on. ``cache`` [layers, 2, N, P, Hkv, D] has the keys
        and values of the positions before, and receives those of these.
        """
        (num_rows, _), num_tokens = inputs[0].shape, len(inputs)
        layers, norm, eps, heads, rope = self.weights
        residual = ResidualStream(inputs[0] if num_tokens == 1 else torch.stack(tuple(inputs), dim=1).flatten(0, 1))

        def attend(index: int, qkv: Tensor) -> Tensor:
            norms = layers[index].qk_norms
            assert norms is not None
            return self.ops.predictor_attention(qkv, norms, eps, rope, cache[index], start, num_tokens)

        run_layers(self.ops, layers, residual, eps, attend)
        if num_tokens > 1:
            last = self.ops.flush_residual(residual).view(num_rows, num_tokens, -1)[:, -1]
            residual = ResidualStream(last.contiguous())
        return self.ops.norm_linear(residual, norm, eps, heads[codebook - 1])

    def write_status(self, finite: Tensor, out: Tensor) -> None:
        """Write to ``out`` [N] 1 for finite rows, 0 for others, and less than 0 if a pass of the frame has failed."""
        out.copy_(finite)
