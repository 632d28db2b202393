"""Every fused kernel against its plain reference, on fresh random inputs and poisoned outputs.

On a CUDA device in bf16 and fp32; with TRITON_INTERPRET=1 and triton installed also on the CPU, in fp32.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.ops.parallel_compile import intercept
from engine.ops.params import (
    ConvParams,
    ConvStateSpec,
    FirstCodeRules,
    PaddedBufferPlan,
    PagedCall,
    ResidualStream,
    ResidualUnitParams,
    RingCall,
    SamplingTensors,
    SnakeParams,
)
from engine.ops.ras import ControlRules, RasTensors
from engine.ops.reference_ops import ReferenceOps
from engine.ops.tiles import UnitTile, unit_shape
from engine.weights.quantize import Weight, as_bits, quantize, quantize_int4, to_fp8

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs CUDA, or TRITON_INTERPRET=1"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning"),
]
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
DTYPES = [torch.float32] if DEVICE == "cpu" else [torch.float32, torch.bfloat16]
# Relative, of the norm of the difference; bf16 keeps 8 bits, and both sides round more than once.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 1.5e-2}
# Activations have three bits of mantissa, which the interpreter does not round to the nearest.
FP8_TOLERANCE = 0.15 if INTERPRETED else 0.06
EPS = 1e-6
PLAIN = ReferenceOps()


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = request.param
    return found


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Units of any size run at once."""
    from engine.ops import triton_ops

    def small_unit_shape(channels: int, on_hopper: bool) -> UnitTile | None:
        tile = unit_shape(channels, on_hopper)
        return tile and tile._replace(min_programs=1)

    monkeypatch.setattr(triton_ops, "unit_shape", small_unit_shape)
    ops = triton_ops.TritonOps()
    ops.max_gemv_rows = 4
    ops.on_hopper = ops.on_hopper or INTERPRETED
    return ops


@pytest.fixture
def quantized() -> Any:
    from engine.ops.quantized_ops import QuantizedTritonOps

    return QuantizedTritonOps()


@pytest.fixture
def int4() -> Any:
    from engine.ops.int4_ops import Int4TritonOps

    return Int4TritonOps()


def random(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape, device=DEVICE) * scale).to(dtype)


def check(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype, tolerance: float | None = None) -> None:
    found, wanted = found.double(), wanted.double()
    assert torch.isfinite(found).all()
    assert float((found - wanted).norm() / wanted.norm()) < (tolerance or TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("rows", "size"), [*((rows, 256) for rows in (1, 2, 4, 5, 40, 64, 65)), (1, 896), (2, 896), (5, 320)]
)
def test_products_with_norm_swiglu_and_residual(fused: Any, dtype: torch.dtype, rows: int, size: int) -> None:
    """896 inputs take two tiles of 512, and 320 are no multiple of 128."""
    out = 128
    x, norm = random(rows, size, dtype=dtype, scale=3.0), random(size, dtype=dtype)
    weight, both = (random(n, size, dtype=dtype, scale=size**-0.5) for n in (out, 2 * out))
    y, back = random(rows, 2 * size, dtype=dtype), random(size, 2 * size, dtype=dtype, scale=size**-0.5)
    for product, given in (("norm_linear", (weight, random(out, dtype=dtype))), ("norm_swiglu", (both,))):
        for added in (False, True):
            results = []
            for ops in (fused, PLAIN):
                residual = ResidualStream(x.clone())
                if added:
                    ops.add_linear(residual, y, back)
                found = getattr(ops, product)(residual, norm, EPS, *given)
                results.append((found, ops.flush_residual(residual)))
            for one, other in zip(*results, strict=True):
                check(one, other, dtype)


