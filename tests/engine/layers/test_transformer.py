from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.layers.cpu import pack_linears
from engine.layers.transformer import (
    CausalContext,
    RMSNorm,
    Rope,
    Transformer,
    TransformerConfig,
    apply_rope,
    attention,
)

CONFIG = TransformerConfig(
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
)
VARIANTS = {"qwen3": CONFIG, "codec": replace(CONFIG, qk_norm=False, layer_scale=True)}
TOLERANCE = 1e-5


def made(config: TransformerConfig) -> Transformer:
    torch.manual_seed(4)
    stack = Transformer(config).eval().requires_grad_(False)
    for value in stack.parameters():
        value.copy_(torch.randn_like(value) * (0.3 if value.dim() > 1 else 0.1) + (value.dim() == 1))
    return stack


def run(stack: Transformer, x: Tensor, window: int | None = None) -> Tensor:
    return stack(x, torch.arange(x.shape[1])[None].expand(x.shape[0], -1), CausalContext(window))


def by_hand(stack: Transformer, x: Tensor, window: int) -> Tensor:
    """One sequence [T, H], position by position and head by head, from the formulas of spec 2.1."""
    config, positions = stack.config, torch.arange(len(x))
    for layer in stack.layers:
        h = norm_by_hand(x, layer.input_layernorm)
        heads = [projection(h).view(len(x), -1, config.head_dim) for projection in projections(layer)]
        q, k, v = heads
        if config.qk_norm:
            q, k = norm_by_hand(q, layer.self_attn.q_norm), norm_by_hand(k, layer.self_attn.k_norm)
        q, k = turned(q, positions, config.rope_theta), turned(k, positions, config.rope_theta)
        mixed = torch.zeros_like(q)
        for t in range(len(x)):
            first = max(0, t - window + 1)
            for head in range(config.num_attention_heads):
                group = head // (config.num_attention_heads // config.num_key_value_heads)
                scores = k[first : t + 1, group] @ q[t, head] / math.sqrt(config.head_dim)
                mixed[t, head] = scores.softmax(0) @ v[first : t + 1, group]
        x = x + layer.self_attn_layer_scale(layer.self_attn.o_proj(mixed.flatten(1)))
        h = norm_by_hand(x, layer.post_attention_layernorm)
        gated = torch.nn.functional.silu(layer.mlp.gate_proj(h)) * layer.mlp.up_proj(h)
        x = x + layer.mlp_layer_scale(layer.mlp.down_proj(gated))
    return norm_by_hand(x, stack.norm)


def projections(layer: torch.nn.Module) -> list[torch.nn.Module]:
    return [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]


def norm_by_hand(x: Tensor, norm: RMSNorm) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight


def turned(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Pair (i, i + D/2) turned by position * theta^(-2i/D)."""
    half = x.shape[-1] // 2
    angles = positions[:, None, None] * theta ** (-torch.arange(half) / half)
    pairs = torch.view_as_complex(torch.stack((x[..., :half], x[..., half:]), -1)) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.cat((pairs.real, pairs.imag), -1)


@pytest.mark.parametrize("window", [3, 100])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_stack_is_the_formulas(variant: str, window: int) -> None:
    stack, x = made(VARIANTS[variant]), torch.randn(9, 24)
    torch.testing.assert_close(run(stack, x[None], window)[0], by_hand(stack, x, window), atol=TOLERANCE, rtol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_merged_and_packed_products_give_the_same(variant: str) -> None:
    stack, x = made(VARIANTS[variant]), torch.randn(3, 9, 24)
    plain, one = run(stack, x), run(stack, x[:1, :1])
    stack.fuse()
    torch.testing.assert_close(run(stack, x), plain, atol=TOLERANCE, rtol=1e-4)
    pack_linears(stack)
    torch.testing.assert_close(run(stack, x), plain, atol=TOLERANCE, rtol=1e-4)
    torch.testing.assert_close(run(stack, x[:1, :1]), one, atol=TOLERANCE, rtol=1e-4)


def test_attention_shares_key_value_heads_in_groups() -> None:
    q, k, v = torch.randn(2, 5, 4, 8), torch.randn(2, 5, 2, 8), torch.randn(2, 5, 2, 8)
    wide = attention(q, k.repeat_interleave(2, 2), v.repeat_interleave(2, 2), is_causal=True)
    torch.testing.assert_close(attention(q, k, v, is_causal=True), wide, atol=TOLERANCE, rtol=0)


def test_rope_depends_on_the_position_alone() -> None:
    rope, x = Rope(8, 1e6), torch.randn(1, 6, 2, 8)
    positions = torch.tensor([[4000, 4001, 7, 8, 100, 0]])
    whole = apply_rope(x, *rope(positions, torch.float32))
    for i in range(6):
        alone = apply_rope(x[:, i : i + 1], *rope(positions[:, i : i + 1], torch.float32))
        assert torch.equal(alone[:, 0], whole[:, i])


def test_norms_are_computed_in_fp32_whatever_the_dtype() -> None:
    norm = RMSNorm(16, 1e-6).requires_grad_(False)
    norm.weight.normal_(1, 0.1)
    x = torch.randn(4, 16) * 50
    low = norm.bfloat16()(x.bfloat16())
    exact = x.bfloat16().float()
    expected = (exact / exact.square().mean(-1, keepdim=True).sqrt()).bfloat16() * norm.weight
    torch.testing.assert_close(low, expected, atol=0, rtol=1e-2)
    assert low.dtype == torch.bfloat16
