from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.ops.tiles import (
    LARGE,
    LARGE_PRODUCT,
    TALL,
    WIDE,
    Tile,
    conv_shape,
    num_programs,
    unit_parts,
    unit_shape,
)

# Of one block of threads on the smallest GPU that has fused kernels, and on Hopper.
SHARED_BYTES = {False: 99 * 1024, True: 227 * 1024}
# Of the loop over outputs.
UNIT_STAGES = 3


@pytest.mark.parametrize(
    ("streams", "rate", "columns", "taps", "channels", "wanted"),
    [
        (1024, 32, 768, 7, 768, WIDE),
        (256, 32, 768, 7, 768, LARGE),
        (1024, 160, 384, 7, 384, LARGE),
        (256, 640, 192, 7, 192, WIDE),
        (1024, 1920, 96, 7, 96, LARGE),
        (1024, 160, 384, 1, 384, TALL),
        (64, 160, 384, 7, 384, TALL),
        (64, 32, 768, 7, 768, (64, 64, 4, 4)),
        (1024, 640, 192, 1, 192, (64, 64, 4, 4)),
        (8, 4, 1536, 7, 1024, (16, 64, 4, 4)),
        (1, 4, 96, 7, 96, (16, 32, 4, 4)),
        (1024, 2, 1024, 1, 4096, TALL),
        (1024, 2, 4096, 1, 1024, LARGE_PRODUCT),
    ],
)
def test_the_rule_takes_what_was_measured_best(
    streams: int, rate: int, columns: int, taps: int, channels: int, wanted: Tile
) -> None:
    assert conv_shape(streams * rate, columns, taps, channels) == wanted


@given(st.integers(1, 10**6), st.integers(1, 2048), st.sampled_from([1, 2, 7]), st.sampled_from([96, 4096]))
def test_more_rows_never_take_a_smaller_tile(rows: int, columns: int, taps: int, channels: int) -> None:
    few, many = conv_shape(rows, columns, taps, channels), conv_shape(2 * rows, columns, taps, channels)
    assert few[0] * few[1] <= many[0] * many[1]
    assert num_programs(few, rows, columns) >= 1


@pytest.mark.parametrize(
    ("channels", "on_hopper", "wanted"),
    [
        (96, True, (128, 32, 32, 4, 5, 80)),
        (96, False, (128, 32, 32, 4, 3, 80)),
        (192, True, (64, 64, 64, 4, 3, 80)),
        (384, True, (128, 32, 64, 8, 4, 320)),
        (384, False, None),
        (64, True, None),
        (112, True, None),
        (768, True, None),
    ],
)
def test_a_unit_has_the_tile_that_was_measured_best(
    channels: int, on_hopper: bool, wanted: tuple[int, ...] | None
) -> None:
    assert unit_shape(channels, on_hopper) == wanted


@pytest.mark.parametrize("on_hopper", [False, True])
def test_units_fit_into_shared_memory(on_hopper: bool) -> None:
    tiles = {channels: unit_shape(channels, on_hopper) for channels in range(1, 1025)}
    assert any(tiles.values())
    for channels, tile in tiles.items():
        if tile is not None:
            first, rest = unit_parts(channels)
            assert first + rest == channels
            assert channels % tile.depth == channels % tile.columns == 0
            inputs = tile.stages * tile.depth * (tile.rows + channels)
            outputs = UNIT_STAGES * tile.columns * (tile.rows + channels)
            # In bf16.
            assert 2 * max(inputs, outputs) < SHARED_BYTES[on_hopper]
