"""One position of the code predictor for at most 8 rows in one launch, in Gluon: each program has a multiprocessor.

Or two for at most 4 rows: the second attends to the first by words, not by the cache.

Vectors go from program to program as words (``triton_exchange``). Each launch empties the words of the next one, and
two sets take turns. There are copies, so that few multiprocessors load the same line of the L2 cache.

One warp copies weights into a ring in shared memory, 32 KiB at a time, and eight warps multiply. Loads of a
multiprocessor complete in order, so loads of weights to registers, or many copies at once, would delay those of words.
Weights of layers may be in fp8: they become bf16 in registers before a thread waits for the words that they multiply.

Measured in docs/experiments/gpu-kernels.md: "Predictor positions in one launch, in the engine", "Predictor launches".
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
from engine.ops.triton_exchange import (
    EMPTY,
    PACKED_TILE,
    SPREAD,
    SUMS,
    TILE,
    bits,
    dot,
    high,
    join,
    low,
    multiply_pairs,
    new_parts,
    pair_up,
    poll,
    poll_head,
    poll_head_and_earlier,
    poll_three,
    poll_two,
    publish,
    spread,
    squares,
    store_parts,
    sum_parts,
    two_dots,
    unpack,
)

# Columns of the table of addresses.
NORM, Q_NORM, K_NORM, AFTER, COLUMNS = (gl.constexpr(i) for i in range(5))
# Copies of each vector; queries, keys and values have one.
COPIES = gl.constexpr(4)
MAX_ROWS = gl.constexpr(launched_predictor.MAX_ROWS)
# A chunk of weights: outputs, and elements of two inputs, which are words in bf16.
OUTPUTS, WIDTH = gl.constexpr(8), gl.constexpr(512)
# Chunks of a layer: 4 for queries, keys and values, 2 for the output, 6 for gate and up, 3 for down.
CHUNKS = gl.constexpr(15)
# Chunks in the ring in bf16 and in fp8, and bytes that are copied at once. The barriers of free places count
# layers modulo two, so the ring has at most the chunks of a layer.
SLOTS, FP8_SLOTS, AHEAD_BYTES = gl.constexpr(12), gl.constexpr(15), gl.constexpr(32 * 1024)
# Scales of a program's outputs of a layer, eight for each group of chunks; room for those, and for layers.
NUM_SCALES, SCALES, MAX_LAYERS = gl.constexpr(96), gl.constexpr(128), gl.constexpr(launched_predictor.MAX_LAYERS)
# Words of a piece for all rows: half of an attention output, a residual stream, a third of the inputs of down.
PIECE = gl.constexpr(8 * 512)
PIECES = gl.constexpr(7)
PLAIN_1 = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
PLAIN_2 = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
# Attention: [position, pair of channels]; two positions a warp.
ATTENTION = gl.constexpr(gl.BlockedLayout([2, 2], [1, 32], [8, 1], [1, 0]))
# [warp, channel]: all warps' parts are in a thread, and four threads have the same.
MERGE = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [1, 0], [2, 0], [4, 0]],
        [[0, 0], [0, 0], [0, 2], [0, 4], [0, 8]],
        [[0, 16], [0, 32], [0, 64]],
        [],
        [8, 128],
    )
)
LINE = gl.constexpr(gl.BlockedLayout([1], [32], [8], [0]))
# [channel, copy]
ATTENDED = gl.constexpr(
    gl.DistributedLinearLayout(
        [[1, 0]], [[0, 1], [0, 2], [2, 0], [4, 0], [8, 0]], [[16, 0], [32, 0], [64, 0]], [], [128, 4]
    )
)
STORE_PAIR = gl.constexpr("st.relaxed.gpu.global.b32 [$2], $4; mov.b32 $0, 0; mov.b32 $1, 0;")


# -- weights ---------------------------------------------------------------------------------------------------------


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


# -- attention -------------------------------------------------------------------------------------------------------


@gluon.jit
def address(table_ptr, layer, column, dtype: gl.constexpr):
    return gl.multiple_of(gl.load(table_ptr + layer * COLUMNS + column).to(gl.pointer_type(dtype)), 16)


@gluon.jit
def norm_and_rotate(words, norm_low, norm_high, cos, sin, eps, D: gl.constexpr):
    """The two halves of a head from its words [D / 2]."""
    a, b = low(words), high(words)
    inverse = gl.rsqrt(gl.sum(a * a + b * b, 0) / D + eps)
    a, b = a * inverse * norm_low.to(gl.float32), b * inverse * norm_high.to(gl.float32)
    return a * cos - b * sin, b * cos + a * sin


@gluon.jit
def insert(cached, k, v, norm_low, norm_high, cos, sin, is_new, eps, D: gl.constexpr):
    """Keys and values [position, channel] of two halves with those of one position, from its words."""
    keys_low, keys_high, values_low, values_high = cached
    key_low, key_high = norm_and_rotate(k, norm_low, norm_high, cos, sin, eps, D)
    key_low, key_high = gl.expand_dims(key_low.to(gl.bfloat16), 0), gl.expand_dims(key_high.to(gl.bfloat16), 0)
    value_low, value_high = gl.expand_dims(low(v).to(gl.bfloat16), 0), gl.expand_dims(high(v).to(gl.bfloat16), 0)
    keys_low, keys_high = gl.where(is_new, key_low, keys_low), gl.where(is_new, key_high, keys_high)
    return keys_low, keys_high, gl.where(is_new, value_low, values_low), gl.where(is_new, value_high, values_high)


@gluon.jit
def attend(
    qkv_words, earlier_words, out_words, other, failed_ptr, q_norm_ptr, k_norm_ptr, cos_ptr, sin_ptr, cache_ptr, head,
    eps, scale, start, place, rows, softmax,
    HEADS: gl.constexpr, KV: gl.constexpr, D: gl.constexpr, LENGTH: gl.constexpr,
):  # fmt: skip
    """Attend with one query head of one row at position ``place``; store its copies, its key and its value.

    Keys of positions before ``start`` lie at ``cache_ptr`` [LENGTH, KV, D]. In a launch for two positions those of
    ``start`` come from ``earlier_words``, which are ``qkv_words`` where ``place`` is ``start``.
    """
    group: gl.constexpr = HEADS // KV
    half: gl.constexpr = D // 2
    max_scores, exp_sums, values = softmax
    to_values = rows * LENGTH * KV * D
    lane = gl.arange(0, half, gl.SliceLayout(0, ATTENTION))
    position = gl.arange(0, LENGTH, gl.SliceLayout(1, ATTENTION))
    kv = head // group
    past = cache_ptr + kv * D + gl.expand_dims(position, 1) * (KV * D) + gl.expand_dims(lane, 0)
    is_past = gl.expand_dims(position < start, 1) & gl.expand_dims(lane >= 0, 0)
    keys_low = gl.load(past, mask=is_past, other=0.0)
    keys_high = gl.load(past + half, mask=is_past, other=0.0)
    values_low = gl.load(past + to_values, mask=is_past, other=0.0)
    values_high = gl.load(past + to_values + half, mask=is_past, other=0.0)
    cos, sin = gl.load(cos_ptr + place * half + lane), gl.load(sin_ptr + place * half + lane)
    if earlier_words is not None:
        earlier_cos, earlier_sin = gl.load(cos_ptr + start * half + lane), gl.load(sin_ptr + start * half + lane)
    q_norm_low, q_norm_high = gl.load(q_norm_ptr + lane), gl.load(q_norm_ptr + half + lane)
    k_norm_low, k_norm_high = gl.load(k_norm_ptr + lane), gl.load(k_norm_ptr + half + lane)
    q_at = qkv_words + head * half + lane
    k_at = qkv_words + (HEADS + kv) * half + lane
    if earlier_words is None:
        q, k, v = poll_head(q_at, k_at, k_at + KV * half, failed_ptr)
    else:
        at = earlier_words + (HEADS + kv) * half + lane
        q, k, v, earlier_k, earlier_v = poll_head_and_earlier(
            q_at, k_at, k_at + KV * half, at, at + KV * half, failed_ptr
        )
    q_low, q_high = norm_and_rotate(q, q_norm_low, q_norm_high, cos, sin, eps, D)
    q_low, q_high = q_low * scale, q_high * scale
    cached = keys_low, keys_high, values_low, values_high
    if earlier_words is not None:
        is_earlier = gl.expand_dims(position == start, 1)
        cached = insert(
            cached, earlier_k, earlier_v, k_norm_low, k_norm_high, earlier_cos, earlier_sin, is_earlier, eps, D
        )
    is_new = gl.expand_dims(position == place, 1)
    cached = insert(cached, k, v, k_norm_low, k_norm_high, cos, sin, is_new, eps, D)
    keys_low, keys_high, values_low, values_high = cached
    scores = gl.sum(
        keys_low.to(gl.float32) * gl.expand_dims(q_low, 0) + keys_high.to(gl.float32) * gl.expand_dims(q_high, 0), 1
    )
    scores = gl.reshape(gl.where(position <= place, scores, -1e30), [8, 2])
    max_score = gl.max(scores, 1)
    exp_scores = gl.exp(scores - gl.expand_dims(max_score, 1))
    spread_scores = gl.expand_dims(gl.convert_layout(gl.reshape(exp_scores, [LENGTH]), gl.SliceLayout(1, ATTENTION)), 1)
    max_scores.store(max_score)
    exp_sums.store(gl.sum(exp_scores, 1))
    values.slice(0, half, 1).store(gl.sum(gl.reshape(values_low.to(gl.float32) * spread_scores, [8, 2, half]), 1))
    values.slice(half, half, 1).store(gl.sum(gl.reshape(values_high.to(gl.float32) * spread_scores, [8, 2, half]), 1))
    all_max_scores, all_exp_sums = max_scores.load(gl.SliceLayout(1, MERGE)), exp_sums.load(gl.SliceLayout(1, MERGE))
    rescale = gl.exp(all_max_scores - gl.max(all_max_scores, 0))
    total = gl.sum(values.load(MERGE) * gl.expand_dims(rescale, 1), 0) / gl.sum(all_exp_sums * rescale, 0)
    store_attended(total, out_words, other, D)
    if head % group == 0:
        here = is_new & gl.expand_dims(lane >= 0, 0)
        gl.store(past, keys_low, mask=here)
        gl.store(past + half, keys_high, mask=here)
        gl.store(past + to_values, values_low, mask=here)
        gl.store(past + to_values + half, values_high, mask=here)


@gluon.jit
def store_attended(total, out_words, other, D: gl.constexpr):
    """Publish a head's values [D] in all copies, and empty their places in the other set."""
    out = gl.convert_layout(total.to(gl.bfloat16), gl.SliceLayout(1, ATTENDED), assert_trivial=True)
    channel = gl.expand_dims(gl.arange(0, D, gl.SliceLayout(1, ATTENDED)), 1)
    copy = gl.expand_dims(gl.arange(0, 4, gl.SliceLayout(0, ATTENDED)), 0)
    at = out_words.to(gl.pointer_type(gl.bfloat16)) + channel + copy * (2 * PIECES * PIECE)
    out = gl.expand_dims(out, 1).to(gl.int16, bitcast=True) + gl.full([D, 4], 0, gl.int16, ATTENDED)
    empty = gl.full([D, 4], -1, gl.int16, ATTENDED)
    gl.inline_asm_elementwise(STORE_PAIR, "=r,=r,l,l,r", [at.to(gl.int64), out], dtype=gl.int32, is_pure=False, pack=2)
    gl.inline_asm_elementwise(
        STORE_PAIR, "=r,=r,l,l,r", [(at + 2 * other).to(gl.int64), empty], dtype=gl.int32, is_pure=False, pack=2
    )


