"""Time every candidate launch shape of each layer, to choose the rules in ``engine.ops.triton_ops``.

    python -m benchmarks.gpu_tiles [--rows 1,64,256,1024] [--layers 0,5,7] [--tiles 128x256x8x3,64x64x4x3]

``rows`` are streams of one frame. The line of a layer has the time of the rule's shape and the best three. Then, for
one row, the products of talker, predictor and codec: cuBLAS with the kernels beside it, and the fused kernel.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.gpu_stages import milliseconds, numbers
from engine.ops import triton_ops
from engine.ops.params import ConvParams, ResidualStream, SnakeParams
from engine.ops.triton_ops import TritonOps

DEVICE = torch.device("cuda")
CONV = [  # taps, dilation, in, out, positions a frame
    (3, 1, 512, 512, 1), (1, 1, 512, 2048, 1), (1, 1, 1024, 4096, 2), (1, 1, 4096, 1024, 2), (7, 1, 1024, 1536, 4),
    (2, 1, 1536, 6144, 4), (7, 3, 768, 768, 32), (1, 1, 768, 768, 32), (2, 1, 768, 1920, 32), (7, 3, 384, 384, 160),
    (1, 1, 384, 384, 160), (2, 1, 384, 768, 160), (7, 3, 192, 192, 640), (1, 1, 192, 192, 640), (2, 1, 192, 288, 640),
    (7, 3, 96, 96, 1920), (1, 1, 96, 96, 1920),
]  # fmt: skip
LINEAR = [  # kind, in, out
    ("norm", 2048, 4096), ("add", 2048, 2048), ("swiglu", 2048, 6144), ("add", 6144, 2048),
    ("norm", 1024, 4096), ("add", 2048, 1024), ("swiglu", 1024, 3072), ("add", 3072, 1024), ("norm", 1024, 2048),
    ("norm", 512, 3072), ("add", 1024, 512), ("swiglu", 512, 1024),
]  # fmt: skip
# Sets of weights taken in turn: one alone would stay in the cache.
COPIES = 8
Shape = tuple[int, ...]


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)


def conv_case(layer: Shape, streams: int) -> Callable[[], None]:
    taps, dilation, channels, out, rate = layer
    ops = TritonOps()
    x = random(streams, (taps - 1) * dilation + rate, channels)
    bias, gain = torch.randn(out, device=DEVICE), torch.rand(out, device=DEVICE)
    scale = (taps * channels) ** -0.5
    products = [ConvParams(random(taps, channels, out) * scale, bias, dilation) for _ in range(COPIES)]
    residual, act = random(streams, rate, out), random(streams, rate, out)
    extra: dict[str, Any] = dict(residual=residual, raw=residual) if taps == 1 and channels == out else {}

    def run() -> None:
        for product in products:
            ops.conv(x, product, rate, act=act, waves=SnakeParams(gain, gain), **extra)

    return run


def linear_case(layer: tuple[str, int, int], rows: int, is_fused: bool) -> Callable[[], None]:
    kind, size, out = layer
    ops = TritonOps()
    ops.max_gemv_rows = rows if is_fused else 0
    x, y, norm = random(rows, size), random(rows, out), random(size)
    given, taker = ResidualStream(x), ResidualStream(y)
    weights = [random(out * (2 if kind == "swiglu" else 1), size) * size**-0.5 for _ in range(COPIES)]

    def run() -> None:
        for weight in weights:
            if kind == "norm":
                ops.norm_linear(given, norm, 1e-6, weight)
            elif kind == "swiglu":
                ops.norm_swiglu(given, norm, 1e-6, weight)
            else:
                ops.add_linear(taker, x, weight)

    return run


def timed(run: Callable[[], None]) -> float:
    """Median microseconds of one copy."""
    try:
        return 1000 * milliseconds(run, DEVICE, 10) / COPIES
    except Exception as error:  # a shape that does not fit the multiprocessor
        torch.cuda.synchronize()
        return float("inf") if "resource" in str(error).lower() or "shared" in str(error).lower() else float("nan")


def conv_shapes(rows: int, out: int) -> Iterator[Shape]:
    for block_m, block_n in itertools.product((16, 32, 64, 128, 256), (16, 32, 64, 128, 256)):
        if block_m > max(16, 2 * rows) or block_n > 2 * out or block_m * block_n > 128 * 256:
            continue
        if rows > 2000 and block_m * block_n < 64 * 64:
            continue
        for warps, stages in ((4, 3), (4, 5), (8, 3), (8, 4)):
            if (block_m * block_n >= 128 * 128) == (warps == 8):
                yield block_m, block_n, warps, stages


def compare(
    name: str, candidates: Iterator[Shape], rule: str, run: Callable[[], None], work: float, moved: float
) -> None:
    """Time a layer with the shape of the rule and with each candidate."""
    own: Any = getattr(triton_ops, rule)
    now = timed(run)
    found = []
    for shape in candidates:
        setattr(triton_ops, rule, lambda *_, chosen=shape: chosen)
        found.append((timed(run), shape))
    setattr(triton_ops, rule, own)
    best = sorted(found)[:3]
    rates = f"{work / best[0][0] / 1e6:.0f} TF/s {moved / best[0][0] / 1e3:.0f} GB/s"
    listed = "  ".join(f"{us:.1f} {shape}" for us, shape in best)
    print(f"{name:40s} rule {now:8.1f} us   best {listed}   {rates}", flush=True)


def compare_products() -> None:
    for layer in LINEAR:
        plain, fused_us = (timed(linear_case(layer, 1, is_fused=is_fused)) for is_fused in (False, True))
        print(f"1 x {layer!s:30s} cuBLAS {plain:.1f} us   fused {fused_us:.1f} us", flush=True)


def tiles(text: str) -> list[Shape]:
    return [tuple(map(int, tile.split("x"))) for tile in text.split(",")]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=numbers, default=[1, 64, 1024])
    parser.add_argument("--layers", type=numbers, help="indices of the layers (default: all)")
    parser.add_argument("--tiles", type=tiles, help="rows x columns x warps x stages (default: all that make sense)")
    parser.add_argument("--no-products", action="store_true")
    args = parser.parse_args()
    chosen = [CONV[i] for i in args.layers] if args.layers else CONV
    for rows, layer in itertools.product(args.rows, chosen):
        taps, _, channels, out, rate = layer
        work = 2.0 * rows * rate * taps * channels * out
        moved = 2.0 * (taps * channels * out + rows * rate * (channels + out))
        run = conv_case(layer, rows)
        candidates = iter(args.tiles) if args.tiles else conv_shapes(rows * rate, out)
        compare(f"{rows} x {layer}", candidates, "conv_shape", run, work, moved)
    if not args.no_products:
        compare_products()


if __name__ == "__main__":
    main()
