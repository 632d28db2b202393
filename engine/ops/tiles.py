"""Which tile a convolution's programs take, by rule: measured on one H200 with ``benchmarks/gpu_tiles.py``. No torch.

A tile is (rows, columns, warps, stages). Large tiles read less, small ones keep more multiprocessors at work. A product
of one tap and few channels is all memory: there small tiles win at any size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

Tile = tuple[int, int, int, int]

NUM_MULTIPROCESSORS = 132
WIDE: Tile = (128, 256, 8, 3)
LARGE: Tile = (128, 128, 4, 3)
# Of one tap: what follows the product, GELU or a residual, does not fit into the registers of four warps.
LARGE_PRODUCT: Tile = (128, 128, 8, 3)
TALL: Tile = (64, 128, 4, 4)
# With the fewest programs that each is worth.
SMALL: Sequence[tuple[Tile, int]] = (((64, 64, 4, 4), 90), ((32, 64, 4, 4), 90), ((16, 64, 4, 4), 40))
SMALLEST: Tile = (16, 32, 4, 4)
# With fewer half of the multiprocessors wait for those that have two.
MIN_TALL = NUM_MULTIPROCESSORS * 3 // 2
MAX_MORE_PADDING = 1.1
MAX_SHORT = 768


class UnitTile(NamedTuple):
    """Tile of a residual unit: rows, inputs and outputs at a time, and from how many programs on it is faster."""

    rows: int
    depth: int
    columns: int
    warps: int
    stages: int
    min_programs: int


# With fewer the two convolutions' small tiles keep more multiprocessors at work.
MIN_UNIT_PROGRAMS = 80
# Of those that have a multiprocessor each: of 256 streams, the fewest that were measured faster.
MIN_WIDE_UNIT_PROGRAMS = 320
MIN_UNIT_PART = 16
# Units whose weights stay in shared memory: channels, taps, and a program's warps and rows.
RESIDENT_CHANNELS, RESIDENT_TAPS, RESIDENT_WARPS = 96, 7, 16
RESIDENT_ROWS = 16 * RESIDENT_WARPS
# Faster for one frame of 32 streams, which is 61,440 rows, and slower for that of 16, on 132 multiprocessors.
MIN_RESIDENT_ROWS = 60_000


def num_programs(tile: Tile, rows: int, columns: int) -> int:
    return -(-rows // tile[0]) * -(-columns // tile[1])


def padding(tile: Tile, columns: int) -> float:
    return -(-columns // tile[1]) * tile[1] / columns


def conv_shape(rows: int, columns: int, taps: int, channels: int) -> Tile:
    """The largest tile that fits the columns and leaves no multiprocessor idle."""
    is_short = taps == 1 and channels <= MAX_SHORT
    if not is_short:
        large = LARGE if taps > 1 else LARGE_PRODUCT
        wide_fits = padding(WIDE, columns) <= MAX_MORE_PADDING * padding(large, columns) and columns > LARGE[1]
        if wide_fits and num_programs(WIDE, rows, columns) >= 4 * NUM_MULTIPROCESSORS:
            return WIDE
        if num_programs(large, rows, columns) >= 2 * NUM_MULTIPROCESSORS:
            return large
    if (not is_short or columns % TALL[1] == 0) and num_programs(TALL, rows, columns) >= MIN_TALL:
        return TALL
    return next((tile for tile, least in SMALL if num_programs(tile, rows, columns) >= least), SMALLEST)


def unit_parts(channels: int) -> tuple[int, int]:
    """Return the largest power of two below ``channels``, and the rest."""
    first = 1 << (channels - 1).bit_length() - 1
    return first, channels - first


def unit_shape(channels: int, on_hopper: bool) -> UnitTile | None:
    """Return the tile of a unit in bf16, or none where one does not fit into registers and shared memory."""
    if not 64 < channels <= 384:
        return None
    rest = unit_parts(channels)[1]
    if rest < MIN_UNIT_PART or rest & (rest - 1):
        return None
    if channels <= 128:
        return UnitTile(128, math.gcd(channels, 32), rest, 4, 5 if on_hopper else 3, MIN_UNIT_PROGRAMS)
    if channels <= 192:
        return UnitTile(64, math.gcd(channels, 64), rest, 4, 3, MIN_UNIT_PROGRAMS)
    if channels > 256 and on_hopper:
        return UnitTile(128, math.gcd(channels, 32), min(rest, 64), 8, 4, MIN_WIDE_UNIT_PROGRAMS)
    return None


def takes_resident_unit(num_rows: int, channels: int, taps: int) -> bool:
    """Return whether a unit in bf16 on Hopper is faster with its weights in shared memory."""
    return (channels, taps) == (RESIDENT_CHANNELS, RESIDENT_TAPS) and num_rows >= MIN_RESIDENT_ROWS