def check_products(
    ops: Any, make: Callable[[torch.Tensor], Weight], rows: int, size: int, dtype: torch.dtype, tolerance: float | None
) -> None:
    """Check products with norm, SwiGLU and residual over weights that ``make`` returns."""
    out = 128
    x, norm = random(rows, size, dtype=dtype, scale=3.0), random(size, dtype=dtype)
    weight, both = (make(random(n, size, scale=size**-0.5)) for n in (out, 2 * out))
    y, back = random(rows, 2 * size, dtype=dtype), make(random(size, 2 * size, scale=size**-0.5))
    for product, given in (("norm_linear", (weight, random(out, dtype=dtype))), ("norm_swiglu", (both,))):
        for added in (False, True):
            results = []
            for some in (ops, PLAIN):
                residual = ResidualStream(x.clone())
                if added:
                    some.add_linear(residual, y, back)
                found = getattr(some, product)(residual, norm, EPS, *given)
                results.append((found, some.flush_residual(residual)))
            for one, other in zip(*results, strict=True):
                check(one, other, dtype, tolerance)


@pytest.mark.parametrize("size", [256, 320])
@pytest.mark.parametrize("rows", [1, 2, 5, 20, 64, 65, 130])
def test_products_over_quantized_weights(quantized: Any, dtype: torch.dtype, rows: int, size: int) -> None:
    tolerance = FP8_TOLERANCE if rows > quantized.max_gemv_rows else None
    check_products(quantized, quantize, rows, size, dtype, tolerance)


@pytest.mark.parametrize("size", [256, 320])
@pytest.mark.parametrize("rows", [1, 2, 5, 20, 64, 65])
def test_products_over_int4_weights(int4: Any, dtype: torch.dtype, rows: int, size: int) -> None:
    check_products(int4, quantize_int4, rows, size, dtype, None)


def test_int4_kernels_dequantize_as_their_reference(int4: Any, dtype: torch.dtype) -> None:
    from engine.ops.int4_ops import Int4TritonOps

    weight = quantize_int4(random(70, 320) * torch.logspace(-4, 2, 70, device=DEVICE)[:, None])
    wanted = PLAIN.dense(weight, dtype)
    assert torch.equal(int4.dense(weight, dtype), wanted)
    assert torch.equal(Int4TritonOps(disabled=["quantized"]).operand(weight, 1, dtype), wanted)


@pytest.mark.parametrize(("rows", "is_fused"), [(1, True), (64, True), (65, False)])
def test_int4_weights_are_converted_in_registers_by_rows(int4: Any, rows: int, is_fused: bool) -> None:
    weight = quantize_int4(random(64, 256))
    assert (int4.operand(weight, rows, torch.float32) is weight) == is_fused


@pytest.mark.parametrize(("rows", "num_out"), [(1, 256), (5, 256), (64, 256), (70, 256), (260, 2880)])
def test_fp8_product_equals_dequantized_product(quantized: Any, dtype: torch.dtype, rows: int, num_out: int) -> None:
    x, weight = random(rows, 512, dtype=dtype), quantize(random(num_out, 512))
    rounded = quantized.quantize_rows(x)
    given = rounded.data.float() * rounded.scale
    check(given, x, dtype, FP8_TOLERANCE)
    check(quantized.multiply(rounded, weight, dtype), given @ weight.dequantize(torch.float32).t(), dtype, 1e-2)


@pytest.mark.parametrize(
    ("rows", "num_out", "swiglu", "rows_of_tile"),
    [
        (64, 4096, False, 64),
        (65, 4096, False, 128),
        (256, 4096, False, 128),
        (257, 4096, False, None),
        (640, 6144, True, None),
        (384, 6144, True, 128),
        (1024, 3072, True, 128),
        (65, 96, False, None),
    ],
)
def test_fp8_products_have_large_tiles_while_few_of_them_wait(
    rows: int, num_out: int, swiglu: bool, rows_of_tile: int | None
) -> None:
    from engine.ops.quantized_ops import fp8_tile

    tile = fp8_tile(rows, num_out, swiglu)
    assert (None if tile is None else tile.rows) == rows_of_tile


@pytest.mark.parametrize(
    ("rows", "shape", "is_fused"),
    [
        (2, (448, 256), True),
        (2, (448, 320), False),
        (3, (448, 320), True),
        (3, (448, 96), False),
        (3, (96, 320), False),
    ],
)
def test_products_are_fused_by_rows_and_sizes(
    quantized: Any, rows: int, shape: tuple[int, int], is_fused: bool
) -> None:
    weight = quantize(random(*shape))
    assert (quantized.fused(rows, weight) is not None) == is_fused
    assert (quantized.fused(rows, weight._replace(plain=random(*shape))) is not None) == (is_fused and rows == 2)


