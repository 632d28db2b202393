"""Weights of the code predictor's launch: their order in memory, the warp that copies them, and how they are read.

A program's chunks of weights come in order through a ring of places in shared memory. One warp copies them, a fixed
number of bytes at a time. The others free the places of a product's chunks once they have read them. Weights in fp8
become bf16 in registers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from engine.ops import launched_predictor
from engine.ops.triton_exchange import PACKED_TILE, SUMS, TILE, join, sum_parts, unpack

# A chunk of weights: outputs, and elements of two inputs, which are words in bf16.
OUTPUTS, WIDTH = gl.constexpr(8), gl.constexpr(512)
# Chunks of a layer: 4 for queries, keys and values, 2 for the output, 6 for gate and up, 3 for down.
CHUNKS = gl.constexpr(15)
# Chunks in the ring in bf16 and in fp8, and bytes that are copied at once. The barriers of free places count
# layers modulo two, so the ring has at most the chunks of a layer.
SLOTS, FP8_SLOTS, AHEAD_BYTES = gl.constexpr(12), gl.constexpr(15), gl.constexpr(32 * 1024)
# Scales of a program's outputs of a layer, eight for each group of chunks; room for those, and for layers.
NUM_SCALES, SCALES, MAX_LAYERS = gl.constexpr(96), gl.constexpr(128), gl.constexpr(launched_predictor.MAX_LAYERS)
_LINE = gl.constexpr(gl.BlockedLayout([1], [32], [8], [0]))
_PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


# -- layout in memory ------------------------------------------------------------------------------------------------


def describe_weight(weight: Tensor, dtype: torch.dtype) -> TensorDescriptor:
    """Describe [out, in] as elements of ``dtype`` in chunks as the kernel copies them.

    Elements of bf16 are int32, two inputs. With packed fp8 all are int16: two inputs, or one of a head in bf16.
    """
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8 * dtype.itemsize, rank=2)
    return TensorDescriptor.from_tensor(weight.view(dtype), [OUTPUTS.value, WIDTH.value], layout)


def pack_fp8(weight: Tensor) -> Tensor:
    """Reorder e4m3 [out, in] within each 1,024 inputs: the 32 bytes of a thread lie together, in ``unpack``'s order."""
    # [out, 1,024 inputs, half, warp, thread of four, pair of words, word, input]
    parts = weight.view(torch.uint8).unflatten(1, (-1, 2, 8, 4, 4, 2, 2))
    return parts.permute(0, 1, 3, 4, 2, 5, 7, 6).flip(-1).flatten(1).view(torch.int16)


def join_scales(scales: Sequence[Sequence[Tensor]]) -> Tensor:
    """Scales [program, layer, output] of the layers' products, in the order of the program's chunks."""
    joined = scales[0][0].new_zeros(launched_predictor.NUM_PROGRAMS, MAX_LAYERS.value, SCALES.value)
    for layer, (qkv, out, gate_up, down) in enumerate(scales):
        # [head, half, four programs of it, channel]; [gate or up, third, program, channel]
        qkv = qkv.unflatten(0, (-1, 2, 4, 16)).transpose(1, 2)
        gate_up = gate_up.unflatten(0, (2, 3, -1, OUTPUTS.value)).permute(2, 1, 0, 3)
        parts = [part.reshape(len(joined), -1) for part in (qkv, out, gate_up, down)]
        joined[:, layer, : NUM_SCALES.value] = torch.cat(parts, 1)
    return joined


# -- ring -----------------------------------------------------------------------------------------------------------


@gluon.constexpr_function
def product_of(chunk):
    """The product of a layer that a chunk belongs to."""
    return 0 if chunk < 4 else 1 if chunk < 6 else 2 if chunk < 12 else 3


