"""A residual unit of the codec with its weights in shared memory, in Gluon: each program has a multiprocessor.

A program copies the weights once and computes tile after tile. Inputs go to the registers of the threads that multiply
them: the taps of a tile read nearly the same inputs, which the multiprocessor's cache holds.

A thread of a matrix product has pairs of columns that lie eight apart. So the channels of each 32 are taken in another
order: a thread then has eight neighboring channels, which it loads and stores at once. Weights are copied in that
order, and what comes out of the convolution goes into the second product as it is.

Measured in docs/experiments/gpu-kernels.md: "Residual units with resident weights".
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from engine.ops import tiles

CHANNELS = gl.constexpr(tiles.RESIDENT_CHANNELS)
# Two blocks of outputs, which are powers of two, and three blocks of inputs.
FIRST, REST, DEPTH = gl.constexpr(64), gl.constexpr(32), gl.constexpr(32)
WARPS, ROWS = gl.constexpr(tiles.RESIDENT_WARPS), gl.constexpr(tiles.RESIDENT_ROWS)
WARP_BASES = gl.constexpr([[16 << i, 0] for i in range(tiles.RESIDENT_WARPS.bit_length() - 1)])
# [row, pair of channels] of a block of inputs: a thread has four neighboring pairs of two rows.
PAIRS = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [8, 0]],
        [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]],
        WARP_BASES.value,
        [],
        [tiles.RESIDENT_ROWS, 16],
    )
)
OWN_ROWS = gl.constexpr(gl.SliceLayout(1, PAIRS))
# The barrier's name in Triton 3.6, and in later releases.
barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier
HALVES = gl.constexpr("mov.b32 {$0, $1}, $2;")
SINE = gl.constexpr("sin.approx.ftz.f32 $0, $1;")


@gluon.constexpr_function
def sum_layout(size):
    """Return the layout of a product [row, column]."""
    return gl.NVMMADistributedLayout([3, 0], [WARPS.value, 1], [16, size, 16])


@gluon.constexpr_function
def operand_layout(size):
    """Return the layout of the inputs [row, input] of a product with ``size`` columns."""
    return gl.DotOperandLayout(0, sum_layout(size), 2)


@gluon.constexpr_function
def channel_layout(size):
    """Return the layout [row, channel] in which a thread has eight neighboring channels of each 32, of two rows."""
    registers = [[0, 1], [0, 2], [0, 4], *[[0, 32]] * (size // 64), [8, 0]]
    lanes = [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, WARP_BASES.value, [], [ROWS.value, size])


@gluon.constexpr_function
def weight_layout(size):
    """Return the layout in which weights [input, output] are loaded."""
    return gl.BlockedLayout([1, 8], [256 // size, size // 8], [WARPS.value, 1], [1, 0])


@gluon.constexpr_function
def shared_layout(size):
    return gl.NVMMASharedLayout(swizzle_byte_width=min(128, 2 * size), element_bitwidth=16, rank=2)


# -- order of channels -----------------------------------------------------------------------------------------------


@gluon.jit
def to_operand(pairs, SIZE: gl.constexpr):
    """Return a block of inputs as the operand of a product with SIZE columns."""
    low, high = gl.inline_asm_elementwise(
        HALVES, "=h,=h,r", [pairs], dtype=(gl.bfloat16, gl.bfloat16), is_pure=True, pack=1
    )
    x = gl.permute(gl.reshape(gl.join(low, high), [ROWS, 4, 2, 2, 2]), (0, 2, 3, 1, 4))
    return gl.convert_layout(gl.reshape(x, [ROWS, DEPTH]), operand_layout(SIZE))


@gluon.jit
def to_columns(v):
    """Return v [row, channel] in the order of columns."""
    size: gl.constexpr = v.shape[1]
    v = gl.permute(gl.reshape(v, [ROWS, size // 32, 4, 4, 2]), (0, 1, 3, 2, 4))
    return gl.convert_layout(gl.reshape(v, [ROWS, size]), sum_layout(size))


@gluon.jit
def to_channels(v):
    """Return v [row, column] in the order of channels."""
    size: gl.constexpr = v.shape[1]
    v = gl.permute(gl.reshape(v, [ROWS, size // 32, 4, 4, 2]), (0, 1, 3, 2, 4))
    return gl.convert_layout(gl.reshape(v, [ROWS, size]), channel_layout(size))


@gluon.jit
def load_columns(shared):
    """Load numbers by channel in the order of columns, [1, column]."""
    size: gl.constexpr = shared.shape[0]
    v = shared.load(gl.SliceLayout(0, channel_layout(size)))
    v = gl.reshape(gl.permute(gl.reshape(v, [size // 32, 4, 4, 2]), (0, 2, 1, 3)), [size])
    return gl.expand_dims(gl.convert_layout(v, gl.SliceLayout(0, sum_layout(size))), 0)


# -- weights ---------------------------------------------------------------------------------------------------------


@gluon.jit
def copy_wide(wide_ptr, START: gl.constexpr, SIZE: gl.constexpr, TAPS: gl.constexpr):
    """Copy the convolution's weights to SIZE outputs: [block of inputs, input, column]."""
    blocks: gl.constexpr = TAPS * (CHANNELS // DEPTH)
    shared = gl.allocate_shared_memory(gl.bfloat16, [blocks, DEPTH, SIZE], shared_layout(SIZE))
    at = weights_at(wide_ptr, 0, DEPTH, START, SIZE)
    # Loads of three blocks arrive side by side: there is a barrier at each store, for Triton takes blocks as one.
    for i in gl.static_range(0, blocks, 3):
        weight, second, third = load_wide(at, i), load_wide(at, i + 1), load_wide(at, i + 2)
        store_wide(shared.index(i), weight)
        store_wide(shared.index(i + 1), second)
        store_wide(shared.index(i + 2), third)
    return shared


@gluon.jit
def weights_at(ptr, ROW: gl.constexpr, NUM_ROWS: gl.constexpr, START: gl.constexpr, SIZE: gl.constexpr):
    layout: gl.constexpr = weight_layout(SIZE)
    row, column = gl.arange(0, NUM_ROWS, gl.SliceLayout(1, layout)), gl.arange(0, SIZE, gl.SliceLayout(0, layout))
    return ptr + (ROW * CHANNELS + START) + gl.expand_dims(row, 1) * CHANNELS + gl.expand_dims(column, 0)


@gluon.jit
def load_wide(at, block):
    return gl.load(at + block * (DEPTH * CHANNELS))


@gluon.jit
def store_wide(shared, weight):
    size: gl.constexpr = shared.shape[1]
    weight = gl.permute(gl.reshape(weight, [4, 2, 2, 2, size // 32, 4, 4, 2]), (1, 2, 0, 3, 4, 6, 5, 7))
    shared.store(gl.reshape(weight, [DEPTH, size]))


@gluon.jit
def copy_narrow(narrow_ptr, ROW: gl.constexpr, NUM_ROWS: gl.constexpr, START: gl.constexpr, SIZE: gl.constexpr):
    """Copy the second product's weights of NUM_ROWS columns of the first to SIZE outputs: [column, column]."""
    weight = gl.load(weights_at(narrow_ptr, ROW, NUM_ROWS, START, SIZE))
    weight = gl.reshape(weight, [NUM_ROWS // 32, 4, 4, 2, SIZE // 32, 4, 4, 2])
    weight = gl.reshape(gl.permute(weight, (0, 2, 1, 3, 4, 6, 5, 7)), [NUM_ROWS, SIZE])
    return gl.allocate_shared_memory(gl.bfloat16, [NUM_ROWS, SIZE], shared_layout(SIZE), weight)


@gluon.jit
def copy_vectors(bias_ptr, frequency_ptr, gain_ptr, START: gl.constexpr, SIZE: gl.constexpr):
    """Copy what follows a product for SIZE outputs: bias, and a snake's frequencies and gains."""
    return (
        copy_vector(bias_ptr, START, SIZE),
        copy_vector(frequency_ptr, START, SIZE),
        copy_vector(gain_ptr, START, SIZE),
    )


@gluon.jit
def copy_vector(ptr, START: gl.constexpr, SIZE: gl.constexpr):
    v = gl.load(ptr + START + gl.arange(0, SIZE, gl.BlockedLayout([1], [32], [WARPS], [0])))
    return gl.allocate_shared_memory(gl.float32, [SIZE], gl.SwizzledSharedLayout(1, 1, 1, [0]), v)


# -- rows ------------------------------------------------------------------------------------------------------------


@gluon.jit
def rows_of(tile):
    return tile * ROWS + gl.arange(0, ROWS, OWN_ROWS)


@gluon.jit
def offset_of(rows, streams, gap, layout: gl.constexpr):
    """Return the offset [row, 1] of rows in a buffer of streams that lie ``gap`` elements apart."""
    offset = rows.to(gl.int64) * CHANNELS + streams.to(gl.int64) * gap
    return gl.expand_dims(gl.convert_layout(offset, gl.SliceLayout(1, layout)), 1)


@gluon.jit
def inputs_at(x_ptr, rows, streams, gap):
    """Return the addresses of the first block of inputs of the first tap."""
    pair = gl.expand_dims(gl.arange(0, DEPTH // 2, gl.SliceLayout(0, PAIRS)), 0)
    return x_ptr.to(gl.pointer_type(gl.int32)) + offset_of(rows, streams, gap, PAIRS) // 2 + pair


@gluon.jit
def outputs_at(ptr, rows, streams, gap, START: gl.constexpr, SIZE: gl.constexpr):
    layout: gl.constexpr = channel_layout(SIZE)
    channel = gl.expand_dims(gl.arange(0, SIZE, gl.SliceLayout(0, layout)), 0)
    return ptr + offset_of(rows, streams, gap, layout) + (START + channel)


@gluon.jit
def load_tap(at, tap, step):
    at += tap * step
    return gl.load(at), gl.load(at + DEPTH // 2), gl.load(at + DEPTH)


# -- computation -----------------------------------------------------------------------------------------------------


@gluon.jit
def snake(x, frequency, gain):
    """Return x + sin(frequency x)^2 gain."""
    sine = gl.inline_asm_elementwise(SINE, "=f,f", [x * frequency], dtype=gl.float32, is_pure=True, pack=1)
    return x + sine * sine * gain


@gluon.jit
def add_block(x, weight_first, weight_rest, block, total_first, total_rest):
    total_first = warpgroup_mma(to_operand(x, FIRST), weight_first.index(block), total_first, is_async=True)
    total_rest = warpgroup_mma(to_operand(x, REST), weight_rest.index(block), total_rest, is_async=True)
    return total_first, total_rest


@gluon.jit
def add_tap(x, tap, weights, totals):
    weight_first, weight_rest = weights
    total_first, total_rest = totals
    block = tap * (CHANNELS // DEPTH)
    total_first, total_rest = add_block(x[0], weight_first, weight_rest, block, total_first, total_rest)
    total_first, total_rest = add_block(x[1], weight_first, weight_rest, block + 1, total_first, total_rest)
    total_first, total_rest = add_block(x[2], weight_first, weight_rest, block + 2, total_first, total_rest)
    return warpgroup_mma_wait(0, (total_first, total_rest))


@gluon.jit
def add_taps(x, at, step, weights, TAPS: gl.constexpr):
    """Return the sums of all taps but the last, and the inputs of that one. Those of the first are ``x``.

    Inputs of a tap arrive while those of the one before are multiplied.
    """
    totals = (
        gl.zeros([ROWS, FIRST], gl.float32, sum_layout(FIRST)), gl.zeros([ROWS, REST], gl.float32, sum_layout(REST))
    )  # fmt: skip
    for tap in range(TAPS - 1):
        y = load_tap(at, tap + 1, step)
        totals = add_tap(x, tap, weights, totals)
        x = y
    return totals, x


@gluon.jit
def activate(total, vectors):
    """Return the inputs of the second product."""
    bias, frequency, gain = vectors
    return snake(total + load_columns(bias), load_columns(frequency), load_columns(gain)).to(gl.bfloat16)


@gluon.jit
def multiply(hidden, weights, residuals):
    """Return the residual plus the second product."""
    first, rest = hidden
    first_to_first, first_to_rest, rest_to_first, rest_to_rest = weights
    total_first, total_rest = to_columns(residuals[0]).to(gl.float32), to_columns(residuals[1]).to(gl.float32)
    h = gl.convert_layout(first, operand_layout(FIRST))
    total_first = warpgroup_mma(h, first_to_first, total_first, is_async=True)
    h = gl.convert_layout(first, operand_layout(REST))
    total_rest = warpgroup_mma(h, first_to_rest, total_rest, is_async=True)
    h = gl.convert_layout(rest, operand_layout(FIRST))
    total_first = warpgroup_mma(h, rest_to_first, total_first, is_async=True)
    h = gl.convert_layout(rest, operand_layout(REST))
    total_rest = warpgroup_mma(h, rest_to_rest, total_rest, is_async=True)
    return warpgroup_mma_wait(0, (total_first, total_rest))


@gluon.jit
def store(total, vectors, rows, streams, num_rows, residual, act, START: gl.constexpr, LAST: gl.constexpr):
    """Store some channels of the unit's sum, and their snake."""
    size: gl.constexpr = total.shape[1]
    inside = gl.expand_dims(gl.convert_layout(rows < num_rows, gl.SliceLayout(1, channel_layout(size))), 1)
    bias, frequency, gain = vectors
    total += load_columns(bias)
    if not LAST:
        at = outputs_at(residual[0], rows, streams, residual[1], START, size)
        gl.store(at, to_channels(total.to(gl.bfloat16)), mask=inside)
    total = snake(total, load_columns(frequency), load_columns(gain))
    at = outputs_at(act[0], rows, streams, act[1], START, size)
    gl.store(at, to_channels(total.to(gl.bfloat16)), mask=inside)


@gluon.jit
def load_residuals(residual, rows, streams):
    """Load the residual of both blocks of outputs."""
    ptr, gap = residual
    first = gl.load(outputs_at(ptr, rows, streams, gap, 0, FIRST))
    return first, gl.load(outputs_at(ptr, rows, streams, gap, FIRST, REST))


@gluon.jit
def compute_tiles(
    inputs, step, weights, vectors, residual, act, num_rows, length, TAPS: gl.constexpr, LAST: gl.constexpr
):
    """Compute this program's tiles. ``inputs``, ``residual`` and ``act`` are a pointer and the gap of streams each."""
    x_ptr, x_gap = inputs
    wide, narrow = weights
    inner_first, inner_rest, outer_first, outer_rest = vectors
    rows = gl.minimum(rows_of(gl.program_id(0)), num_rows - 1)
    streams = rows // length
    at = inputs_at(x_ptr, rows, streams, x_gap)
    x = load_tap(at, 0, step)
    for tile in range(gl.program_id(0), gl.cdiv(num_rows, ROWS), gl.num_programs(0)):
        totals, x = add_taps(x, at, step, wide, TAPS)
        # The next tile's first inputs. Rows behind the last one read it again, and store nothing.
        next_rows = gl.minimum(rows_of(tile + gl.num_programs(0)), num_rows - 1)
        next_streams = next_rows // length
        at = inputs_at(x_ptr, next_rows, next_streams, x_gap)
        y = load_tap(at, 0, step)
        totals = add_tap(x, TAPS - 1, wide, totals)
        x = y
        residuals = load_residuals(residual, gl.minimum(rows_of(tile), num_rows - 1), streams)
        hidden = activate(totals[0], inner_first), activate(totals[1], inner_rest)
        totals = multiply(hidden, narrow, residuals)
        store(totals[0], outer_first, rows_of(tile), streams, num_rows, residual, act, 0, LAST)
        store(totals[1], outer_rest, rows_of(tile), streams, num_rows, residual, act, FIRST, LAST)
        streams = next_streams


@gluon.jit(do_not_specialize=["num_rows", "length", "dilation"])
def resident_unit_kernel(
    x_ptr, wide_ptr, wide_bias_ptr, inner_frequency_ptr, inner_gain_ptr, narrow_ptr, narrow_bias_ptr, frequency_ptr,
    gain_ptr, residual_ptr, act_ptr, num_rows, length, x_stride, residual_stride, act_stride, dilation,
    TAPS: gl.constexpr, LAST: gl.constexpr,
):  # fmt: skip
    """Compute a residual unit of 96 channels in bf16. The arguments are those of ``residual_unit_kernel``.

    Buffers have whole words of 16 bytes: strides of streams are multiples of 8, and those of rows are 96.
    """
    wide = copy_wide(wide_ptr, 0, FIRST, TAPS), copy_wide(wide_ptr, FIRST, REST, TAPS)
    narrow = (
        copy_narrow(narrow_ptr, 0, FIRST, 0, FIRST), copy_narrow(narrow_ptr, 0, FIRST, FIRST, REST),
        copy_narrow(narrow_ptr, FIRST, REST, 0, FIRST), copy_narrow(narrow_ptr, FIRST, REST, FIRST, REST),
    )  # fmt: skip
    vectors = (
        copy_vectors(wide_bias_ptr, inner_frequency_ptr, inner_gain_ptr, 0, FIRST),
        copy_vectors(wide_bias_ptr, inner_frequency_ptr, inner_gain_ptr, FIRST, REST),
        copy_vectors(narrow_bias_ptr, frequency_ptr, gain_ptr, 0, FIRST),
        copy_vectors(narrow_bias_ptr, frequency_ptr, gain_ptr, FIRST, REST),
    )
    fence_async_shared()
    barrier()
    size = length * CHANNELS
    compute_tiles(
        (x_ptr, x_stride - size), dilation * (CHANNELS // 2), (wide, narrow), vectors,
        (residual_ptr, residual_stride - size), (act_ptr, act_stride - size), num_rows, length, TAPS, LAST,
    )  # fmt: skip