def test_weight_with_plain_one_multiplies_it_above_two_rows(quantized: Any, dtype: torch.dtype) -> None:
    norm, plain = random(256, dtype=dtype), random(128, 256, dtype=dtype)
    weight = quantize(plain)._replace(plain=plain)
    for rows, wanted in ((2, weight.dequantize(dtype)), (3, plain)):
        x = random(rows, 256, dtype=dtype)
        found = quantized.norm_linear(ResidualStream(x), norm, EPS, weight)
        check(found, PLAIN.norm_linear(ResidualStream(x), norm, EPS, wanted), dtype)


def test_quantized_kernels_off_dequantize(dtype: torch.dtype) -> None:
    from engine.ops.quantized_ops import QuantizedTritonOps

    x, norm, weight = random(5, 256, dtype=dtype), random(256, dtype=dtype), quantize(random(128, 256))
    off = QuantizedTritonOps(disabled=["quantized"])
    found = off.norm_linear(ResidualStream(x), norm, EPS, weight)
    check(found, PLAIN.norm_linear(ResidualStream(x), norm, EPS, weight), dtype)


@pytest.mark.parametrize("rows", [2, 9])
def test_what_was_added_twice_is_all_there(fused: Any, dtype: torch.dtype, rows: int) -> None:
    x, y, back = (random(n, 256, dtype=dtype, scale=0.1) for n in (rows, rows, 256))
    results = []
    for ops in (fused, PLAIN):
        residual = ResidualStream(x.clone())
        ops.add_linear(residual, y, back)
        ops.add_linear(residual, y, back)
        results.append(ops.flush_residual(residual))
    check(*results, dtype)


@pytest.mark.parametrize(
    ("size", "num_out", "wanted"), [(2048, 2048, 2), (6144, 2048, 4), (2048, 1024, 4), (192, 32, 1)]
)
def test_a_product_is_shared_out_among_multiprocessors(size: int, num_out: int, wanted: int) -> None:
    from engine.ops.triton_ops import gemm_split_k

    assert gemm_split_k(size, num_out) == wanted


@pytest.mark.parametrize("size", [256, 320])
def test_product_that_is_not_shared_out(fused: Any, dtype: torch.dtype, size: int) -> None:
    """That which replaces one of cuBLAS where layers start early."""
    x, weight = random(40, size, dtype=dtype), random(128, size, dtype=dtype)
    out = torch.full((40, 128), torch.nan, dtype=dtype, device=DEVICE)
    fused.launch_gemm(x, weight, out, 1, swiglu=False)
    check(out, x @ weight.t(), dtype)


def test_norm_and_swiglu_alone(fused: Any, dtype: torch.dtype) -> None:
    x, weight = random(7, 96, dtype=dtype), random(96, dtype=dtype)
    check(fused.rms_norm(x, weight, EPS), PLAIN.rms_norm(x, weight, EPS), dtype)
    check(fused.swiglu(x), PLAIN.swiglu(x), dtype)


