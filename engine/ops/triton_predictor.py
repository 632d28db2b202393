"""One position of the code predictor for at most 8 rows in one launch, in Gluon: each program has a multiprocessor.

Or two for at most 4 rows: the second attends to the first by words, not by the cache.

Vectors go from program to program as words (``triton_exchange``). Each launch empties the words of the next one, and
two sets take turns. There are copies, so that few multiprocessors load the same line of the L2 cache.

One warp copies weights into a ring in shared memory, 32 KiB at a time, and eight warps multiply. Loads of a
multiprocessor complete in order, so loads of weights to registers, or many copies at once, would delay those of words.
Weights of layers may be in fp8: most become bf16 in registers before a thread waits for the words that they multiply.

Measured in docs/experiments/gpu-kernels.md: "Predictor positions in one launch, in the engine", "Predictor launches".
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from engine.ops import launched_predictor
from engine.ops.triton_exchange import (
    COPIES,
    EMPTY,
    PIECE,
    PIECES,
    SPREAD,
    SUMS,
    TILE,
    bits,
    dot,
    multiply_pairs,
    new_parts,
    pair_up,
    poll,
    poll_three,
    poll_two,
    publish,
    spread,
    squares,
    store_parts,
    sum_parts,
    two_dots,
)
from engine.ops.triton_predictor_attention import AFTER, K_NORM, NORM, Q_NORM, address, attend
from engine.ops.triton_predictor_weights import (
    CHUNKS,
    FP8_SLOTS,
    OUTPUTS,
    SLOTS,
    WIDTH,
    copy_scales,
    copy_weights,
    free_places,
    load_chunk,
    new_barriers,
    read_chunk,
    read_head,
    sum_scaled,
    wait_for_chunks,
    words_of,
)

MAX_ROWS = gl.constexpr(launched_predictor.MAX_ROWS)
PLAIN_1 = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
PLAIN_2 = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))


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
def sum_places():
    """Return the output and the line of sums [output, line]."""
    output = gl.expand_dims(gl.arange(0, 8, gl.SliceLayout(1, gl.SliceLayout(2, SUMS))), 1)
    return output, gl.expand_dims(gl.arange(0, 8, gl.SliceLayout(0, gl.SliceLayout(2, SUMS))), 0)


@gluon.jit
def first_inputs(inputs, line_offset, rows, lines, SIZE: gl.constexpr):
    """Find the words of the pass's inputs, and load those of the program's outputs, which begin its residuals."""
    x_ptr, second_ptr = inputs
    output, line = sum_places()
    own_at = inputs_at(x_ptr, second_ptr, gl.where(line < lines, line, 0) * SIZE, rows * SIZE)
    residual = gl.load(own_at + gl.program_id(0) * 8 + output).to(gl.float32)
    second_words = None if second_ptr is None else second_ptr.to(gl.pointer_type(gl.int32))
    return inputs_at(x_ptr.to(gl.pointer_type(gl.int32)), second_words, line_offset, rows * WIDTH), residual


@gluon.jit
def output_places():
    """Output, line and copy of [output, line, copy]."""
    output = gl.arange(0, 8, gl.SliceLayout(1, gl.SliceLayout(2, SPREAD)))
    line = gl.arange(0, 8, gl.SliceLayout(0, gl.SliceLayout(2, SPREAD)))
    copy = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, SPREAD)))
    output, line = gl.expand_dims(gl.expand_dims(output, 1), 2), gl.expand_dims(gl.expand_dims(line, 0), 2)
    return output, line, gl.expand_dims(gl.expand_dims(copy, 0), 1)


@gluon.jit
def publish_pairs(at, y, is_even, mask):
    """Publish each output with its neighbor, and empty their place in the other set."""
    publish(at, gl.where(is_even, pair_up(y), EMPTY), mask)


@gluon.jit
def attend_to_line(
    words, shared, other, layer, table_ptr, frame, softmax, failed_ptr, eps, scale, lines, TWO: gl.constexpr,
    HEADS: gl.constexpr, KV: gl.constexpr, D: gl.constexpr, LENGTH: gl.constexpr,
):  # fmt: skip
    """Attend with the program's head of its line, where there is such a line."""
    half: gl.constexpr = D // 2
    qkv_words: gl.constexpr = (HEADS + 2 * KV) * half
    cos_ptr, sin_ptr, cache_ptr, start, rows = frame
    line = gl.program_id(0) % MAX_ROWS
    if line < lines:
        is_second = (line >= rows).to(gl.int32) if TWO else 0
        row, place = line - is_second * rows, start + is_second
        head = gl.program_id(0) // MAX_ROWS
        out_word = head * half
        line_words = (
            words + line * qkv_words, words + row * qkv_words if TWO else None,
            shared + out_word // WIDTH * PIECE + line * WIDTH + out_word % WIDTH,
        )  # fmt: skip
        norms = address(table_ptr, layer, Q_NORM, gl.bfloat16), address(table_ptr, layer, K_NORM, gl.bfloat16)
        cache_ptr += (layer * 2 * rows + row) * (LENGTH * KV * D)
        attend(
            line_words, other, failed_ptr, norms, (cos_ptr, sin_ptr), cache_ptr, head, eps, scale, start, place, rows,
            softmax, HEADS, KV, D, LENGTH,
        )  # fmt: skip