# -- scales of fp8 ---------------------------------------------------------------------------------------------------


@gluon.jit
def copy_scales(scales_ptr, layers):
    """Start to copy the program's scales of all layers: loads within a layer would delay those of words."""
    scales = gl.allocate_shared_memory(gl.float32, [MAX_LAYERS, SCALES], PLAIN_1)
    scales_ptr += gl.program_id(0) * (MAX_LAYERS * SCALES) + gl.arange(0, SCALES, LINE)
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


# -- the pass --------------------------------------------------------------------------------------------------------


@gluon.jit
def multiply_qkv(chunks, scales, n, at, norm, part, failed_ptr, eps, SIZE: gl.constexpr):
    """Sums [output, row] of four chunks: two of first channels, then their partners half a head on."""
    ring, full, free = chunks
    x = gl.full([8, WIDTH], 0, gl.int32, TILE)
    if n == 0:
        # The pass's inputs are there, and a word of them may have the value of EMPTY.
        x = gl.load(at)
    wait_for_chunks(full, n, 4)
    w0, w1, w2, w3 = read_chunk(ring, n), read_chunk(ring, n + 1), read_chunk(ring, n + 2), read_chunk(ring, n + 3)
    free_places(free, 0)
    if n > 0:
        x = poll(at, failed_ptr)
    y = multiply_pairs(x, norm)
    y0, y1 = two_dots(w0, w1, y)
    y2, y3 = two_dots(w2, w3, y)
    store_parts(part[0], y0)
    store_parts(part[1], y1)
    store_parts(part[2], y2)
    store_parts(part[3], y3)
    store_parts(part[4], squares(x))
    inverse = gl.rsqrt(sum_parts(part[4]) / SIZE + eps)
    y0, y1 = sum_scaled(part[0], scales, 0) * inverse, sum_scaled(part[1], scales, 1) * inverse
    return y0, y1, sum_scaled(part[2], scales, 2) * inverse, sum_scaled(part[3], scales, 3) * inverse


