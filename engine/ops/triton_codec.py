"""The codec's layers in channels-last form over padded buffers: each product ends in what the next layer reads."""

from __future__ import annotations

import triton
import triton.language as tl

from engine.ops.triton_early import fix_keys, wait_for_inputs

INVERSE_PI = tl.constexpr(0.3183098861837907)
PI = tl.constexpr(3.141592653589793)


@triton.jit
def _sine_squared(angle):
    """sin(angle)^2, of period pi: reduced to half a turn, then a polynomial, 4e-6 at most from the true value."""
    r = angle - tl.floor(angle * INVERSE_PI + 0.5) * PI
    s = r * r
    sine = r * (1.0 + s * (-0.16666667 + s * (0.008333331 + s * (-0.00019840874 + s * 2.7525562e-06))))
    return sine * sine


@triton.jit
def _snake(x, frequency_ptr, gain_ptr, columns):
    frequency, gain = tl.load(frequency_ptr + columns)[None], tl.load(gain_ptr + columns)[None]
    return x + _sine_squared(x * frequency) * gain


fix_keys(_sine_squared, _snake)


@triton.jit
def _tap_offsets(k, dilation, C):
    """Return the positions of the inputs of row k of a weight [TAPS * C, N], from the first tap's first channel on.

    C is a multiple of 16, which Triton must be told where C is divided by: else it loads x number by number.
    """
    return tl.multiple_of((k // C) * dilation * C + k % C, 16)


@triton.jit(do_not_specialize=["num_rows", "length", "dilation"])
def conv_kernel(
    x_ptr, weight_ptr, bias_ptr, frequency_ptr, gain_ptr, residual_ptr, raw_ptr, act_ptr,
    num_rows, length, x_stride, residual_stride, raw_stride, act_stride, dilation, C, TAPS, N,
    RESIDUAL: tl.constexpr, RAW: tl.constexpr,
    ACT: tl.constexpr, EXACT: tl.constexpr, EVEN_N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr = 0,
):  # fmt: skip
    """Rows are (stream, position); strides are between streams. ACT: 0 none, 1 plain, 2 snake, 3 GELU.

    Tiles stand in one row, neighbours over the same rows of x: a grid takes no more than 65,535 in another direction.
    """
    wait_for_inputs(EARLY)
    precision: tl.constexpr = "ieee" if EXACT else "tf32"
    num_across = tl.cdiv(N, BLOCK_N)
    rows = tl.program_id(0) // num_across * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) % num_across * BLOCK_N + tl.arange(0, BLOCK_N)
    in_rows = (rows < num_rows)[:, None]
    stream, place = (rows // length).to(tl.int64), rows % length
    steps = tl.arange(0, BLOCK_K)
    x_at = x_ptr + (stream * x_stride + place * C)[:, None] + steps[None]
    weight_at = weight_ptr + steps[:, None] * N + columns[None]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in range(0, TAPS * C, BLOCK_K):
        x = tl.load(x_at + _tap_offsets(k, dilation, C), mask=in_rows, other=0.0)
        if EVEN_N:
            weight = tl.load(weight_at + k * N)
        else:
            weight = tl.load(weight_at + k * N, mask=(columns < N)[None], other=0.0)
        total = tl.dot(x, weight, total, input_precision=precision)
    bounded = tl.minimum(columns, N - 1)
    total += tl.load(bias_ptr + bounded)[None]
    inside = in_rows & (columns < N)[None]
    at = place[:, None] * N + columns[None]
    if RESIDUAL:
        total += tl.load(residual_ptr + stream[:, None] * residual_stride + at, mask=inside, other=0.0).to(tl.float32)
    if RAW:
        tl.store(raw_ptr + stream[:, None] * raw_stride + at, total.to(raw_ptr.dtype.element_ty), mask=inside)
    if ACT > 0:
        if ACT == 2:
            total = _snake(total, frequency_ptr, gain_ptr, bounded)
        if ACT == 3:
            total = 0.5 * total * (1.0 + tl.erf(total * 0.7071067811865476))
        tl.store(act_ptr + stream[:, None] * act_stride + at, total.to(act_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows", "length", "dilation"])
def residual_unit_kernel(
    x_ptr, wide_ptr, wide_bias_ptr, inner_frequency_ptr, inner_gain_ptr, narrow_ptr, narrow_bias_ptr, frequency_ptr,
    gain_ptr, residual_ptr, act_ptr, num_rows, length, x_stride, residual_stride, act_stride, dilation, TAPS,
    C: tl.constexpr, LAST: tl.constexpr, EXACT: tl.constexpr, ONE_STREAM: tl.constexpr,
    BLOCK_M: tl.constexpr, FIRST: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A residual unit at once: a convolution, its snake, a product, which ``residual`` takes; ``act`` is its snake.

    A program holds all channels of its rows, in two blocks without padding: FIRST and the rest, powers of two both. It
    makes BLOCK_N of the product at a time, while the weights and the residual of the next ones arrive. With ONE_STREAM
    BLOCK_M divides ``length``: rows of one stream, whose pointers are one number and constants, leave registers for a
    third program. With LAST ``residual`` stays as it is.
    """
    precision: tl.constexpr = "ieee" if EXACT else "tf32"
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    num_rest: tl.constexpr = C - FIRST
    row = tl.program_id(0) * BLOCK_M
    if ONE_STREAM:
        inside = None
        stream, start = (row // length).to(tl.int64), row % length * C
        own = tl.arange(0, BLOCK_M)[:, None] * C
    else:
        rows = row + tl.arange(0, BLOCK_M)
        inside = (rows < num_rows)[:, None]
        rows = tl.minimum(rows, num_rows - 1)
        stream, start = (rows // length).to(tl.int64)[:, None], (rows % length * C)[:, None]
        own = 0
    first, rest = tl.arange(0, FIRST), FIRST + tl.arange(0, num_rest)
    steps = tl.arange(0, BLOCK_K)
    x_at = x_ptr + stream * x_stride + start + own + steps[None]
    wide_at = wide_ptr + steps[:, None] * C
    total_first = tl.zeros([BLOCK_M, FIRST], tl.float32)
    total_rest = tl.zeros([BLOCK_M, num_rest], tl.float32)
    for k in range(0, TAPS * C, BLOCK_K):
        x = tl.load(x_at + _tap_offsets(k, dilation, C))
        total_first = tl.dot(x, tl.load(wide_at + k * C + first[None]), total_first, input_precision=precision)
        total_rest = tl.dot(x, tl.load(wide_at + k * C + rest[None]), total_rest, input_precision=precision)
    total_first += tl.load(wide_bias_ptr + first)[None]
    hidden_first = _snake(total_first, inner_frequency_ptr, inner_gain_ptr, first).to(dtype)
    total_rest += tl.load(wide_bias_ptr + rest)[None]
    hidden_rest = _snake(total_rest, inner_frequency_ptr, inner_gain_ptr, rest).to(dtype)
    some = tl.arange(0, BLOCK_N)
    residual_at = residual_ptr + stream * residual_stride + start + own + some[None]
    act_at = act_ptr + stream * act_stride + start + own + some[None]
    narrow_at = narrow_ptr + some[None]
    for column in tl.range(0, C, BLOCK_N, num_stages=3):
        column = tl.multiple_of(column, BLOCK_N)
        total = tl.load(residual_at + column, mask=inside).to(tl.float32)
        weight = tl.load(narrow_at + column + first[:, None] * C)
        total = tl.dot(hidden_first, weight, total, input_precision=precision)
        weight = tl.load(narrow_at + column + rest[:, None] * C)
        total = tl.dot(hidden_rest, weight, total, input_precision=precision)
        total += tl.load(narrow_bias_ptr + column + some)[None]
        if not LAST:
            tl.store(residual_at + column, total.to(dtype), mask=inside)
        total = _snake(total, frequency_ptr, gain_ptr, column + some)
        tl.store(act_at + column, total.to(dtype), mask=inside)


@triton.jit(do_not_specialize=["length"])
def depthwise_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, scale_ptr, shift_ptr, out_ptr, length, x_stride, eps,
    C: tl.constexpr, BLOCK: tl.constexpr, TAPS: tl.constexpr, EARLY: tl.constexpr = 0,
):  # fmt: skip
    wait_for_inputs(EARLY)
    row = tl.program_id(0)
    stream, place = (row // length).to(tl.int64), row % length
    c = tl.arange(0, BLOCK)
    inside = c < C
    total = tl.load(bias_ptr + c, mask=inside, other=0.0)
    for tap in tl.static_range(TAPS):
        x = tl.load(x_ptr + stream * x_stride + (place + tap) * C + c, mask=inside, other=0.0).to(tl.float32)
        total += x * tl.load(weight_ptr + tap * C + c, mask=inside, other=0.0)
    mean = tl.sum(total, 0) / C
    centred = tl.where(inside, total - mean, 0.0)
    y = centred * tl.rsqrt(tl.sum(centred * centred, 0) / C + eps)
    y = y * tl.load(scale_ptr + c, mask=inside, other=0.0) + tl.load(shift_ptr + c, mask=inside, other=0.0)
    tl.store(out_ptr + row.to(tl.int64) * C + c, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows", "length"])
def output_conv_kernel(
    x_ptr, weight_ptr, bias_ptr, pcm_ptr, num_rows, length, x_stride, pcm_stride,
    C: tl.constexpr, BLOCK_C: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr = 0,
):  # fmt: skip
    wait_for_inputs(EARLY)
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_rows = rows < num_rows
    stream, place = (rows // length).to(tl.int64), rows % length
    c = tl.arange(0, BLOCK_C)
    in_c = c < C
    total = tl.zeros([BLOCK], tl.float32) + tl.load(bias_ptr)
    for tap in tl.static_range(TAPS):
        at = x_ptr + (stream * x_stride + (place + tap) * C)[:, None] + c[None]
        x = tl.load(at, mask=in_rows[:, None] & in_c[None], other=0.0).to(tl.float32)
        total += tl.sum(x * tl.load(weight_ptr + tap * C + c, mask=in_c, other=0.0)[None], 1)
    bad = total != total
    total = tl.minimum(tl.maximum(total, -1.0), 1.0)
    total = tl.where(bad, float("nan"), total)
    tl.store(pcm_ptr + stream * pcm_stride + place, total, mask=in_rows)


@triton.jit
def conv_state_kernel(
    state_ptr,
    flat_ptr,
    chunk_ptr,
    slot_ptr,
    fresh_ptr,
    state_stride,
    LOAD: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    EARLY: tl.constexpr = 0,
):
    """One run of a layer's past of one row a program: state to the head of its buffer, or its tail to the state.

    Every number of the chunks is a multiple of STEP.
    """
    wait_for_inputs(EARLY)
    row = tl.program_id(1).to(tl.int64)
    chunk = chunk_ptr + tl.program_id(0) * 6
    count = tl.multiple_of(tl.load(chunk + 1), STEP)
    i = tl.arange(0, BLOCK)
    inside = i < count
    in_state = tl.load(slot_ptr + row).to(tl.int64) * state_stride + tl.load(chunk)
    state_at = state_ptr + tl.multiple_of(in_state, STEP) + i
    in_flat = tl.load(chunk + 2) + row * tl.load(chunk + 3) + tl.load(chunk + (4 if LOAD else 5))
    flat_at = flat_ptr + tl.multiple_of(in_flat, STEP) + i
    if LOAD:
        fresh = tl.load(fresh_ptr + row) != 0
        tl.store(flat_at, tl.load(state_at, mask=inside & (fresh == 0), other=0.0), mask=inside)
    else:
        tl.store(state_at, tl.load(flat_at, mask=inside), mask=inside)