def rope(length: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.rand(length, size // 2, device=DEVICE) * 6
    return angles.cos(), angles.sin()


@pytest.mark.parametrize("is_fp8", [False, True], ids=["cache in dtype", "cache in fp8"])
@pytest.mark.parametrize("together", [False, True])
def test_paged_attention_and_what_it_writes(fused: Any, dtype: torch.dtype, together: bool, is_fp8: bool) -> None:
    heads, group, size, page, rows = 2, 2, 32, 16, 5
    qkv = random(rows, heads * (group + 2) * size, dtype=dtype)
    norms = random(size, dtype=dtype), random(size, dtype=dtype)
    cache = random(2, 64, page, heads, size, dtype=dtype)
    cache = to_fp8(cache) if is_fp8 else cache
    if together:  # positions of one sequence
        tables = torch.arange(1, 11, device=DEVICE, dtype=torch.int32).expand(rows, -1).contiguous()
        positions = torch.arange(70, 70 + rows, device=DEVICE, dtype=torch.int32)
    else:
        tables = torch.randperm(63, device=DEVICE)[: rows * 10].view(rows, 10).int() + 1
        positions = torch.tensor([0, 1, 63, 64, 150], device=DEVICE, dtype=torch.int32)
    caches = cache.clone(), cache.clone()
    call = PagedCall(tables, positions, rope(160, size), together)
    found = fused.paged_attention(qkv, norms, EPS, caches[0], call)
    wanted = PLAIN.paged_attention(qkv, norms, EPS, caches[1], call)
    tolerance = FP8_TOLERANCE if is_fp8 else TOLERANCE[dtype]
    check(found, wanted, dtype, tolerance)
    block = tables.gather(1, (positions // page)[:, None].long())[:, 0].long()
    slot = block * page + positions % page
    sides = [as_bits(side).flatten(1, 2) for side in (*caches, cache)]
    written = torch.zeros(sides[0].shape[1], dtype=torch.bool, device=DEVICE)
    written[slot] = True
    assert all(torch.equal(side[:, ~written], sides[2][:, ~written]) for side in sides[:2])
    mine, plain = (side[:, slot].view(cache.dtype).float() for side in sides[:2])
    if not is_fp8:
        check(mine, plain, dtype)
        return
    # One step of e4m3. The interpreter loses a carry into the exponent.
    near = (mine - plain).abs() <= plain.abs() / 8 + 2**-5
    assert near.float().mean() >= (0.9 if INTERPRETED else 1)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter does not saturate")
@pytest.mark.parametrize("together", [False, True])
def test_fp8_cache_saturates(fused: Any, dtype: torch.dtype, together: bool) -> None:
    size, page = 32, 16
    qkv = torch.full((1, 4 * size), 1000.0, device=DEVICE, dtype=dtype)
    qkv[:, -1] = -1000.0
    norms = torch.ones(size, device=DEVICE, dtype=dtype), torch.ones(size, device=DEVICE, dtype=dtype)
    cache = to_fp8(torch.zeros(2, 3, page, 1, size, device=DEVICE))
    tables = torch.tensor([[1, 2]], device=DEVICE, dtype=torch.int32)
    position = torch.tensor([3], device=DEVICE, dtype=torch.int32)
    fused.paged_attention(qkv, norms, EPS, cache, PagedCall(tables, position, rope(32, size), together))
    values = cache[1, 1, 3, 0].float()
    assert (values[:-1] == 448).all()
    assert values[-1] == -448


@pytest.mark.parametrize("side", [0, 1], ids=["key", "value"])
@pytest.mark.parametrize("place", [6, 7])
@pytest.mark.parametrize("bits", [0x7F, 0xFF])
def test_nan_in_an_fp8_cache_stays_nan(fused: Any, dtype: torch.dtype, side: int, place: int, bits: int) -> None:
    size, page = 32, 16
    qkv = random(2, 4 * size, dtype=dtype)
    norms = random(size, dtype=dtype), random(size, dtype=dtype)
    cache = to_fp8(random(2, 3, page, 1, size, dtype=dtype))
    as_bits(cache)[side, 1, 2, 0, place] = bits
    tables = torch.tensor([[1], [2]], device=DEVICE, dtype=torch.int32)
    call = PagedCall(tables, torch.tensor([5, 5], device=DEVICE, dtype=torch.int32), rope(32, size), together=False)
    found, wanted = (ops.paged_attention(qkv, norms, EPS, cache.clone(), call) for ops in (fused, PLAIN))
    assert wanted.isnan().any()
    assert torch.equal(found.isnan(), wanted.isnan())


def test_heads_too_narrow_for_pairs_use_the_reference(fused: Any, dtype: torch.dtype) -> None:
    size = 16
    qkv, norms = random(1, 4 * size, dtype=dtype), (random(size, dtype=dtype), random(size, dtype=dtype))
    cache = to_fp8(random(2, 3, 16, 1, size, dtype=dtype))
    tables = torch.tensor([[1]], device=DEVICE, dtype=torch.int32)
    call = PagedCall(tables, torch.tensor([5], device=DEVICE, dtype=torch.int32), rope(32, size), together=False)
    found, wanted = (ops.paged_attention(qkv, norms, EPS, cache.clone(), call) for ops in (fused, PLAIN))
    check(found, wanted, dtype)


def test_paged_attention_never_reads_beyond_its_position(fused: Any) -> None:
    heads, size, page = 1, 32, 16
    cache = torch.full((2, 4, page, heads, size), float("nan"), device=DEVICE)
    cache[:, 1, :3] = 1.0
    qkv = random(1, 4 * size)
    tables = torch.tensor([[1, 2]], device=DEVICE, dtype=torch.int32)
    position = torch.tensor([3], device=DEVICE, dtype=torch.int32)
    norms = torch.ones(size, device=DEVICE), torch.ones(size, device=DEVICE)
    call = PagedCall(tables, position, rope(32, size), together=False)
    assert torch.isfinite(fused.paged_attention(qkv, norms, EPS, cache, call)).all()


@pytest.mark.parametrize(("start", "tokens"), [(0, 2), (2, 1), (6, 1), (14, 1), (3, 3)])
def test_attention_within_a_frame(fused: Any, dtype: torch.dtype, start: int, tokens: int) -> None:
    heads, group, size, rows = 2, 2, 32, 3
    qkv = random(rows * tokens, heads * (group + 2) * size, dtype=dtype)
    norms = random(size, dtype=dtype), random(size, dtype=dtype)
    cache = random(2, rows, 15, heads, size, dtype=dtype)
    cache[:, :, start:] = float("nan")
    caches = cache.clone(), cache.clone()
    args = norms, EPS, rope(15, size)
    found = fused.predictor_attention(qkv, *args, caches[0], start, tokens)
    check(found, PLAIN.predictor_attention(qkv, *args, caches[1], start, tokens), dtype)
    end = start + tokens
    check(caches[0][:, :, :end], caches[1][:, :, :end], dtype)


@pytest.mark.parametrize("tokens", [1, 2, 8])
def test_attention_over_a_ring(fused: Any, dtype: torch.dtype, tokens: int) -> None:
    heads, size, window = 2, 16, 12
    ring = random(6, 2, window + 8, heads, size, dtype=dtype)
    slots = torch.tensor([3, 1, 5], device=DEVICE)
    first = torch.tensor([0, 5, 77], device=DEVICE, dtype=torch.int32)
    qkv = random(3 * tokens, 3 * heads * size, dtype=dtype)
    rings = ring.clone(), ring.clone()
    call = RingCall(slots, first, rope(50, size), tokens, window)
    check(fused.ring_attention(qkv, rings[0], call), PLAIN.ring_attention(qkv, rings[1], call), dtype)
    check(rings[0], rings[1], dtype)


def settings_for(rows: int) -> SamplingTensors:
    def pick(values: list[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([values[i % len(values)] for i in range(rows)], device=DEVICE, dtype=dtype)

    return SamplingTensors(
        temperature=pick([0.9, 0.0, 0.3, 1.5], torch.float32),
        top_k=pick([50, 0, 1, 20, 5000], torch.int64),
        top_p=pick([1.0, 0.5, 0.9], torch.float32),
        seed=torch.arange(rows, device=DEVICE) * 2**40 + 12345,
        place=torch.arange(rows, device=DEVICE) << 8,
        frame=torch.arange(rows, device=DEVICE) % 3,
    )


@pytest.mark.parametrize("width", [2048, 300])
def test_draws_are_those_of_the_reference(fused: Any, dtype: torch.dtype, width: int) -> None:
    rows = 60
    logits = random(rows, width, dtype=dtype, scale=3.0)
    settings = settings_for(rows)
    for codebook in (1, 15):
        same = fused.sample(logits, settings, codebook) == PLAIN.sample(logits, settings, codebook)
        assert same.float().mean() >= 1 - 1 / rows  # two candidates may be as near as their rounding


def test_a_draw_brings_what_is_fed_next(fused: Any, dtype: torch.dtype) -> None:
    logits, table = random(5, 64, dtype=dtype, scale=3.0), random(64, 48, dtype=dtype)
    codes, following = fused.sample_next(logits, settings_for(5), 2, table)
    assert torch.equal(codes, fused.sample(logits, settings_for(5), 2))
    assert torch.equal(following, table[codes])


@pytest.mark.parametrize("merge", [True, False])
def test_speech_draws_are_those_of_the_reference(fused: Any, merge: bool) -> None:
    rows, width, num_codes = 120, 300, 280
    number = torch.arange(rows, device=DEVICE)
    logits = random(rows, width, scale=3.0)
    logits[7, 5] = float("nan")
    settings = settings_for(rows)
    control = ControlRules(number % 5 == 0, number % 3 == 0, number % 2 == 0, num_codes, 281, 283, merge)
    params = RasTensors(
        temperature=settings.temperature,
        top_p=0.2 + 0.8 * (number % 4) / 3,
        top_k=1 + number % 40,
        min_repeats=1.0 + number % 2,
        history=logits.topk(16).indices.roll(3, 0),
        seed=settings.seed,
        place=settings.place,
        frame=settings.frame,
    )
    params.history[: rows // 2] = logits.topk(16).indices[: rows // 2]
    params.history[::4, 9:] = -1  # the padding of a row's start
    found, wanted = (torch.zeros(rows, 2, dtype=torch.int32, device=DEVICE) for _ in range(2))
    fused.sample_speech(logits, control, params, 40, found)
    PLAIN.sample_speech(logits, control, params, 40, wanted)
    same = found == wanted
    assert same[:, 1].all()
    assert wanted[:, 1].sum() == rows - 1
    assert same[:, 0].float().mean() >= 1 - 1 / rows  # two candidates may be as near as their rounding


def test_first_draws_penalise_ban_and_remember(fused: Any) -> None:
    rows, width, num_codes, eos = 40, 500, 300, 410
    logits = random(rows, width, scale=3.0)
    logits[:, eos] = 30.0
    logits[7] = float("nan")
    seen = torch.rand(rows + 3, width, device=DEVICE) < 0.3
    slots = torch.randperm(rows + 3, device=DEVICE)[:rows]
    penalty = torch.full((rows,), 1.3, device=DEVICE)
    banned = torch.arange(rows, device=DEVICE) % 2 == 0
    settings = settings_for(rows)
    seens = seen.clone(), seen.clone()
    forget = torch.arange(rows, device=DEVICE) - 1
    rules = [FirstCodeRules(own, slots, penalty, forget, banned, num_codes, eos) for own in seens]
    found, finite = fused.sample_first(logits, settings, rules[0])
    wanted, expected = PLAIN.sample_first(logits, settings, rules[1])
    good = torch.arange(rows, device=DEVICE) != 7
    assert torch.equal(finite, expected)
    assert torch.equal(finite, good)
    assert torch.equal(found[good], wanted[good])
    assert (found[good & ~banned] == eos).all()
    assert (found[banned] < num_codes).all()
    assert torch.equal(seens[0][slots[good]], seens[1][slots[good]])
    assert (found >= 0).all()
    assert (found < width).all()


@pytest.mark.parametrize(("taps", "dilation", "streams", "length"), [(7, 9, 2, 40), (2, 1, 1, 5), (1, 1, 3, 90)])
def test_convolutions_end_in_what_comes_next(
    fused: Any, dtype: torch.dtype, taps: int, dilation: int, streams: int, length: int
) -> None:
    channels, out, ahead = 32, 96, 6
    context = (taps - 1) * dilation
    x = random(streams, context + length, channels, dtype=dtype)
    weight = random(taps, channels, out, dtype=dtype, scale=(taps * channels) ** -0.5)
    product = ConvParams(weight, random(out), dilation)
    residual = random(streams, length, out, dtype=dtype)
    for ending in (dict(waves=SnakeParams(random(out).abs() * 3, random(out).abs())), dict(gelu=True), {}):
        results = []
        for ops in (fused, PLAIN):
            raw = torch.full((streams, length, out), float("nan"), device=DEVICE, dtype=dtype)
            pad = torch.full((streams, ahead + length, out), float("nan"), device=DEVICE, dtype=dtype)
            ops.conv(x, product, length, residual, raw, pad[:, ahead:], **ending)
            results.append((raw, pad[:, ahead:]))
        for found, wanted in zip(*results, strict=True):
            check(found, wanted, dtype)


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize(("channels", "length"), [(80, 128), (96, 256), (96, 70), (96, 64), (192, 64), (384, 80)])
def test_a_residual_unit_at_once(fused: Any, channels: int, length: int, is_last: bool) -> None:
    """A program has rows of both streams where these are no whole tiles, and rows that are not there."""
    dtype = torch.float32 if DEVICE == "cpu" else torch.bfloat16
    streams, dilation, ahead = 2, 3, 5

    def product(taps: int) -> ConvParams:
        weight = random(taps, channels, channels, dtype=dtype, scale=(taps * channels) ** -0.5)
        return ConvParams(weight, random(channels), dilation if taps > 1 else 1)

    def waves() -> SnakeParams:
        return SnakeParams(random(channels).abs() * 3, random(channels).abs())

    unit, after = ResidualUnitParams(product(7), waves(), product(1)), waves()
    padded = random(streams, 6 * dilation + length, channels, dtype=dtype)
    x = random(streams, length, channels, dtype=dtype)
    results = []
    for ops in (fused, PLAIN):
        own, out = x.clone(), torch.full((streams, ahead + length, channels), float("nan"), device=DEVICE, dtype=dtype)
        ops.residual_unit(padded, unit, own, out[:, ahead:], after, is_last)
        results.append((own, out[:, ahead:]))
    for found, wanted in zip(*results, strict=True):
        check(found, wanted, dtype)


@pytest.mark.parametrize(("channels", "fewest"), [(96, 80), (384, 320)])
def test_a_residual_unit_runs_at_once_from_enough_programs_on(channels: int, fewest: int) -> None:
    """No kernel runs, so that the tensors need no memory."""
    from engine.ops.triton_ops import TritonOps

    ops = TritonOps()
    ops.on_hopper = True
    num_rows = 128 * (fewest - 1)
    launched: list[str] = []

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=torch.bfloat16, device="meta")

    waves = SnakeParams(zeros(channels), zeros(channels))
    wide, narrow = (ConvParams(zeros(taps, channels, channels), zeros(channels), 1) for taps in (7, 1))
    unit = ResidualUnitParams(wide, waves, narrow)
    for length in (num_rows, num_rows + 1):
        padded, x = zeros(1, 6 + length, channels), zeros(1, length, channels)
        with intercept(lambda kernel, grid, args, options: launched.append(kernel.fn.__name__)):
            ops.residual_unit(padded, unit, x, torch.empty_like(x), waves, False)
    assert launched == ["conv_kernel", "conv_kernel", "residual_unit_kernel"]


def test_depthwise_norm_and_tail(fused: Any, dtype: torch.dtype) -> None:
    x = random(3, 6 + 10, 48, dtype=dtype)
    weight, bias = random(7, 48), random(48)
    norm = random(48), random(48)
    check(fused.depthwise_norm(x, weight, bias, norm, 1e-6), PLAIN.depthwise_norm(x, weight, bias, norm, 1e-6), dtype)
    found, wanted = (torch.full((3, 10), float("nan"), device=DEVICE) for _ in range(2))
    one = torch.zeros(1, device=DEVICE)
    fused.output_conv(x, weight * 0.05, one, found)
    PLAIN.output_conv(x, weight * 0.05, one, wanted)
    check(found, wanted, dtype)


def test_pasts_are_loaded_and_kept(fused: Any, dtype: torch.dtype) -> None:
    specs = [ConvStateSpec(96, 54, 3), ConvStateSpec(1024, 6, 1), ConvStateSpec(48, 1, 2)]
    slots = torch.tensor([2, 0], device=DEVICE)
    fresh = torch.tensor([False, True], device=DEVICE)
    results = []
    torch.manual_seed(3)
    for ops in (fused, PLAIN):
        torch.manual_seed(3)
        plan = PaddedBufferPlan(specs, 2, 2, torch.zeros(200_000, dtype=dtype, device=DEVICE))
        state = random(4, plan.num_state_values, dtype=dtype)
        plan.flat.copy_(random(plan.flat.numel(), dtype=dtype))
        ops.load_conv_state(plan, state, slots, fresh)
        ops.store_conv_state(plan, state, slots)
        results.append((plan.flat, state))
    for found, wanted in zip(*results, strict=True):
        assert torch.equal(found, wanted)