@gluon.jit
def compute_layer(
    chunks, scales, layer, x_at, residual, words, other, offsets, places, parts, table_ptr, frame, failed_ptr, eps,
    scale, lines, TWO: gl.constexpr, SIZE: gl.constexpr, HEADS: gl.constexpr, KV: gl.constexpr, D: gl.constexpr,
    LENGTH: gl.constexpr,
):  # fmt: skip
    """Compute the program's outputs of a layer; return where the words of all outputs lie, and its residuals."""
    n = layer * CHUNKS
    norm_offset, line_offset = offsets
    own_qkv, own, copy, is_even, mask = places
    part, own_part, softmax = parts
    shared = words + MAX_ROWS * ((HEADS + 2 * KV) * (D // 2))
    at = shared + gl.program_id(0) % COPIES * (PIECES * PIECE) + line_offset
    # -- queries, keys, values
    norm = gl.load(address(table_ptr, layer, NORM, gl.int32) + norm_offset)
    y0, y1, y2, y3 = multiply_qkv(chunks, scales, n, x_at, norm, part, failed_ptr, eps, SIZE)
    y0, y1 = spread(bits(y0) | (bits(y2) << 16)), spread(bits(y1) | (bits(y3) << 16))
    publish(words + own_qkv, gl.where(copy < 2, gl.where(copy % 2 == 0, y0, y1), EMPTY), mask)
    # -- attention: one head of one line
    attend_to_line(
        words, shared, other, layer, table_ptr, frame, softmax, failed_ptr, eps, scale, lines, TWO, HEADS, KV, D, LENGTH
    )
    # -- output
    out = multiply_out(chunks, scales, n + 4, at, own_part, failed_ptr)
    residual = (residual + out).to(gl.bfloat16).to(gl.float32)
    publish_pairs(shared + 2 * PIECE + own, residual, is_even, mask)
    # -- gate and up
    norm = gl.load(address(table_ptr, layer, AFTER, gl.int32) + norm_offset)
    y0, y1, y2 = multiply_gate_up(chunks, scales, n + 6, at + 2 * PIECE, norm, part, failed_ptr, eps, SIZE)
    publish_pairs(shared + 3 * PIECE + own, y0, is_even, mask)
    publish_pairs(shared + 4 * PIECE + own, y1, is_even, mask)
    publish_pairs(shared + 5 * PIECE + own, y2, is_even, mask)
    # -- down
    down = multiply_down(chunks, scales, n + 12, at + 3 * PIECE, own_part, failed_ptr)
    residual = (residual + down).to(gl.bfloat16).to(gl.float32)
    publish_pairs(shared + 6 * PIECE + own, residual, is_even, mask)
    return at + 6 * PIECE, residual


@gluon.jit
def store_logits(logits_ptr, y0, y1, num_before, lines, VOCAB: gl.constexpr):
    """Store the last position's logits; of two positions only those are needed."""
    output, line = sum_places()
    mask = (line >= num_before) & (line < lines)
    at = logits_ptr + (line - num_before) * VOCAB + gl.program_id(0) * 16 + output
    gl.store(at, y0.to(gl.bfloat16), mask=mask)
    gl.store(at + 8, y1.to(gl.bfloat16), mask=mask)


@gluon.jit
def new_shared_memory(D: gl.constexpr):
    """Allocate parts of sums, others for sums that follow while a warp may still read these, and a softmax's parts."""
    part = (new_parts(), new_parts(), new_parts(), new_parts(), new_parts(), new_parts(), new_parts())
    own_part = new_parts()
    max_scores = gl.allocate_shared_memory(gl.float32, [8], PLAIN_1)
    exp_sums = gl.allocate_shared_memory(gl.float32, [8], PLAIN_1)
    return part, own_part, (max_scores, exp_sums, gl.allocate_shared_memory(gl.float32, [8, D], PLAIN_2))


@gluon.jit
def compute(
    chunks, scales_ptr, inputs, norms, frame, words_ptr, failed_ptr, logits_ptr, eps, scale, layers, SIZE: gl.constexpr,
    HEADS: gl.constexpr, KV: gl.constexpr, D: gl.constexpr, VOCAB: gl.constexpr, LENGTH: gl.constexpr,
):  # fmt: skip
    """Compute the program's outputs of each product. What it computes for one row does not depend on the others.

    A line is a row at one position. Those of a second position follow those of the first.
    """
    qkv_words: gl.constexpr = (HEADS + 2 * KV) * (D // 2)
    layer_words: gl.constexpr = MAX_ROWS * qkv_words + COPIES * (PIECES * PIECE)
    two: gl.constexpr = inputs[1] is not None
    table_ptr, last_norm_ptr = norms
    _, _, _, start, rows = frame

    pid = gl.program_id(0)
    all_scales = None if scales_ptr is None else copy_scales(scales_ptr, layers)
    parts = new_shared_memory(D)
    num_before = rows if two else 0
    lines = num_before + rows
    # The set of this launch, that of its last position, and where the other one is.
    last = start + 1 if two else start
    words_ptr += last % 2 * (layers * layer_words)
    other = layers * layer_words * (1 - last % 2 * 2)
    offsets = input_offsets(lines)
    output, line, copy = output_places()
    zeros = gl.full([8, 8, 4], 0, gl.int32, SPREAD)
    mask = (line < lines).to(gl.int32) + zeros
    # Of a pair of outputs one thread stores the word, the other empties its place in the other set.
    is_even = (output % 2 == 0) & (zeros == 0)
    own = line * WIDTH + (pid * 8 + output) // 2 + copy * (PIECES * PIECE) + gl.where(is_even, 0, other)
    # Queries, keys and values have one copy: of four threads two store words, two empty places.
    own_qkv = line * qkv_words + pid * 16 + output + copy % 2 * 8 + gl.where(copy < 2, 0, other) + zeros
    places = own_qkv, own, copy, is_even, mask
    x_at, residual = first_inputs(inputs, offsets[1], rows, lines, SIZE)
    if all_scales is not None:
        async_copy.wait_group(0)
    for layer in range(layers):
        scales = None if all_scales is None else all_scales.index(layer)
        x_at, residual = compute_layer(
            chunks, scales, layer, x_at, residual, words_ptr + layer * layer_words, other, offsets, places, parts,
            table_ptr, frame, failed_ptr, eps, scale, lines, two, SIZE, HEADS, KV, D, LENGTH,
        )  # fmt: skip
    norm = gl.load(last_norm_ptr.to(gl.pointer_type(gl.int32)) + offsets[0])
    y0, y1 = multiply_head(chunks, layers * CHUNKS, x_at, norm, parts[0], failed_ptr, eps, SIZE)
    store_logits(logits_ptr, y0, y1, num_before, lines, VOCAB)


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
                    (ring, full, free), scales_ptr, (x_ptr, second_ptr), (table_ptr, last_norm_ptr),
                    (cos_ptr, sin_ptr, cache_ptr, start, rows), words_ptr, failed_ptr, logits_ptr, eps, scale, layers,
                    SIZE, HEADS, KV, D, VOCAB, LENGTH,
                ),
            ),
            (copy_weights, ((qkv, out, gate_up, down, head), ring, full, free, layers, SIZE, HEADS, KV, D)),
        ],
        [1], [24],
    )  # fmt: skip
