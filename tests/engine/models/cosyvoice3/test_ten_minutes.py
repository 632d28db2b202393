"""Ten minutes of one stream hold no more than two in bounded mode; in exact mode pages grow, and nothing else."""

from __future__ import annotations

import dataclasses
import gc
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from engine.models.cosyvoice3.decode_stage import CosyDecodeStage
from engine.models.cosyvoice3.flow import NOISE_FRAMES, Flow
from engine.models.cosyvoice3.hift import Hift
from engine.models.cosyvoice3.hift_source import HarmonicSource
from engine.models.cosyvoice3.settings import CosyVoice3Settings, FlowSettings
from tests.engine.models.cosyvoice3.flow_fixtures import SMALL, Voice, fill
from tests.fakes.cosyvoice3_checkpoint import hift_tensors
from tests.fakes.cosyvoice3_dims import TINY

TOKEN_RATE, TOKEN_SAMPLES, BLOCK_TOKENS = 25, 960, 25
MINUTE = 60 * TOKEN_RATE
CONFIG = dataclasses.replace(
    SMALL, input_size=80, dit=dataclasses.replace(SMALL.dit, mel_bins=80, block_frames=2 * BLOCK_TOKENS)
)
HIFT = dataclasses.replace(TINY.hift, base_channels=8, f0_channels=4)
# Of Python's own: lists that keep room, and what the collector has not seen yet.
SLACK_BYTES = 20_000


def stage_of(context_blocks: int | None) -> CosyDecodeStage:
    flow, hift = fill(Flow(CONFIG)), Hift(HIFT)
    flow.fuse()
    hift.m_source = HarmonicSource(HIFT, 10)
    hift.load_state_dict(hift_tensors(HIFT, seed=5))
    hift.fuse()
    settings = CosyVoice3Settings(flow=FlowSettings(memory_mb=700, context_blocks=context_blocks))
    return CosyDecodeStage(flow, hift.requires_grad_(False), 2, settings, torch.device("cpu"), 1)


def speaker() -> Voice:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, CONFIG.vocab_size, (40,), generator=generator)
    return Voice(tokens, torch.randn(80, 80, generator=generator), torch.randn(6, generator=generator))


def tensor_bytes() -> int:
    """Of all tensors that there are."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    sizes = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(sizes.values())


def minutes(stage: CosyDecodeStage, slot: int, count: int) -> Iterator[int]:
    """Samples of each minute; nothing of them is kept."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(count):
        num_samples = 0
        for token in torch.randint(0, CONFIG.vocab_size, (MINUTE,), generator=generator).tolist():
            stage.feed(slot, [token])
            while stage.busy:
                for chunk in stage.step({}):
                    assert chunk.error is None
                    assert np.isfinite(chunk.pcm).all()
                    num_samples += len(chunk.pcm)
        yield num_samples


@pytest.mark.slow
@pytest.mark.parametrize(("context_blocks", "count"), [(2, 10), (None, 3)])
def test_what_minutes_of_one_stream_hold(context_blocks: int | None, count: int) -> None:
    stage = stage_of(context_blocks)
    slot = stage.reserve()
    assert slot is not None
    stage.prime(slot, speaker().reference("anna"))
    row, held, total = stage.streams[slot], [], 0
    tracemalloc.start()
    for num_samples in minutes(stage, slot, count):
        total += num_samples
        pages = len(row.pages) + len(row.reserved_pages)
        held.append((pages, tensor_bytes(), tracemalloc.get_traced_memory()[0]))
        assert not row.cells
        assert len(row.tokens) < 2 * BLOCK_TOKENS
    tracemalloc.stop()
    pages, tensors, python = zip(*held, strict=True)
    if context_blocks:
        assert row.num_opened * 2 * BLOCK_TOKENS > 1.9 * NOISE_FRAMES, "the noise began again on the way"
    assert set(tensors[1:]) == {tensors[1]}
    assert max(python[1:]) - python[1] < SLACK_BYTES
    assert pages == tuple(4 if context_blocks else row_pages(minute) for minute in range(1, count + 1))
    assert not stage.memory.num_bounded
    stage.finalize(slot)
    while stage.num_pending(slot):
        total += sum(len(chunk.pcm) for chunk in stage.step({}))
    assert total == count * MINUTE * TOKEN_SAMPLES
    stage.release(slot)
    stage.release_quarantined()


def row_pages(minute: int) -> int:
    """One a block, besides the voice's."""
    return (40 + minute * MINUTE - 3) // BLOCK_TOKENS - 1