@gluon.jit
def new_barriers(NUM: gl.constexpr):
    bars = gl.allocate_shared_memory(gl.int64, [NUM, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(NUM):
        mbarrier.init(bars.index(i), count=1)
    return bars


@gluon.jit
def wait_for_chunks(full, n, NUM: gl.constexpr):
    slots: gl.constexpr = full.shape[0]
    for j in gl.static_range(NUM):
        mbarrier.wait(full.index((n + j) % slots), (n + j) // slots & 1)


@gluon.jit
def load_chunk(ring, n):
    slots: gl.constexpr = ring.shape[0]
    layout: gl.constexpr = PACKED_TILE if ring.dtype == gl.int16 else TILE
    return ring.index(n % slots).load(layout)


@gluon.jit
def words_of(chunk):
    """Words of a chunk of a layer, which are bf16 or packed fp8."""
    return unpack(chunk) if chunk.dtype == gl.int16 else chunk


@gluon.jit
def read_chunk(ring, n):
    return words_of(load_chunk(ring, n))


@gluon.jit
def read_head(ring, n, INDEX: gl.constexpr):
    """Words of eight outputs of a head, whose chunks begin at ``n``."""
    if ring.dtype == gl.int16:
        words = join(load_chunk(ring, n + 2 * INDEX), load_chunk(ring, n + 2 * INDEX + 1))
    else:
        words = load_chunk(ring, n + INDEX)
    return words


@gluon.jit
def free_places(free, PRODUCT: gl.constexpr):
    """Let a product's chunks be replaced once all threads have read them."""
    # Barriers of threads do not order copies after loads that have been issued, or a copy may overtake one.
    fence_async_shared()
    mbarrier.arrive(free.index(PRODUCT), count=1)


@gluon.jit
def copy_chunk(weight, row, column, ring, full, free, layer, CHUNK: gl.constexpr):
    """Start to copy a chunk once its place is free and all earlier ones but AHEAD_BYTES have come."""
    slots: gl.constexpr = ring.shape[0]
    num_bytes: gl.constexpr = OUTPUTS * WIDTH * ring.dtype.primitive_bitwidth // 8
    ahead: gl.constexpr = AHEAD_BYTES // num_bytes
    n = layer * CHUNKS + CHUNK
    slot = n % slots
    layers_back: gl.constexpr = 0 if slots <= CHUNK else 1
    last = layer - layers_back
    mbarrier.wait(free.index(product_of(CHUNK - slots + layers_back * CHUNKS)), last & 1, pred=last >= 0)
    earlier = gl.maximum(n - ahead, 0)
    mbarrier.wait(full.index(earlier % slots), earlier // slots & 1, pred=n >= ahead)
    mbarrier.expect(full.index(slot), num_bytes)
    tma.async_copy_global_to_shared(weight, [row, column], full.index(slot), ring.index(slot))


@gluon.jit
def copy_weights(
    weights, ring, full, free, layers, SIZE: gl.constexpr, HEADS: gl.constexpr, KV: gl.constexpr, D: gl.constexpr
):
    """Copy the program's chunks of all layers and of the head in order."""
    half: gl.constexpr = D // 2
    qkv, out, gate_up, down, head = weights
    pid = gl.program_id(0)
    # Of 16 words of queries, keys and values: a word has a channel and its partner half a head on.
    first_row = pid * 16 // half * D + pid * 16 % half
    for layer in range(layers):
        for j in gl.static_range(CHUNKS):
            if j < 4:
                row = layer * ((HEADS + 2 * KV) * D) + first_row + j // 2 * half + j % 2 * 8
                copy_chunk(qkv, row, 0, ring, full, free, layer, j)
            elif j < 6:
                copy_chunk(out, layer * SIZE + pid * 8, (j - 4) * WIDTH, ring, full, free, layer, j)
            elif j < 12:
                row = layer * 6 * SIZE + (j - 6) % 2 * 3 * SIZE + (j - 6) // 2 * SIZE + pid * 8
                copy_chunk(gate_up, row, 0, ring, full, free, layer, j)
            else:
                copy_chunk(down, layer * SIZE + pid * 8, (j - 12) * WIDTH, ring, full, free, layer, j)
    # As int16, eight outputs of a head are two chunks.
    parts: gl.constexpr = 32 // ring.dtype.primitive_bitwidth
    for j in gl.static_range(2 * parts):
        copy_chunk(head, pid * 16 + j // parts * 8, j % parts * WIDTH, ring, full, free, layers, j)


# -- scales of fp8 ---------------------------------------------------------------------------------------------------


@gluon.jit
def copy_scales(scales_ptr, layers):
    """Start to copy the program's scales of all layers: loads within a layer would delay those of words."""
    scales = gl.allocate_shared_memory(gl.float32, [MAX_LAYERS, SCALES], _PLAIN)
    scales_ptr += gl.program_id(0) * (MAX_LAYERS * SCALES) + gl.arange(0, SCALES, _LINE)
    for layer in range(layers):
        async_copy.async_copy_global_to_shared(scales.index(layer), scales_ptr + layer * SCALES)
    async_copy.commit_group()
    return scales


@gluon.jit
def sum_scaled(parts, scales, GROUP: gl.constexpr):
    """Sum [output, row] of what all warps have stored, times the scales of a group of outputs if there are any."""
    sums = sum_parts(parts)
    if scales is not None:
        sums *= gl.expand_dims(scales.slice(GROUP * 8, 8).load(gl.SliceLayout(1, gl.SliceLayout(2, SUMS))), 1)
    return sums
