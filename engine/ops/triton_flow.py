"""``FlowOps`` as Triton kernels: modulated norms, the write to the pages, attention over them, grouped convolutions,
and the snake of the vocoder.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.ops.flow import NORM_EPS, FlowCall, FlowOps, GroupedConvWeights
from engine.ops.parallel_compile import launch


@triton.jit(do_not_specialize=["part_stride", "gate_stride"])
def modulate_kernel(
    h_ptr, added_ptr, gate_ptr, scale_ptr, shift_ptr, out_ptr, part_stride, gate_stride, eps,
    ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """h += gate * added, in fp32 and in place; then LayerNorm(h) (1 + scale) + shift. ROWS of h share their parts."""
    row = tl.program_id(0).to(tl.int64)
    cell = row // ROWS
    d = tl.arange(0, BLOCK)
    inside = d < DIM
    h = tl.load(h_ptr + row * DIM + d, mask=inside, other=0.0)
    # Before the sums, which the loads need not wait for.
    scale = tl.load(scale_ptr + cell * part_stride + d, mask=inside, other=0.0)
    shift = tl.load(shift_ptr + cell * part_stride + d, mask=inside, other=0.0)
    if ADD:
        gate = tl.load(gate_ptr + cell * gate_stride + d, mask=inside, other=0.0)
        h += gate * tl.load(added_ptr + row * DIM + d, mask=inside, other=0.0).to(tl.float32)
        tl.store(h_ptr + row * DIM + d, h, mask=inside)
    centred = tl.where(inside, h - tl.sum(h, 0) / DIM, 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, 0) / DIM + eps)
    out = centred * inverse * (1.0 + scale) + shift
    tl.store(out_ptr + row * DIM + d, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def rope_and_write_kernel(
    qkv_ptr, angle_ptr, own_ptr, keys_ptr, values_ptr,
    FRAMES: tl.constexpr, INNER: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One frame: its first head of q is turned in place; k, its first head turned, and v go to the row's line."""
    frame = tl.program_id(0).to(tl.int64)
    row = frame // FRAMES
    at = (tl.load(own_ptr + row) * FRAMES + frame % FRAMES) * INNER
    q_at = qkv_ptr + frame * 3 * INNER
    d = tl.arange(0, BLOCK)
    inside = d < INNER
    key = tl.load(q_at + INNER + d, mask=inside, other=0.0)
    tl.store(keys_ptr + at + d, key, mask=inside & (d >= D))
    tl.store(values_ptr + at + d, tl.load(q_at + 2 * INNER + d, mask=inside, other=0.0), mask=inside)
    j = tl.arange(0, D // 2)
    angle = tl.load(angle_ptr + frame * (D // 2) + j)
    cos, sin = tl.cos(angle), tl.sin(angle)
    even, odd = tl.load(q_at + 2 * j).to(tl.float32), tl.load(q_at + 2 * j + 1).to(tl.float32)
    tl.store(q_at + 2 * j, (even * cos - odd * sin).to(qkv_ptr.dtype.element_ty))
    tl.store(q_at + 2 * j + 1, (odd * cos + even * sin).to(qkv_ptr.dtype.element_ty))
    k_at = q_at + INNER + 2 * j
    even, odd = tl.load(k_at).to(tl.float32), tl.load(k_at + 1).to(tl.float32)
    tl.store(keys_ptr + at + 2 * j, (even * cos - odd * sin).to(keys_ptr.dtype.element_ty))
    tl.store(keys_ptr + at + 2 * j + 1, (odd * cos + even * sin).to(keys_ptr.dtype.element_ty))


@triton.jit(do_not_specialize=["seen_stride"])
def block_attention_kernel(
    qkv_ptr, keys_ptr, values_ptr, seen_ptr, num_seen_ptr, out_ptr, scale, seen_stride,
    FRAMES: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """Some frames of one row and head over all frames that the row sees, a page of them at a time."""
    precision: tl.constexpr = "ieee" if EXACT else "tf32"
    inner: tl.constexpr = HEADS * D
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    frames = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = head * D + tl.arange(0, D)[None]
    in_block = (frames < FRAMES)[:, None]
    q_at = qkv_ptr + (row * FRAMES + frames)[:, None] * (3 * inner) + d
    q = tl.load(q_at, mask=in_block, other=0.0)
    num_seen = tl.load(num_seen_ptr + row)
    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M, D], tl.float32)
    others = tl.arange(0, BLOCK_N)
    for page in range(tl.cdiv(num_seen, FRAMES)):
        inside = (others < FRAMES) & (page * FRAMES + others < num_seen)
        line = tl.load(seen_ptr + row * seen_stride + page)
        at = (line * FRAMES + others)[:, None] * inner + d
        keys = tl.load(keys_ptr + at, mask=inside[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(keys), input_precision=precision) * scale
        scores = tl.where(inside[None], scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        shares = tl.exp(scores - higher[:, None])
        fade = tl.exp(best - higher)
        weight = weight * fade + tl.sum(shares, 1)
        values = tl.load(values_ptr + at, mask=inside[:, None], other=0.0)
        total = total * fade[:, None] + tl.dot(shares.to(values.dtype), values, input_precision=precision)
        best = higher
    out_at = out_ptr + (row * FRAMES + frames)[:, None] * inner + d
    tl.store(out_at, (total / weight[:, None]).to(out_ptr.dtype.element_ty), mask=in_block)


@triton.jit(do_not_specialize=["frames"])
def grouped_conv_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, frames,
    KERNEL: tl.constexpr, SIZE: tl.constexpr, DIM: tl.constexpr, BLOCK_M: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Mish of a causal convolution within one group of channels; x holds KERNEL - 1 frames more than come out."""
    precision: tl.constexpr = "ieee" if EXACT else "tf32"
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.arange(0, SIZE)
    inside = (m < frames)[:, None]
    x_at = x_ptr + (row * (frames + KERNEL - 1) + m)[:, None] * DIM + group * SIZE + c[None]
    weight_at = weight_ptr + group * KERNEL * SIZE * SIZE + c[:, None] * SIZE + c[None]
    total = tl.zeros([BLOCK_M, SIZE], tl.float32)
    for tap in range(KERNEL):
        x = tl.load(x_at + tap * DIM, mask=inside, other=0.0)
        total = tl.dot(x, tl.load(weight_at + tap * SIZE * SIZE), total, input_precision=precision)
    total += tl.load(bias_ptr + group * SIZE + c)[None].to(tl.float32)
    grown = tl.exp(tl.minimum(total, 20.0))
    grown = grown * (grown + 2.0)
    out_at = out_ptr + (row * frames + m)[:, None] * DIM + group * SIZE + c[None]
    tl.store(out_at, total * grown / (grown + 2.0), mask=inside)


@triton.jit(do_not_specialize=["past_stride", "context", "length"])
def snake_join_kernel(
    x_ptr, alpha_ptr, past_ptr, out_ptr, past_stride, context, length,
    MAX_CONTEXT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One channel of one row: ``out`` takes its past and the snake of x, and the past becomes the end of ``out``."""
    row, channel = tl.program_id(0).to(tl.int64), tl.program_id(1)
    line = row * tl.num_programs(1) + channel
    out_at = out_ptr + line * (context + length)
    back = tl.arange(0, MAX_CONTEXT)
    past_at = past_ptr + row * past_stride + channel * context + back
    tl.store(out_at + back, tl.load(past_at, mask=back < context), mask=back < context)
    alpha = tl.load(alpha_ptr + channel)
    for part in range(tl.cdiv(length, BLOCK)):
        t = part * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + line * length + t, mask=t < length, other=0.0)
        wave = tl.sin(x * alpha)
        tl.store(out_at + context + t, x + wave * wave / (alpha + 1e-9), mask=t < length)
    # What other threads of the program wrote is read.
    tl.debug_barrier()
    tl.store(past_at, tl.load(out_at + length + back, mask=back < context), mask=back < context)


# Frames of one program of the attention: of few programs, and of many.
QUERY_TILES = 32, 64
MANY_PROGRAMS = 512
# Registers of a thread of many programs, so that four of them share a multiprocessor.
MANY_REGISTERS = 128
# Of a product on the matrix units.
MIN_TILE = 16
# Samples that a program of the snake works on at once.
SNAKE_TILE = 1024
# Of the past that it holds: that of 11 taps, 5 apart, is 50.
MAX_CONTEXT = 64


class TritonFlowOps(FlowOps):
    def table_sizes(self, max_blocks: int) -> list[int]:
        """One: a row reads the pages that it sees, however wide its table is."""
        return [max_blocks]

    def modulate(
        self, h: Tensor, added: Tensor | None, gate: Tensor | None, scale: Tensor, shift: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        dim, num_rows = h.shape[-1], h.numel() // h.shape[-1]
        assert scale.stride() == shift.stride()
        out = torch.empty_like(h, dtype=dtype)
        launch(modulate_kernel, num_rows)(
            h, h if added is None else added, scale if gate is None else gate, scale, shift, out,
            scale.stride(0), 0 if gate is None else gate.stride(0), NORM_EPS,
            ROWS=num_rows // len(scale), DIM=dim, BLOCK=triton.next_power_of_2(dim), ADD=added is not None, num_warps=8,
        )  # fmt: skip
        return h, out

    def mish_conv(self, conv: GroupedConvWeights, joined: Tensor) -> Tensor:
        groups, kernel, size, num_out = conv.weight.shape
        if size != num_out or size < MIN_TILE or size & (size - 1):
            return super().mish_conv(conv, joined)
        rows, frames = joined.shape[0], joined.shape[1] - kernel + 1
        out = torch.empty(rows, frames, groups * size, dtype=torch.float32, device=joined.device)
        tile = min(triton.next_power_of_2(max(frames, MIN_TILE)), QUERY_TILES[-1])
        launch(grouped_conv_kernel, rows, groups, triton.cdiv(frames, tile))(
            joined, conv.weight, conv.bias, out, frames,
            KERNEL=kernel, SIZE=size, DIM=groups * size, BLOCK_M=tile, EXACT=joined.dtype == torch.float32,
            num_warps=4, num_stages=3,
        )  # fmt: skip
        return out

    def attend(self, qkv: Tensor, keys: Tensor, values: Tensor, call: FlowCall, heads: int) -> Tensor:
        rows, frames, inner = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        size, is_exact = inner // heads, qkv.dtype == torch.float32
        launch(rope_and_write_kernel, rows * frames)(
            qkv, call.angles, call.own, keys, values,
            FRAMES=frames, INNER=inner, D=size, BLOCK=triton.next_power_of_2(inner), num_warps=4,
        )  # fmt: skip
        out = qkv.new_empty(rows, frames, inner)
        width, are_many = triton.next_power_of_2(max(frames, MIN_TILE)), rows * heads >= MANY_PROGRAMS
        tile = min(width, QUERY_TILES[are_many])
        launch(block_attention_kernel, rows, heads, triton.cdiv(frames, tile))(
            qkv, keys, values, call.visible, call.num_visible, out, size**-0.5, call.visible.stride(0),
            FRAMES=frames, HEADS=heads, D=size, BLOCK_M=tile, BLOCK_N=width, EXACT=is_exact,
            num_warps=4, num_stages=2, maxnreg=MANY_REGISTERS if are_many and not is_exact else None,
        )  # fmt: skip
        return out

    def snake_join(self, x: Tensor, alpha: Tensor, past: Tensor) -> Tensor:
        rows, channels, length = x.shape
        context = past.shape[-1]
        if context > MAX_CONTEXT:
            return super().snake_join(x, alpha, past)
        out = x.new_empty(rows, channels, context + length)
        launch(snake_join_kernel, rows, channels)(
            x.contiguous(), alpha, past, out, past.stride(0), context, length,
            MAX_CONTEXT=MAX_CONTEXT, BLOCK=SNAKE_TILE, num_warps=4,
        )  # fmt: skip
        return out
