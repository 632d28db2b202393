from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.ops.tiles import LARGE, LARGE_PRODUCT, TALL, WIDE, Tile, conv_shape, num_programs


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
