"""The Qwen3 decoder stack, once, for the talker, the code predictor and the codec's transformer.

Layers hold weights only. Keys and values live in the ``AttentionContext`` that the caller hands in, so the same
module serves training (causal over one sequence), a dense cache and paged blocks. Shapes: B rows, T positions,
H hidden size, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    qk_norm: bool = True
    qkv_bias: bool = False
    # Multiply each branch by a learned vector before adding it (the codec's transformer).
    layer_scale: bool = False


class AttentionContext(Protocol):
    """Source of keys and values of earlier positions."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, T, Hq, D], k and v [B, T, Hkv, D], after norm and RoPE -> [B, T, Hq, D]."""
        ...


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """Grouped-query attention in the [B, T, heads, D] layout; ``mask`` broadcasts to [B, 1, Tq, Tk]."""
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=is_causal,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return out.transpose(1, 2)


class CausalContext:
    """One whole sequence at once, nothing remembered: the offline form and the reference of every cache."""

    def __init__(self, window: int | None = None) -> None:
        self.window = window

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length = q.shape[1]
        if self.window is None or length <= self.window:
            return attention(q, k, v, is_causal=True)
        distance = torch.arange(length, device=q.device)[:, None] - torch.arange(length, device=q.device)[None]
        return attention(q, k, v, mask=((distance >= 0) & (distance < self.window))[None, None])


class RMSNorm(nn.Module):
    """Normalised in fp32, cast back, then multiplied by the weight, as in the official code."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return rms_norm(x, self.eps) * self.weight


def rms_norm(x: Tensor, eps: float) -> Tensor:
    """Over the last dimension, in fp32, cast back."""
    return F.rms_norm(x.float(), x.shape[-1:], None, eps).to(x.dtype)


class LayerScale(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((size,), 0.01))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Rope(nn.Module):
    """Rotary tables in fp32; pair i is (i, i + D/2)."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.head_dim, self.theta = head_dim, theta
        self.reset(None)

    def reset(self, device: torch.device | None) -> None:
        """Derive the frequencies, which are in no file; kept out of the state and in fp32 whatever the dtype."""
        exponent = torch.arange(0, self.head_dim, 2, dtype=torch.float64, device=device) / self.head_dim
        self.inverse_frequency = (self.theta**-exponent).float()
        self.both_ways = torch.cat((-self.inverse_frequency, self.inverse_frequency))

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """positions [B, T] -> what ``rotate`` takes, [B, T, 1, D]: cosines, and sines (the first half's negated)."""
        angles = positions[..., None, None].float() * self.both_ways.to(positions.device)
        return angles.cos().to(dtype), angles.sin().to(dtype)


def reset_ropes(module: nn.Module, device: torch.device) -> None:
    """Derive the frequencies of every ``Rope`` below ``module`` once its weights have been loaded."""
    for child in module.modules():
        if isinstance(child, Rope):
            child.reset(device)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, T, heads, D] turned by the angles of its positions."""
    first, second = x.chunk(2, dim=-1)
    return torch.addcmul(x * cos, torch.cat((second, first), dim=-1), sin)


def fuse_linears(*projections: nn.Linear) -> nn.Linear:
    """One product that gives the outputs of several, side by side."""
    weight = torch.cat([projection.weight for projection in projections]).detach()
    biases = [projection.bias for projection in projections if projection.bias is not None]
    one = nn.Linear(weight.shape[1], weight.shape[0], bias=bool(biases), device="meta")
    one.weight = nn.Parameter(weight, requires_grad=False)
    if biases:
        one.bias = nn.Parameter(torch.cat(biases).detach(), requires_grad=False)
    return one


class Attention(nn.Module):
    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        self.num_heads = (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
        query, key_value = (n * config.head_dim for n in self.num_heads[:2])
        self.q_proj = nn.Linear(config.hidden_size, query, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, key_value, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, key_value, bias=config.qkv_bias)
        self.o_proj = nn.Linear(query, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else nn.Identity()
        self.qkv_proj: nn.Module | None = None
        self.register_buffer("qk_weight", None, persistent=False)

    def fuse(self) -> None:
        """One product in place of three; one norm and one rotation over the heads of queries and keys together."""
        self.qkv_proj = fuse_linears(self.q_proj, self.k_proj, self.v_proj)
        del self.q_proj, self.k_proj, self.v_proj
        if isinstance(self.q_norm, RMSNorm):
            norms = [
                norm.weight.expand(n, -1) for norm, n in zip((self.q_norm, self.k_norm), self.num_heads, strict=False)
            ]
            self.qk_weight = torch.cat(norms).detach()

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, T, heads, D], normed and turned."""
        shape = (*x.shape[:-1], -1, self.head_dim)
        if self.qkv_proj is None:
            q, k, v = (projection(x).view(shape) for projection in (self.q_proj, self.k_proj, self.v_proj))
            return apply_rope(self.q_norm(q), cos, sin), apply_rope(self.k_norm(k), cos, sin), v
        qk, v = self.qkv_proj(x).view(shape).tensor_split((-self.num_heads[-1],), dim=-2)
        if self.qk_weight is not None:
            qk = rms_norm(qk, self.q_norm.eps) * self.qk_weight
        q, k = apply_rope(qk, cos, sin).tensor_split(self.num_heads[:1], dim=-2)
        return q, k, v

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, context: AttentionContext) -> Tensor:
        return self.o_proj(context.attend(self.layer, *self.project(x, cos, sin)).flatten(-2))


class SwiGLU(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.gate_up_proj: nn.Module | None = None

    def fuse(self) -> None:
        """One product in place of two."""
        self.gate_up_proj = fuse_linears(self.gate_proj, self.up_proj)
        del self.gate_proj, self.up_proj

    def forward(self, x: Tensor) -> Tensor:
        if self.gate_up_proj is not None:
            gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        else:
            gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(F.silu(gate) * up)


class DecoderLayer(nn.Module):
    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = SwiGLU(config)
        if config.layer_scale:
            self.self_attn_layer_scale = LayerScale(config.hidden_size)
            self.mlp_layer_scale = LayerScale(config.hidden_size)
        else:
            self.self_attn_layer_scale = self.mlp_layer_scale = nn.Identity()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, context: AttentionContext) -> Tensor:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), cos, sin, context))
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))


class Transformer(nn.Module):
    """``num_hidden_layers`` decoder layers and the final norm."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rope = Rope(config.head_dim, config.rope_theta)

    def fuse(self) -> None:
        """Fuse the layers that are not fused yet."""
        for layer in self.layers:
            if layer.self_attn.qkv_proj is None:
                layer.self_attn.fuse()
                layer.mlp.fuse()

    def forward(self, x: Tensor, positions: Tensor, context: AttentionContext) -> Tensor:
        """x [B, T, H], positions [B, T] -> normed hidden states [B, T, H]."""
        cos, sin = self.rope(positions, x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin, context)
        return self.norm(x)