@gluon.jit
def multiply_out(chunks, scales, n, at, own_part, failed_ptr):
    ring, full, free = chunks
    wait_for_chunks(full, n, 2)
    w0, w1 = read_chunk(ring, n), read_chunk(ring, n + 1)
    free_places(free, 1)
    x, y = poll_two(at, at + PIECE, failed_ptr)
    store_parts(own_part, dot(w0, x) + dot(w1, y))
    return sum_scaled(own_part, scales, 4)


@gluon.jit
def multiply_gate_up(chunks, scales, n, at, norm, part, failed_ptr, eps, SIZE: gl.constexpr):
    """SwiGLU of three times eight outputs: each of [output, row]."""
    ring, full, free = chunks
    wait_for_chunks(full, n, 6)
    w0, w1, w2, w3 = read_chunk(ring, n), read_chunk(ring, n + 1), read_chunk(ring, n + 2), read_chunk(ring, n + 3)
    if ring.dtype == gl.int16:
        w4, w5 = load_chunk(ring, n + 4), load_chunk(ring, n + 5)
        free_places(free, 2)
    x = poll(at, failed_ptr)
    y = multiply_pairs(x, norm)
    y0, z0 = two_dots(w0, w1, y)
    y1, z1 = two_dots(w2, w3, y)
    # Words of six chunks at once would not fit into the registers.
    if ring.dtype != gl.int16:
        w4, w5 = load_chunk(ring, n + 4), load_chunk(ring, n + 5)
        free_places(free, 2)
    y2, z2 = two_dots(words_of(w4), words_of(w5), y)
    store_parts(part[0], y0)
    store_parts(part[1], y1)
    store_parts(part[2], y2)
    store_parts(part[3], z0)
    store_parts(part[4], z1)
    store_parts(part[5], z2)
    store_parts(part[6], squares(x))
    inverse = gl.rsqrt(sum_parts(part[6]) / SIZE + eps)
    y0 = swiglu(sum_scaled(part[0], scales, 5) * inverse, sum_scaled(part[3], scales, 6) * inverse)
    y1 = swiglu(sum_scaled(part[1], scales, 7) * inverse, sum_scaled(part[4], scales, 8) * inverse)
    return y0, y1, swiglu(sum_scaled(part[2], scales, 9) * inverse, sum_scaled(part[5], scales, 10) * inverse)


