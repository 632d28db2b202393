"""The vocoder over static buffers against the same without."""

from __future__ import annotations

import pytest
import torch

from engine.models.cosyvoice3.config import HiftConfig
from engine.models.cosyvoice3.hift import Hift
from engine.models.cosyvoice3.hift_source import HarmonicSource
from engine.models.cosyvoice3.vocoder_stage import HiftBatch, HiftGraphs, common_lengths
from tests.fakes.cosyvoice3_checkpoint import hift_tensors

CONFIG = HiftConfig(base_channels=8, f0_channels=4)
LENGTHS = common_lengths(10, 0)


@pytest.fixture(scope="module")
def hift() -> Hift:
    made = Hift(CONFIG)
    made.m_source = HarmonicSource(CONFIG, 4)
    made.load_state_dict(hift_tensors(CONFIG, seed=5))
    made.fuse()
    return made.requires_grad_(False)


def test_usual_lengths_are_of_blocks_and_of_first_blocks() -> None:
    assert common_lengths(50, 30) == (50, 100, 43, 13)


def test_static_buffers_say_the_same_whoever_filled_them_before(hift: Hift) -> None:
    """Rows of usual lengths and of others, more of them in one push than in the next."""
    plain, static = HiftBatch(hift, 4), HiftGraphs(hift, 4, LENGTHS)
    mels = torch.randn(3, 47, 80, generator=torch.Generator().manual_seed(1))
    for rows in (plain, static):
        for slot in (1, 2, 3):
            rows.open(slot)
    for start, end, slots in ((0, 10, [1, 2, 3]), (10, 20, [3, 1]), (20, 40, [1]), (40, 47, [1])):
        pieces = [mels[slot - 1, start:end] for slot in slots]
        final = [end == 47] * len(slots)
        found, wanted = static.push(slots, pieces, final), plain.push(slots, pieces, final)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, atol=5e-5, rtol=0)
    assert static.state.values[0].isfinite().all()
