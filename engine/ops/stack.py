"""The transformer layer loop of all programs, and the tables of rotary angles that their attention reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from engine.layers.transformer import Transformer
from engine.ops.params import PagedCall, ResidualStream
from engine.weights.quantize import Weight

if TYPE_CHECKING:
    from engine.ops.reference_ops import ReferenceOps


class StackLayer(NamedTuple):
    """Weights of one pre-norm layer: attention, then a gated feed-forward part."""

    norm: Tensor
    qkv: Weight
    qkv_bias: Tensor | None
    # Norms of queries and keys, in models that have them.
    qk_norms: tuple[Tensor, Tensor] | None
    out: Weight
    after: Tensor
    gate_up: Weight
    down: Weight

    @staticmethod
    def from_module(layer: nn.Module) -> StackLayer:
        """The weights of a fused ``DecoderLayer``."""
        attention, mlp = layer.self_attn, layer.mlp
        has_norms = hasattr(attention.q_norm, "weight")
        return StackLayer(
            norm=layer.input_layernorm.weight,
            qkv=attention.qkv_proj.weight,
            qkv_bias=attention.qkv_proj.bias,
            qk_norms=(attention.q_norm.weight, attention.k_norm.weight) if has_norms else None,
            out=attention.o_proj.weight,
            after=layer.post_attention_layernorm.weight,
            gate_up=mlp.gate_up_proj.weight,
            down=mlp.down_proj.weight,
        )


def run_layers(
    ops: ReferenceOps,
    layers: Sequence[StackLayer],
    residual: ResidualStream,
    eps: float,
    attend: Callable[[int, Tensor], Tensor],
) -> None:
    """Add every layer to ``residual`` [N, H]; ``attend(layer, qkv [N, ...])`` returns the attended values."""
    for index, layer in enumerate(layers):
        qkv = ops.norm_linear(residual, layer.norm, eps, layer.qkv, layer.qkv_bias)
        ops.add_linear(residual, attend(index, qkv), layer.out)
        ops.add_linear(residual, ops.norm_swiglu(residual, layer.after, eps, layer.gate_up), layer.down)


class PagedStack:
    """The layers and the last norm of ``stack`` over paged keys and values [layer, 2, blocks, block_size, Hkv, D]."""

    def __init__(self, ops: ReferenceOps, stack: Transformer, cache: Tensor, num_positions: int) -> None:
        self.ops, self.norm, self.cache = ops, stack.norm, cache
        self.layers = [StackLayer.from_module(layer) for layer in stack.layers]
        self.rope = rope_tables(stack.rope.inverse_frequency, num_positions, cache.device)

    def run(self, x: Tensor, tables: Tensor, positions: Tensor, together: bool) -> Tensor:
        """x [N, H] at ``positions`` -> normed hidden states [N, H]; the arguments are those of ``PagedCall``."""
        residual, eps, call = ResidualStream(x), self.norm.eps, PagedCall(tables, positions, self.rope, together)

        def attend(index: int, qkv: Tensor) -> Tensor:
            return self.ops.paged_attention(qkv, self.layers[index].qk_norms, eps, self.cache[index], call)

        run_layers(self.ops, self.layers, residual, eps, attend)
        return self.ops.add_rms_norm(residual, self.norm.weight, eps)


def rope_tables(inverse_frequency: Tensor, num_positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin [P, D/2] in fp32."""
    angles = torch.arange(num_positions, device=device).float()[:, None] * inverse_frequency.to(device)
    return angles.cos(), angles.sin()