@gluon.jit
def swiglu(gate, up):
    return gate / (1 + gl.exp(-gate)) * up


@gluon.jit
def multiply_down(chunks, scales, n, at, own_part, failed_ptr):
    ring, full, free = chunks
    wait_for_chunks(full, n, 3)
    w0, w1, w2 = read_chunk(ring, n), read_chunk(ring, n + 1), read_chunk(ring, n + 2)
    free_places(free, 3)
    x, y, z = poll_three(at, at + PIECE, at + 2 * PIECE, failed_ptr)
    store_parts(own_part, dot(w0, x) + dot(w1, y) + dot(w2, z))
    return sum_scaled(own_part, scales, 11)


@gluon.jit
def multiply_head(chunks, n, at, norm, part, failed_ptr, eps, SIZE: gl.constexpr):
    """Logits [output, row] of the last chunks, which are bf16."""
    ring, full, _ = chunks
    wait_for_chunks(full, n, 2 * (32 // ring.dtype.primitive_bitwidth))
    w0, w1 = read_head(ring, n, 0), read_head(ring, n, 1)
    x = poll(at, failed_ptr)
    y0, y1 = two_dots(w0, w1, multiply_pairs(x, norm))
    store_parts(part[0], y0)
    store_parts(part[1], y1)
    store_parts(part[2], squares(x))
    inverse = gl.rsqrt(sum_parts(part[2]) / SIZE + eps)
    return sum_parts(part[0]) * inverse, sum_parts(part[1]) * inverse


@gluon.jit
def input_offsets(lines):
    """Offsets [line, word] of a norm's words and of a vector's; a thread without a line repeats the first."""
    word = gl.expand_dims(gl.arange(0, WIDTH, gl.SliceLayout(0, TILE)), 0)
    line = gl.expand_dims(gl.arange(0, 8, gl.SliceLayout(1, TILE)), 1)
    line = gl.where(line < lines, line, 0)
    return word + line * 0, word + line * WIDTH


@gluon.jit
def inputs_at(x_ptr, second_ptr, offset, num_first):
    """Where inputs lie at an offset: from ``num_first`` on they are those of the second position, if there is one."""
    at = x_ptr + offset
    if second_ptr is not None:
        at = gl.where(offset < num_first, at, second_ptr + (offset - num_first))
    return at


@gluon.jit
def output_places():
    """Output, line and copy of [output, line, copy]."""
    output = gl.arange(0, 8, gl.SliceLayout(1, gl.SliceLayout(2, SPREAD)))
    line = gl.arange(0, 8, gl.SliceLayout(0, gl.SliceLayout(2, SPREAD)))
    copy = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, SPREAD)))
    output, line = gl.expand_dims(gl.expand_dims(output, 1), 2), gl.expand_dims(gl.expand_dims(line, 0), 2)
    return output, line, gl.expand_dims(gl.expand_dims(copy, 0), 1)


