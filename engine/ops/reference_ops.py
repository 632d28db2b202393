"""Reference operations of the graphs in plain torch: static shapes, no synchronisation, nothing returned to the host.

This is the reference of every fused kernel, what the CPU runs, and what any single kernel falls back to. N rows, H
hidden size, D head size; ``W`` is [out, in]."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.config import EngineConfig
from engine.ops.noise import philox_exponential
from engine.ops.params import (
    ConvParams,
    FirstCodeRules,
    PaddedBufferPlan,
    PagedCall,
    ResidualStream,
    ResidualUnitParams,
    RingCall,
    SamplingTensors,
    SnakeParams,
)
from engine.ops.predictor import PredictorPasses, PredictorWeights
from engine.ops.ras import ControlRules, RasTensors, limit_control, sample_rows
from engine.ops.sampler import apply_repetition_penalty, sample_reference
from engine.weights.quantize import FP8, Weight, as_bits, dense, to_fp8


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [N, heads, D] turned by angles [N, D/2]."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def conv1d(x: Tensor, weight: Tensor, length: int, dilation: int) -> Tensor:
    """x [B, context + T, C], weight [taps, C, out] -> [B, T, out]: one product for each tap."""
    taps = [x[:, j * dilation : j * dilation + length] @ weight[j] for j in range(weight.shape[0])]
    return torch.stack(taps).sum(0)


def snake(x: Tensor, frequency: Tensor, gain: Tensor) -> Tensor:
    return torch.addcmul(x, torch.sin(x * frequency).square(), gain)


class ReferenceOps:
    """Every operation of the graphs; ``TritonOps`` replaces them one by one."""

    # -- products ------------------------------------------------------------------------------------------------

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """RMSNorm as ``layers.transformer.RMSNorm`` has it."""
        if x.dtype == torch.float32:
            return F.rms_norm(x, weight.shape, weight, eps)
        return F.rms_norm(x.float(), weight.shape, None, eps).to(x.dtype) * weight

    def add_rms_norm(self, residual: ResidualStream, weight: Tensor, eps: float) -> Tensor:
        return self.rms_norm(residual.x, weight, eps)

    def flush_residual(self, residual: ResidualStream) -> Tensor:
        """The stream itself, nothing left to be added to it."""
        return residual.x

    def dense(self, weight: Weight, dtype: torch.dtype) -> Tensor:
        return dense(weight, dtype)

    def norm_linear(
        self, residual: ResidualStream, norm_weight: Tensor, eps: float, weight: Weight, bias: Tensor | None = None
    ) -> Tensor:
        x = self.add_rms_norm(residual, norm_weight, eps)
        return F.linear(x, self.dense(weight, x.dtype), bias)

    def norm_swiglu(self, residual: ResidualStream, norm_weight: Tensor, eps: float, weight: Weight) -> Tensor:
        """``weight`` [2 * I, H] holds gate, then up -> [N, I]."""
        x = self.add_rms_norm(residual, norm_weight, eps)
        return self.swiglu(F.linear(x, self.dense(weight, x.dtype)))

    def swiglu(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def add_linear(self, residual: ResidualStream, y: Tensor, weight: Weight) -> None:
        """residual + y W^T, in place."""
        self.flush_residual(residual).addmm_(y, self.dense(weight, y.dtype).t())

    # -- attention -----------------------------------------------------------------------------------------------

    def split_qkv(
        self, qkv: Tensor, norms: tuple[Tensor, Tensor] | None, eps: float, cos: Tensor, sin: Tensor, kv_heads: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """qkv [N, (Hq + 2 Hkv) D] -> q, k, v [N, heads, D], normed and turned; cos and sin [N, D/2]."""
        size = 2 * cos.shape[-1]
        heads = qkv.view(qkv.shape[0], -1, size)
        q, k, v = heads.split((heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads), dim=1)
        if norms:
            q, k = self.rms_norm(q, norms[0], eps), self.rms_norm(k, norms[1], eps)
        return apply_rope(q, cos, sin), apply_rope(k, cos, sin), v

    def attention(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """q [N, T, Hq, D], keys and values [N, R, Hkv, D], mask [N, T, R] -> [N * T, Hq * D]."""
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask[:, None],
            enable_gqa=q.shape[2] != keys.shape[2],
        )  # fmt: skip
        return out.transpose(1, 2).reshape(q.shape[0] * q.shape[1], -1)

    def paged_attention(
        self, qkv: Tensor, norms: tuple[Tensor, Tensor] | None, eps: float, cache: Tensor, call: PagedCall
    ) -> Tensor:
        """One new position a row over its blocks: writes its key and value, then reads all up to its own.

        cache [2, blocks, block_size, Hkv, D], in fp8 or in the dtype of qkv.
        """
        size, kv_heads = cache.shape[2:4]
        place, (cos, sin) = call.positions.long(), call.rope
        q, k, v = self.split_qkv(qkv, norms, eps, cos[place], sin[place], kv_heads)
        blocks = call.tables.long()
        slots = blocks.gather(1, (place // size)[:, None])[:, 0] * size + place % size
        if cache.dtype == FP8:
            k, v = as_bits(to_fp8(k)), as_bits(to_fp8(v))
        keys, values = as_bits(cache)
        keys.flatten(0, 1)[slots] = k
        values.flatten(0, 1)[slots] = v
        past_keys, past_values = (side[blocks].flatten(1, 2).view(cache.dtype).to(q.dtype) for side in (keys, values))
        reach = torch.arange(blocks.shape[1] * size, device=blocks.device)
        mask = (reach[None] <= place[:, None])[:, None]
        return self.attention(q[:, None], past_keys, past_values, mask)

    def predictor_passes(self, weights: PredictorWeights) -> PredictorPasses:
        """Return what runs the passes of a code predictor, with buffers of its own."""
        return PredictorPasses(self, weights)

    def predictor_attention(
        self,
        qkv: Tensor,
        norms: tuple[Tensor, Tensor],
        eps: float,
        rope: tuple[Tensor, Tensor],
        cache: Tensor,
        start: int,
        num_tokens: int,
    ) -> Tensor:
        """qkv [N * T, ..], rows of T new positions from ``start`` on; cache [2, N, K, Hkv, D] of one frame."""
        _, num_rows, _, kv_heads, _ = cache.shape
        end = start + num_tokens
        cos, sin = (table[start:end].repeat(num_rows, 1) for table in rope)
        q, k, v = (
            x.view(num_rows, num_tokens, *x.shape[1:]) for x in self.split_qkv(qkv, norms, eps, cos, sin, kv_heads)
        )
        cache[0, :, start:end] = k
        cache[1, :, start:end] = v
        reach = torch.arange(end, device=qkv.device)
        mask = (reach[None] <= torch.arange(start, end, device=qkv.device)[:, None])[None].expand(num_rows, -1, -1)
        return self.attention(q, cache[0, :, :end], cache[1, :, :end], mask)

    def ring_attention(self, qkv: Tensor, ring: Tensor, call: RingCall) -> Tensor:
        """qkv [B * T, ..]; ring [slots, 2, R, heads, D]: position p lies at p % R, and R >= window + T - 1."""
        slots, first, rope, num_tokens, window = call
        num_rows, size, kv_heads = slots.shape[0], ring.shape[2], ring.shape[3]
        steps = torch.arange(num_tokens, device=qkv.device)
        place = first.long()[:, None] + steps
        angles = (place % rope[0].shape[0]).flatten()
        q, k, v = self.split_qkv(qkv, None, 0.0, rope[0][angles], rope[1][angles], kv_heads)
        rows = slots.long()[:, None]
        ring[rows, 0, place % size] = k.view(num_rows, num_tokens, kv_heads, -1)
        ring[rows, 1, place % size] = v.view(num_rows, num_tokens, kv_heads, -1)
        last = place[:, -1:]
        held = last - (last - torch.arange(size, device=qkv.device)) % size
        mask = (held[:, None] >= 0) & (held[:, None] <= place[..., None]) & (held[:, None] > place[..., None] - window)
        own = ring[slots.long()]
        values = torch.where((held >= 0)[..., None, None], own[:, 1], 0)
        return self.attention(q.view(num_rows, num_tokens, kv_heads, -1), own[:, 0], values, mask)

    # -- sampling ------------------------------------------------------------------------------------------------

    def sample(self, logits: Tensor, settings: SamplingTensors, codebook: int) -> Tensor:
        """logits [N, V], bans already -inf -> ids [N], by ``sampler.sample_reference``."""
        ids = torch.arange(logits.shape[-1], device=logits.device).expand_as(logits)
        noise = philox_exponential(settings.seed, settings.place | codebook, settings.frame, ids)
        temperature, top_k, top_p = (x[:, None] for x in (settings.temperature, settings.top_k, settings.top_p))
        return sample_reference(logits.float(), temperature, top_k, top_p, noise)

    def sample_next(
        self, logits: Tensor, settings: SamplingTensors, codebook: int, table: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return ``sample`` and the sampled rows of ``table`` [V, H]."""
        codes = self.sample(logits, settings, codebook)
        return codes, table[codes]

    def sample_first(self, logits: Tensor, settings: SamplingTensors, rules: FirstCodeRules) -> tuple[Tensor, Tensor]:
        """Code 0: penalty, bans, then as ``sample``; marks the sampled codes as seen.

        Returns ids [N] and whether every logit of a row is finite.
        """
        seen, slots, penalty, forget, banned, num_codes, eos = rules
        logits = logits.float()
        finite = torch.isfinite(logits).all(-1)
        ids = torch.arange(logits.shape[-1], device=logits.device)[None]
        past = seen[slots] & (settings.frame > 0)[:, None] & (ids != forget[:, None])
        logits = apply_repetition_penalty(logits, past, penalty[:, None])
        may = (ids < num_codes) | ((ids == eos) & ~banned[:, None])
        code = self.sample(logits.masked_fill(~may, -torch.inf), settings, 0)
        seen[slots] = past.scatter(1, code[:, None], True)
        return code, finite

    def sample_speech(
        self, logits: Tensor, control: ControlRules, rows: RasTensors, max_top_k: int, out: Tensor
    ) -> None:
        """logits [N, V] in fp32 -> ``out`` [N, 2]: ids, and whether all logits of a row are finite."""
        finite = torch.isfinite(logits).all(-1)
        limited = torch.where(finite[:, None], limit_control(logits, control), 0.0)
        out[:, 0] = sample_rows(limited, rows, max_top_k)
        out[:, 1] = finite

    # -- the codec -----------------------------------------------------------------------------------------------

    def conv(
        self,
        x: Tensor,
        product: ConvParams,
        length: int,
        residual: Tensor | None = None,
        raw: Tensor | None = None,
        act: Tensor | None = None,
        waves: SnakeParams | None = None,
        gelu: bool = False,
    ) -> None:
        """x [B, context + T, C]; everything else [B, T, out] and written in place.

        ``raw`` takes the sum of convolution, bias and residual; ``act`` the snake of it, or its GELU.
        """
        y = conv1d(x.float(), product.weight.float(), length, product.dilation) + product.bias
        if residual is not None:
            y = y + residual
        if raw is not None:
            raw.copy_(y)
        if act is not None:
            act.copy_(F.gelu(y) if gelu else snake(y, *waves) if waves else y)

    def residual_unit(
        self, padded: Tensor, unit: ResidualUnitParams, x: Tensor, out: Tensor, waves: SnakeParams, is_last: bool
    ) -> None:
        """x [B, T, C] += conv(snake(conv(padded [B, context + T, C]))), in place; ``out`` takes the snake of that.

        ``is_last``: nothing reads x again, and it stays as it is.
        """
        hidden = torch.empty_like(x)
        self.conv(padded, unit.wide, x.shape[1], act=hidden, waves=unit.inner)
        raw = None if is_last else x
        self.conv(hidden, unit.narrow, x.shape[1], residual=x, raw=raw, act=out, waves=waves)

    def depthwise_norm(
        self, x: Tensor, weight: Tensor, bias: Tensor, norm: tuple[Tensor, Tensor], eps: float
    ) -> Tensor:
        """x [B, context + T, C], weight [taps, C] -> the convolution of each channel, then LayerNorm: [B, T, C]."""
        length = x.shape[1] - weight.shape[0] + 1
        taps = [x[:, j : j + length].float() * weight[j] for j in range(weight.shape[0])]
        y = torch.stack(taps).sum(0) + bias
        return F.layer_norm(y, y.shape[-1:], norm[0], norm[1], eps).to(x.dtype)

    def output_conv(self, x: Tensor, weight: Tensor, bias: Tensor, pcm: Tensor) -> None:
        """x [B, context + T, C], weight [taps, C] -> pcm [B, T] in [-1, 1], fp32."""
        length = pcm.shape[1]
        taps = [(x[:, j : j + length].float() * weight[j]).sum(-1) for j in range(weight.shape[0])]
        pcm.copy_((torch.stack(taps).sum(0) + bias).clamp(-1.0, 1.0))

    def load_conv_state(self, pads: PaddedBufferPlan, state: Tensor, slots: Tensor, fresh: Tensor) -> None:
        """Fill the head of every padded buffer from ``state`` [slots, F]; rows that are ``fresh`` begin with zeros."""
        own = state[slots].masked_fill(fresh[:, None], 0)
        for pad in pads.layers:
            pad.buffer[:, : pad.context] = own[:, pad.offset : pad.offset + pad.size].view(-1, pad.context, pad.width)

    def store_conv_state(self, pads: PaddedBufferPlan, state: Tensor, slots: Tensor) -> None:
        """Put the tail of every padded buffer back."""
        for pad in pads.layers:
            state[slots, pad.offset : pad.offset + pad.size] = pad.buffer[:, -pad.context :].flatten(1)


def select_ops(config: EngineConfig, device: torch.device) -> ReferenceOps:
    """Fused kernels on CUDA, where Triton is there, unless settings say otherwise."""
    if device.type != "cuda" or not config.triton_kernels:
        return ReferenceOps()
    try:
        from engine.ops.int4_ops import Int4TritonOps
        from engine.ops.quantized_ops import QuantizedTritonOps
        from engine.ops.triton_ops import TritonOps
    except ImportError:
        return ReferenceOps()
    kinds = {"bf16": TritonOps, "fp8": QuantizedTritonOps, "int4": Int4TritonOps}
    return kinds[config.precision](disabled=config.disabled_kernels)