@gluon.jit
def compute(
    chunks, scales_ptr, x_ptr, second_ptr, table_ptr, last_norm_ptr, cos_ptr, sin_ptr, cache_ptr, logits_ptr, words_ptr,
    failed_ptr, eps, scale, start, rows, layers, SIZE: gl.constexpr, HEADS: gl.constexpr, KV: gl.constexpr,
    D: gl.constexpr, VOCAB: gl.constexpr, LENGTH: gl.constexpr,
):  # fmt: skip
    """Compute the program's outputs of each product. What it computes for one row does not depend on the others.

    A line is a row at one position. Those of a second position follow those of the first.
    """
    half: gl.constexpr = D // 2
    qkv_words: gl.constexpr = (HEADS + 2 * KV) * half
    copy_words: gl.constexpr = PIECES * PIECE
    layer_words: gl.constexpr = MAX_ROWS * qkv_words + COPIES * copy_words
    i32: gl.constexpr = gl.int32
    bf16: gl.constexpr = gl.bfloat16

    pid = gl.program_id(0)
    all_scales = None if scales_ptr is None else copy_scales(scales_ptr, layers)
    part = (new_parts(), new_parts(), new_parts(), new_parts(), new_parts(), new_parts(), new_parts())
    # Apart from those that a warp may still be reading.
    own_part = new_parts()
    softmax = (
        gl.allocate_shared_memory(gl.float32, [8], PLAIN_1),
        gl.allocate_shared_memory(gl.float32, [8], PLAIN_1),
        gl.allocate_shared_memory(gl.float32, [8, D], PLAIN_2),
    )
    num_before = 0 if second_ptr is None else rows
    lines = num_before + rows
    # The set of this launch, that of its last position, and where the other one is.
    last = start if second_ptr is None else start + 1
    words_ptr += last % 2 * (layers * layer_words)
    other = layers * layer_words * (1 - last % 2 * 2)
    norm_offset, line_offset = input_offsets(lines)
    output, line, copy = output_places()
    zeros = gl.full([8, 8, 4], 0, i32, SPREAD)
    mask = (line < lines).to(i32) + zeros
    # Of a pair of outputs one thread stores the word, the other empties its place in the other set.
    is_even = (output % 2 == 0) & (zeros == 0)
    own = line * WIDTH + (pid * 8 + output) // 2 + copy * copy_words + gl.where(is_even, 0, other)
    # Queries, keys and values have one copy: of four threads two store words, two empty places.
    own_qkv = line * qkv_words + pid * 16 + output + copy % 2 * 8 + gl.where(copy < 2, 0, other) + zeros

    own_output = gl.expand_dims(gl.arange(0, 8, gl.SliceLayout(1, gl.SliceLayout(2, SUMS))), 1)
    own_line = gl.expand_dims(gl.arange(0, 8, gl.SliceLayout(0, gl.SliceLayout(2, SUMS))), 0)
    own_x = inputs_at(x_ptr, second_ptr, gl.where(own_line < lines, own_line, 0) * SIZE, rows * SIZE)
    residual = gl.load(own_x + pid * 8 + own_output).to(gl.float32)
    second_words = None if second_ptr is None else second_ptr.to(gl.pointer_type(i32))
    x_at = inputs_at(x_ptr.to(gl.pointer_type(i32)), second_words, line_offset, rows * WIDTH)
    if all_scales is not None:
        async_copy.wait_group(0)
    for layer in range(layers):
        n = layer * CHUNKS
        scales = None if all_scales is None else all_scales.index(layer)
        words = words_ptr + layer * layer_words
        shared = words + MAX_ROWS * qkv_words
        at = shared + pid % COPIES * copy_words + line_offset
        # -- queries, keys, values
        norm = gl.load(address(table_ptr, layer, NORM, i32) + norm_offset)
        y0, y1, y2, y3 = multiply_qkv(chunks, scales, n, x_at, norm, part, failed_ptr, eps, SIZE)
        y0, y1 = spread(bits(y0) | (bits(y2) << 16)), spread(bits(y1) | (bits(y3) << 16))
        publish(words + own_qkv, gl.where(copy < 2, gl.where(copy % 2 == 0, y0, y1), EMPTY), mask)
        # -- attention: one head of one line
        attended = pid % MAX_ROWS
        if attended < lines:
            is_second = 0 if second_ptr is None else (attended >= rows).to(i32)
            attended_row, place = attended - is_second * rows, start + is_second
            head = pid // MAX_ROWS
            out_word = head * half
            attend(
                words + attended * qkv_words, None if second_ptr is None else words + attended_row * qkv_words,
                shared + out_word // WIDTH * PIECE + attended * WIDTH + out_word % WIDTH, other, failed_ptr,
                address(table_ptr, layer, Q_NORM, bf16), address(table_ptr, layer, K_NORM, bf16), cos_ptr, sin_ptr,
                cache_ptr + (layer * 2 * rows + attended_row) * (LENGTH * KV * D), head, eps, scale, start, place, rows,
                softmax, HEADS, KV, D, LENGTH,
            )  # fmt: skip
        # -- output
        residual = (residual + multiply_out(chunks, scales, n + 4, at, own_part, failed_ptr)).to(bf16).to(gl.float32)
        publish(shared + 2 * PIECE + own, gl.where(is_even, pair_up(residual), EMPTY), mask)
        # -- gate and up
        norm = gl.load(address(table_ptr, layer, AFTER, i32) + norm_offset)
        y0, y1, y2 = multiply_gate_up(chunks, scales, n + 6, at + 2 * PIECE, norm, part, failed_ptr, eps, SIZE)
        publish(shared + 3 * PIECE + own, gl.where(is_even, pair_up(y0), EMPTY), mask)
        publish(shared + 4 * PIECE + own, gl.where(is_even, pair_up(y1), EMPTY), mask)
        publish(shared + 5 * PIECE + own, gl.where(is_even, pair_up(y2), EMPTY), mask)
        # -- down
        down = multiply_down(chunks, scales, n + 12, at + 3 * PIECE, own_part, failed_ptr)
        residual = (residual + down).to(bf16).to(gl.float32)
        publish(shared + 6 * PIECE + own, gl.where(is_even, pair_up(residual), EMPTY), mask)
        x_at = at + 6 * PIECE
    norm = gl.load(last_norm_ptr.to(gl.pointer_type(i32)) + norm_offset)
    y0, y1 = multiply_head(chunks, layers * CHUNKS, x_at, norm, part, failed_ptr, eps, SIZE)
    # Of two positions only the last one's logits are needed.
    has_logits = (own_line >= num_before) & (own_line < lines)
    logits_at = logits_ptr + (own_line - num_before) * VOCAB + pid * 16 + own_output
    gl.store(logits_at, y0.to(bf16), mask=has_logits)
    gl.store(logits_at + 8, y1.to(bf16), mask=has_logits)


@gluon.jit(do_not_specialize=["start", "rows", "layers"])
def predictor_pass_kernel(
    qkv, out, gate_up, down, head, scales_ptr, x_ptr, second_ptr, table_ptr, last_norm_ptr, cos_ptr, sin_ptr, cache_ptr,
    logits_ptr, words_ptr, failed_ptr, eps, scale, start, rows, layers, SIZE: gl.constexpr, HEADS: gl.constexpr,
    KV: gl.constexpr, D: gl.constexpr, VOCAB: gl.constexpr, LENGTH: gl.constexpr,
):  # fmt: skip
    """logits [rows, VOCAB] of inputs x [rows, SIZE] at position ``start``; ``cache`` [layers, 2, rows, LENGTH, KV, D].

    With ``second`` [rows, SIZE], inputs at the next position, the launch computes both, of at most MAX_ROWS // 2 rows.
    The logits are then those of the next position.

    Weights are descriptors, those of the layers of all layers one after another: packed fp8 with ``scales`` [programs,
    MAX_LAYERS, SCALES], bf16 without. ``table`` [layers, 4] has addresses of norms. ``failed`` becomes 1 if a program
    has waited too long; logits are then anything.
    """
    slots: gl.constexpr = SLOTS if qkv.dtype == gl.int32 else FP8_SLOTS
    ring = gl.allocate_shared_memory(qkv.dtype, [slots, OUTPUTS, WIDTH], qkv.layout)
    full, free = new_barriers(slots), new_barriers(4)
    gl.warp_specialize(
        [
            (
                compute,
                (
                    (ring, full, free), scales_ptr, x_ptr, second_ptr, table_ptr, last_norm_ptr, cos_ptr, sin_ptr,
                    cache_ptr, logits_ptr, words_ptr, failed_ptr, eps, scale, start, rows, layers, SIZE, HEADS, KV, D,
                    VOCAB, LENGTH,
                ),
            ),
            (copy_weights, ((qkv, out, gate_up, down, head), ring, full, free, layers, SIZE, HEADS, KV, D)),
        ],
        [1], [24],
    )  # fmt: skip
